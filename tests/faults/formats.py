"""Every file format that bertkit reads: how to make a good example, and how to open it."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from pydoc_data import topics
from typing import Any, NamedTuple

import numpy as np
import torch
from tests.factories import ELMO_OPTIONS, SPECIALS, pdf, tiny_elmo, tiny_model
from tests.faults.rows import ROWS, SQUAD

from bertkit.checkpoint.adapter import write_adapter
from bertkit.checkpoint.elmo import Softmax
from bertkit.checkpoint.folder import load, save
from bertkit.checkpoint.g2p import LETTERS, NAMES, PHONEMES
from bertkit.checkpoint.run_folder import say_unfinished
from bertkit.data.converter import Converter
from bertkit.data.documents import Columns, documents
from bertkit.data.judgments import read_judgments, read_queries
from bertkit.data.readers import documents as texts
from bertkit.families import BERT, FAMILIES
from bertkit.models.lora import LoRA, add_lora
from bertkit.models.model import build
from bertkit.pipelines import pipeline
from bertkit.pipelines.answering import answering
from bertkit.recipes.finetune import finetune
from bertkit.recipes.prepare import prepare
from bertkit.recipes.prepare_pairs import prepare_pairs
from bertkit.recipes.pretrain import pretrain
from bertkit.recipes.run_file import read_config, read_run_file
from bertkit.recipes.runs import runs
from bertkit.recipes.vocabulary import train_vocabulary
from bertkit.tasks import find
from bertkit.tasks.examples import read_examples
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.train import train
from bertkit.text.vectors import Vectors

ENGLISH = [text.strip() for _, text in sorted(topics.topics.items())][:2]


class Format(NamedTuple):
    """A file format.

    Attributes:
        make: Function that writes a good example into a new directory.
        use: Function that opens it. It raises only a BertkitError, whatever the files contain.
    """

    make: Callable[[Path], Any]
    use: Callable[[Path], Any]


@cache
def vocabulary(kind: Any, use: Any = "encode") -> Tokenizer:
    return train(ENGLISH, kind=kind, size=600, max_length=32, use=use)


# ---- Models


def make_adapter(folder: Path) -> None:
    model = tiny_model(vocabulary("wordpiece"), "classify", labels=("no", "yes"))
    settings = {"bertkit": {"task": {"name": "classify", "options": {}}}}
    base = folder.parent / "adapter-base"
    if not base.exists():
        save(base, model, vocabulary("wordpiece"), BERT, labels=("no", "yes"), settings=settings)
    sizes = lambda name, rows: BERT.sizes(name, rows, config=model.config)  # noqa: E731
    add_lora(model, LoRA(rank=2), sizes, frozen_layers=0)
    write_adapter(folder, model, BERT, base=str(base))


def use_adapter(folder: Path) -> None:
    answering(load(folder))("a we bc")


def sides(folder: Path) -> Tokenizer:
    """Train a vocabulary of two sides, as SentencePiece models."""
    folder.mkdir()
    text, out = folder / "text.txt", folder / "v"
    text.write_text("a b c d e f\n" * 20, encoding="utf-8")
    train_vocabulary([text], out=out, kind="unigram", use="translate", size=11)
    tokenizer = Tokenizer.load(out)
    shutil.rmtree(out)
    text.unlink()
    return tokenizer


def make_generator(folder: Path, family: str) -> None:
    """Write a decoder-only model with a chat template."""
    from tests.text.test_chat import vocabulary as chat_vocabulary

    tokenizer = chat_vocabulary("chatml")
    save(
        folder,
        tiny_model(tokenizer, "lm", family=FAMILIES[family]),
        tokenizer,
        FAMILIES[family],
        generation={"num_beams": 2, "max_new_tokens": 3, "eos_token_id": tokenizer.eos},
    )


def make_encoder_decoder(folder: Path, family: str) -> None:
    if family in ("marian", "lstm"):
        tokenizer = sides(folder)
    else:
        tokenizer = vocabulary("bpe", "spans" if family == "t5" else "encode")
    kind = FAMILIES[family]
    assert kind.decoder is not None
    size = {"vocab": tokenizer.vocab_size, "hidden": 16, "layers": 1, "heads": 2}
    size |= {"intermediate": 32, "pad_id": tokenizer.pad, "max_positions": 32}
    size |= {"recurrent": {}} if family == "lstm" else {}
    encoder, decoder = (
        part.config({name: value for name, value in size.items() if name not in part.fixed})
        for part in (kind, kind.decoder)
    )
    save(folder, build(encoder, ("lm",), decoder=decoder), tokenizer, kind)


def use_generator(folder: Path) -> None:
    pipeline("generate", load(folder))(["a the"], {"max_tokens": 3})


def use_file(name: str) -> Callable[[Path], None]:
    return lambda folder: use_generator(folder / name)


def make_gguf(folder: Path) -> None:
    from tests.checkpoint.test_gguf import write

    folder.mkdir()
    write(folder / "model.gguf")


def make_g2p(folder: Path) -> None:
    folder.mkdir()
    shapes: dict[str, tuple[int, ...]] = {"fc_w": (len(PHONEMES), 6), "fc_b": (len(PHONEMES),)}
    for side, rows in (("enc", len(LETTERS)), ("dec", len(PHONEMES))):
        shapes[f"{side}_emb"] = (rows, 6)
        shapes |= {f"{side}_w_{way}": (18, 6) for way in ("ih", "hh")}
        shapes |= {f"{side}_b_{way}": (18,) for way in ("ih", "hh")}
    arrays = {name: np.ones(shapes[name], np.float32) for name in NAMES}
    np.savez(folder / "model.npz", **arrays)  # type: ignore[arg-type]


def make_elmo(folder: Path) -> None:
    tiny_elmo(folder)
    weight = torch.zeros(4, ELMO_OPTIONS["lstm"]["projection_dim"])  # type: ignore[index]
    Softmax(["<S>", "</S>", "<UNK>", "a"], weight, torch.zeros(4)).save(folder)


def use_elmo(folder: Path) -> None:
    pipeline("words", folder)(["a bc"])
    pipeline("fill-gap", folder)(["a ___ bc"])


def make_elmo_task(folder: Path) -> None:
    from bertkit.recipes.finetune_elmo import Learning, finetune_elmo

    data = folder.with_name(f"{folder.name}-data")
    write_rows(data, "classify")
    Vectors(["a", "good"], np.ones((2, 3), np.float32)).save(data / "vectors.txt")
    finetune_elmo(
        tiny_elmo(data / "elmo"),
        task="classify",
        train=data / "train.tsv",
        dev=data / "train.tsv",
        out=folder,
        settings=Learning(epochs=1),
        vectors=data / "vectors.txt",
    )


def use_elmo_task(folder: Path) -> None:
    answering(folder)("a good one")


# ---- Tokenizers and word vectors


def make_tokenizer(folder: Path, kind: str) -> None:
    folder.mkdir()
    match kind:
        case "vocab.txt":
            pieces = [*SPECIALS, *"abcdefgh"]
            (folder / kind).write_text("\n".join(pieces), encoding="utf-8")
        case "merges.txt":
            model = json.loads(vocabulary("bpe").core.to_str())["model"]
            merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
            (folder / kind).write_text("\n".join(merges), encoding="utf-8")
            (folder / "vocab.json").write_text(json.dumps(model["vocab"]), encoding="utf-8")
        case _:
            vocabulary(kind).save(folder)


def use_tokenizer(folder: Path) -> None:
    Tokenizer.load(folder).encode("a we bc")


def make_vectors(folder: Path) -> None:
    folder.mkdir()
    vectors = Vectors(["a", "b", "c d"], np.eye(3, 4, dtype=np.float32))
    vectors.save(folder / "vectors.txt")
    vectors.save(folder / "vectors.txt.gz")
    (folder / "glove.txt").write_text("a 1 2 3\nb 0.5 1e-3 -1\n", encoding="utf-8")


def use_vectors(folder: Path) -> None:
    for name in ("vectors.txt", "vectors.txt.gz", "glove.txt"):
        Vectors.load(folder / name).nearest("a")


# ---- Runs, corpora, and stores

RUN = """
[model]
layers = 1
hidden = 16
heads = 2
intermediate = 32
max_positions = 32
[sampling]
length = 16
held_out = 0.2
pairs = "none"
[train]
steps = 3
batch_size = 4
learning_rate = 1e-3
warmup_steps = 1
precision = "fp32"
device = "cpu"
log_every = 1
save_every = 1
evaluate_every = 3
evaluate_samples = 4
"""


def make_corpus(folder: Path) -> None:
    texts = [folder / f"{number}.txt" for number in range(6)]
    folder.mkdir()
    for number, path in enumerate(texts):
        path.write_text(ENGLISH[1][number * 200 :][:200], encoding="utf-8")
    prepare(texts, tokenizer=vocabulary("wordpiece"), out=folder / "corpus", processes=1)
    for path in texts:
        path.unlink()
    (folder / "run.toml").write_text(RUN, encoding="utf-8")


def use_corpus(folder: Path) -> None:
    pretrain(folder / "run.toml", corpus=folder / "corpus", out=folder / "run")


def make_pairs(folder: Path) -> None:
    vocabulary = folder / "vocabulary"
    sides(folder).save(vocabulary)
    file = folder / "rows.tsv"
    file.write_text("source\ttarget\n" + "a b\tc d\n" * 20, encoding="utf-8")
    prepare_pairs(file=file, tokenizer=vocabulary, out=folder / "pairs")
    shutil.rmtree(vocabulary)
    file.unlink()


def use_pairs(folder: Path) -> None:
    settings = {
        "family": "lstm",
        "objective": "translate",
        "model": {"hidden": 8, "layers": 1},
        "sampling": {"pairs": "none"},
        "train": {"steps": 1, "device": "cpu"},
    }
    pretrain(settings, corpus=folder / "pairs", out=folder / "run")


def make_pretraining(folder: Path) -> None:
    make_corpus(folder)
    use_corpus(folder)


def use_pretraining(folder: Path) -> None:
    look_at(folder / "run")
    pretrain(folder / "run.toml", corpus=folder / "corpus", out=folder / "run", resume=True)


def make_finetuning(folder: Path, *, finished: bool) -> None:
    write_rows(folder, "classify")
    for name in ("train.csv", "train.jsonl"):
        (folder / name).unlink()
    tokenizer = vocabulary("wordpiece")
    save(folder / "model", tiny_model(tokenizer), tokenizer, BERT)

    def stop(*_: Any) -> None:
        if not finished:
            raise InterruptedError

    with contextlib.suppress(InterruptedError):
        use_finetuning(folder, on_epoch=stop)


def use_finetuning(folder: Path, **options: Any) -> None:
    with contextlib.chdir(folder):  # the record of a run contains paths
        if not options:
            look_at(Path("run"))
        finetune(
            "classify",
            "model",
            train="train.tsv",
            dev="train.tsv",
            out="run",
            settings={"epochs": 2, "batch_size": 4, "save_minutes": 0.0, "device": "cpu"},
            **(options or {"resume": True}),
        )


def look_at(run: Path) -> None:
    """Read a run like `bertkit info` and `bertkit runs`."""
    say_unfinished(run)
    runs([str(run)])


def make_store(folder: Path) -> None:
    from bertkit.recipes.index import index

    tokenizer = vocabulary("wordpiece")
    save(folder / "model", tiny_model(tokenizer), tokenizer, BERT)
    (folder / "a.md").write_text("# One\n\na we bc\n\n# Two\n\nthe cat", encoding="utf-8")
    index([folder / "a.md"], model=folder / "model", store=str(folder / "store"), device="cpu")


def use_store(folder: Path) -> None:
    from bertkit.recipes.search import search

    options = {"model": str(folder / "model"), "device": "cpu", "json": True}
    search(str(folder / "store"), "a we", **options)
    search(str(folder / "store"), "the cat", hybrid=True, **options)


# ---- Files of users


def write_rows(folder: Path, task: str) -> None:
    folder.mkdir(exist_ok=True)
    for name, content in ROWS[task].items():
        (folder / name).write_text(content, encoding="utf-8")


def make_rows(folder: Path, task: str) -> None:
    import gzip

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


def use_rows(task: str) -> Callable[[Path], None]:
    extra = {"classify": ["rows.parquet", "more.tsv.gz"], "answer": ["squad.json"]}
    names = [*ROWS[task], *extra.get(task, [])]

    def use(folder: Path) -> None:
        for name in names:
            if task == "judgments":
                (read_queries if "queries" in name else read_judgments)(folder / name)
            elif task == "toml":
                read_config(read_run_file(folder / name), vocabulary("wordpiece"))
            elif task == "texts":
                for blank_lines in ("paragraphs", "documents"):
                    list(texts([folder / name], blank_lines=blank_lines))  # type: ignore[arg-type]
            else:
                read_examples(find(task), folder / name)

    return use


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
    "cran.all": b".I 1\n.T\nwings\n.W\nan experimental\n.I 2\n.T\n.W\nmore\n",
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
            list(documents([folder / name], Columns(), convert=convert))


FORMATS: dict[str, Format] = {
    "adapter": Format(make_adapter, use_adapter),
    "gpt2": Format(lambda f: make_generator(f, "gpt2"), use_generator),
    "llama": Format(lambda f: make_generator(f, "llama"), use_generator),
    **{
        name: Format(lambda f, name=name: make_encoder_decoder(f, name), use_generator)  # type: ignore[misc]
        for name in ("bart", "lstm", "marian", "t5")
    },
    "gguf": Format(make_gguf, use_file("model.gguf")),
    "g2p": Format(make_g2p, use_file("model.npz")),
    "elmo": Format(make_elmo, use_elmo),
    "elmo-task": Format(make_elmo_task, use_elmo_task),
    **{
        f"tokenizer-{kind}": Format(lambda f, kind=kind: make_tokenizer(f, kind), use_tokenizer)  # type: ignore[misc]
        for kind in ("vocab.txt", "merges.txt", "bpe", "unigram")
    },
    "vectors": Format(make_vectors, use_vectors),
    "corpus": Format(make_corpus, use_corpus),
    "pairs": Format(make_pairs, use_pairs),
    "pretraining": Format(make_pretraining, use_pretraining),
    "finetuning": Format(lambda f: make_finetuning(f, finished=False), use_finetuning),
    "finished": Format(lambda f: make_finetuning(f, finished=True), use_finetuning),
    "store": Format(make_store, use_store),
    **{
        f"rows-{task}": Format(lambda f, task=task: make_rows(f, task), use_rows(task))  # type: ignore[misc]
        for task in ROWS
    },
    "documents": Format(make_documents, use_documents),
}
"""File formats by name, in addition to the model directories of `hostile.KINDS`."""
