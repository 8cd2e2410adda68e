"""Tiny files of users for each task and reader, by name."""

from __future__ import annotations

import json
from typing import Any

TALK = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
SQUAD: dict[str, Any] = {
    "data": [
        {
            "paragraphs": [
                {
                    "context": "a we bc",
                    "qas": [
                        {
                            "id": "1",
                            "question": "who",
                            "answers": [{"text": "we", "answer_start": 2}],
                            "is_impossible": False,
                        },
                        {"id": "2", "question": "why", "answers": [], "is_impossible": True},
                    ],
                }
            ]
        }
    ]
}
DREAM = [[["a", "b"], [{"question": "who", "choice": ["a", "b"], "answer": "b"}], "id1"]]


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
            {"question": "q", "context": "a we", "answers": [{"text": "we", "start": 2}]},
            {"question": "q", "context": "a", "answers": {"text": ["a"], "answer_start": [0]}},
        )
    },
    "choose": {
        "train.jsonl": lines({"context": "a", "question": "q", "choices": ["a", "b"], "label": 1}),
        "dream.json": json.dumps(DREAM),
        "swag.csv": (
            ",sent1,sent2,ending0,ending1,ending2,ending3,label\n0,a,b,c,d,e,f,1\n1,a,b,c,d,e,f,0\n"
        ),
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
    "texts": {
        "a.txt": "one two\n\nthree\n",
        "a.jsonl": lines({"text": "one"}, {"text": "two"}),
    },
    "toml": {
        "run.toml": (
            "[model]\nlayers = 1\nhidden = 16\nheads = 2\nintermediate = 32\nmax_positions = 32\n"
            "[sampling]\nlength = 16\nheld_out = 0.2\n[train]\nsteps = 3\nbatch_size = 4\n"
            'learning_rate = 1e-3\nwarmup_steps = 1\nprecision = "fp32"\n'
        ),
    },
}
"""Files by task of `bertkit finetune`; judgments, texts, and toml belong to other commands."""
