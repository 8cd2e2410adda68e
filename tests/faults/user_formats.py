"""Tiny files of users for each task and reader, and how to open them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from tests.factories import pdf

from bertkit.data.document_readers import documents as texts
from bertkit.extensions.search.converter import Converter
from bertkit.extensions.search.documents import DocumentColumns, documents
from bertkit.extensions.search.judgments import read_judgments, read_queries
from bertkit.recipes.pretrain_config import complete
from bertkit.recipes.run_file import read_run_file
from bertkit.tasks import find
from bertkit.tasks.examples import read_examples

TALK = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
SQUAD: dict[str, Any] = {"data": [{"paragraphs": [{"context": "a we bc", "qas": [
    {"id": "1", "question": "who", "answers": [{"text": "we", "answer_start": 2}],
     "is_impossible": False},
    {"id": "2", "question": "why", "answers": [], "is_impossible": True},
]}]}]}  # fmt: skip


def lines(*rows: Any) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


ROWS: dict[str, dict[str, str]] = {
    "classify": {
        "train.tsv": "text\tlabel\n" + "a good one\tyes\na bad one\tno\n" * 4,
        "train.csv": 'text,label\n"a, ""b""",yes\nc,no\n',
        "train.jsonl": lines({"text": "a", "label": "x"}, {"text": "b", "label": 1.5}),
    },
    "tag": {
        "train.conll": "a O\nwe B-X\nbc I-X\n\nthe O\n",
        "train.jsonl": lines({"text": "a we", "entities": [{"start": 2, "end": 4, "label": "X"}]}),
    },
    "answer": {
        "train.jsonl": lines(
            {"question": "q", "context": "a we", "answers": {"text": ["we"], "answer_start": [2]}},
            {"question": "q", "context": "a", "answers": {"text": ["a"], "answer_start": [0]}},
        )
    },
    "choose": {
        "train.jsonl": lines({"context": "a", "question": "q", "choices": ["a", "b"], "label": 1})
    },
    "similarity": {"train.tsv": "text\tpair\tscore\na\tb\t0.5\nc\td\t0.1\n"},
    "chat": {"train.jsonl": lines({"messages": TALK})},
    "dpo": {
        "train.jsonl": lines(
            {"prompt": "a", "chosen": "b", "rejected": "c"},
            {"messages": TALK[:1], "chosen": "b", "rejected": "c"},
        )
    },
    "seq2seq": {"train.tsv": "source\ttarget\na\tb\nc d\te f\n"},
    "respond": {
        "train.jsonl": lines({"context": "a", "response": "b"}, {"context": "c", "response": "d"})
    },
    "summarize": {"train.jsonl": lines({"text": "One a. Two b.", "summary": "One a."})},
    "judgments": {
        "queries.jsonl": lines({"_id": 1, "text": "what"}, {"_id": "b", "text": "why"}),
        "queries.tsv": "1\twhat\nb\twhy\n",
        "beir.tsv": "query-id\tcorpus-id\tscore\n1\td 1\t2\n2\td2\t1\n",
        "trec.txt": "1 0 d1 2\n1 0 d2 0\n",
    },
    "texts": {"a.txt": "one two\n\nthree\n", "a.jsonl": lines({"text": "one"}, {"text": "two"})},
    "toml": {
        "run.toml": (
            "[model]\nlayers = 1\nhidden = 16\nheads = 2\nintermediate = 32\nmax_positions = 32\n"
            "[sampling]\nlength = 16\nheld_out = 0.2\n[train]\nsteps = 3\nbatch_size = 4\n"
            'learning_rate = 1e-3\nwarmup_steps = 1\nprecision = "fp32"\n'
        )
    },
}
"""Files by task of `bertkit finetune`; judgments, texts, and toml belong to other commands."""


EXTRA = {"classify": ["rows.parquet", "more.tsv.gz"], "answer": ["squad.json"]}
"""Files that are not written as text."""


def write_rows(folder: Path, task: str) -> None:
    folder.mkdir(exist_ok=True)
    for name, content in ROWS[task].items():
        (folder / name).write_text(content, encoding="utf-8")


def make_rows(folder: Path, task: str) -> None:
    write_rows(folder, task)
    if task == "classify":
        import pyarrow as pa
        from pyarrow import parquet

        table = pa.table({"text": ["a b", "c d"], "label": ["x", "y"]})
        parquet.write_table(table, folder / "rows.parquet")
        content = (folder / "train.tsv").read_bytes()
        (folder / "more.tsv.gz").write_bytes(gzip.compress(content, mtime=0))
    if task == "answer":
        (folder / "squad.json").write_text(json.dumps(SQUAD), encoding="utf-8")


def use_rows(folder: Path, task: str) -> None:
    for name in [*ROWS[task], *EXTRA.get(task, [])]:
        match task:
            case "judgments":
                (read_queries if "queries" in name else read_judgments)(folder / name)
            case "toml":
                complete(read_run_file(folder / name), vocab=99, pad=0)
            case "texts":
                list(texts([folder / name]))
                list(texts([folder / name], blank_lines="documents"))
            case _:
                read_examples(find(task), folder / name)


DOCUMENTS = {
    "a.html": b"<html><body><h1>One</h1><p>a</p><table><tr><td>1</table></body></html>",
    "a.md": b"---\ntitle: x\n---\n# One\n\ntext\n\n```sh\n# no\n```\nTwo\n---\n",
    "a.rst": b"One\n===\n\ntext\n\n.. note:: more\n",
    "a.txt": b"one\n\ntwo\n",
    "a.pdf": pdf(["one page", "two pages"], outline=[("One", 0)]),
    "a.ipynb": json.dumps(
        {
            "cells": [
                {"cell_type": "markdown", "metadata": {}, "source": ["# One\n", "text"]},
                {"cell_type": "code", "metadata": {}, "source": "1", "outputs": []},
            ],
            "metadata": {},
            "nbformat": 4,
            "nbformat_minor": 5,
        }
    ).encode(),
    "a.jsonl": b'{"_id": "1", "title": "t", "text": "a we"}\n{"_id": "2", "text": "b"}\n',
    "a.csv": b"id,text\n1,a we\n2,b\n",
}


def make_documents(folder: Path) -> None:
    import docx

    folder.mkdir()
    for name, content in DOCUMENTS.items():
        (folder / name).write_bytes(content)
    written = docx.Document()
    written.add_heading("One", 1)
    written.add_paragraph("a we")
    written.save(str(folder / "a.docx"))


def use_documents(folder: Path) -> None:
    with Converter() as convert:
        for name in [*DOCUMENTS, "a.docx"]:
            list(documents([folder / name], DocumentColumns(), convert=convert))
