"""How transformers' `Trainer` does each task of the comparison."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from bertkit import metrics
from bertkit.data.tag_schemes import spans

OVERLAP, BEST, ANSWER_TOKENS = 128, 20, 30
"""Of squad: tokens that windows share, and which answers are weighed; the defaults of both."""


class Rows(Dataset[dict[str, Any]]):
    """What the model reads, one dict a row."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> dict[str, Any]:
        return self.rows[place]


class Padding:
    """A collator that counts what of its batches is padding."""

    def __init__(self, collator: Any) -> None:
        self.collator, self.real, self.all = collator, 0, 0

    def __call__(self, rows: list[dict[str, Any]]) -> Any:
        batch = self.collator(rows)
        self.real += int(batch["attention_mask"].sum())
        self.all += batch["attention_mask"].numel()
        return batch

    def fill(self) -> float:
        """The share of real tokens since it was asked last."""
        found = self.real / self.all
        self.real = self.all = 0
        return found


class Peer(ABC):
    """How a task is done with transformers, written after its example scripts."""

    model: str
    collator = "DataCollatorWithPadding"

    def __init__(self, tokenizer: Any, train: Sequence[Any], length: int) -> None:
        self.tokenizer, self.length, self.labels = tokenizer, length, self.labels_of(train)
        self.index = {label: place for place, label in enumerate(self.labels)}

    def labels_of(self, train: Sequence[Any]) -> list[str]:
        """The names of the model's outputs."""
        return sorted({example.label for example in train})

    def outputs(self) -> dict[str, int]:
        return {"num_labels": len(self.labels)}

    @abstractmethod
    def rows(self, examples: Sequence[Any], *, learn: bool) -> list[dict[str, Any]]:
        """What the model reads, tokenized, and with `learn` its targets."""

    @abstractmethod
    def answers(self, predictions: Any, examples: Sequence[Any]) -> list[Any]:
        """An answer for each example, from the logits of what `rows` gave last."""

    @abstractmethod
    def score(self, answers: Sequence[Any], examples: Sequence[Any]) -> dict[str, float]:
        """By bertkit's metrics, so that the same answers score the same."""


class Labels(Peer):
    """A label for a text or a pair, as run_glue does it."""

    model = "AutoModelForSequenceClassification"

    def rows(self, examples: Sequence[Any], *, learn: bool) -> list[dict[str, Any]]:
        pairs = [example.pair for example in examples]
        found = self.tokenizer(
            [example.text for example in examples],
            None if pairs[0] is None else pairs,
            truncation=True,
            max_length=self.length,
        )
        rows = by_row(found)
        for row, example in zip(rows, examples, strict=True) if learn else ():
            row["labels"] = self.target(example.label)
        return rows

    def target(self, label: str) -> float:
        return self.index[label]

    def answers(self, predictions: Any, examples: Sequence[Any]) -> list[Any]:
        return [self.labels[place] for place in predictions.argmax(-1).tolist()]

    def score(self, answers: Sequence[Any], examples: Sequence[Any]) -> dict[str, float]:
        return metrics.classification(
            answers, [example.label for example in examples], sorted(self.labels)
        )


class Numbers(Labels):
    """A number for a pair: one output, which transformers takes for a regression."""

    def labels_of(self, train: Sequence[Any]) -> list[str]:
        return ["score"]

    def target(self, label: str) -> float:
        return float(label)

    def answers(self, predictions: Any, examples: Sequence[Any]) -> list[Any]:
        found: list[Any] = predictions[:, 0].tolist()
        return found

    def score(self, answers: Sequence[Any], examples: Sequence[Any]) -> dict[str, float]:
        return metrics.regression(answers, [float(example.label) for example in examples])


class Tags(Peer):
    """A tag for each word, at its first piece, as run_ner does it."""

    model = "AutoModelForTokenClassification"
    collator = "DataCollatorForTokenClassification"
    firsts: Sequence[dict[int, int]] = ()
    """The place of each word's first piece, for each row."""

    def labels_of(self, train: Sequence[Any]) -> list[str]:
        return sorted({tag for example in train for tag in example.tags})

    def rows(self, examples: Sequence[Any], *, learn: bool) -> list[dict[str, Any]]:
        found = self.tokenizer(
            [example.words for example in examples],
            is_split_into_words=True,
            truncation=True,
            max_length=self.length,
        )
        rows, self.firsts = by_row(found), []
        for place, (row, example) in enumerate(zip(rows, examples, strict=True)):
            first: dict[int, int] = {}
            for token, word in enumerate(found.word_ids(place)):
                if word is not None:
                    first.setdefault(word, token)
            self.firsts.append(first)
            if learn:
                labels = [-100] * len(row["input_ids"])
                for word, token in first.items():
                    labels[token] = self.index[example.tags[word]]
                row["labels"] = labels
        return rows

    def answers(self, predictions: Any, examples: Sequence[Any]) -> list[Any]:
        best = predictions.argmax(-1)
        return [
            [
                self.labels[row[first[word]]] if word in first else "O"
                for word in range(len(example.word_spans))
            ]
            for row, first, example in zip(best, self.firsts, examples, strict=True)
        ]

    def score(self, answers: Sequence[Any], examples: Sequence[Any]) -> dict[str, float]:
        """Raises: AssertionError when seqeval finds another F1: then neither means anything."""
        from seqeval.metrics import f1_score  # type: ignore[import-untyped]

        wanted = [example.tags for example in examples]
        scores = metrics.entities([*map(spans, answers)], [*map(spans, wanted)])
        theirs = float(f1_score(wanted, answers))
        assert abs(scores["f1"] - theirs) < 1e-9, f"F1 {scores['f1']}, seqeval's {theirs}"
        return scores


class Spans(Peer):
    """Part of a context that answers a question, as run_qa does it.

    The least work that comes to its answers: nothing is padded beyond the batch, and neither
    probabilities nor files are made.
    """

    model = "AutoModelForQuestionAnswering"
    owner: Sequence[int] = ()
    """The example of each window."""
    places: Sequence[list[tuple[int, int] | None]] = ()
    """For each token of each window its characters in the context, None outside of it."""

    def labels_of(self, train: Sequence[Any]) -> list[str]:
        return ["start", "end"]

    def rows(self, examples: Sequence[Any], *, learn: bool) -> list[dict[str, Any]]:
        found = self.tokenizer(
            [example.question.lstrip() for example in examples],
            [example.context for example in examples],
            truncation="only_second",
            max_length=self.length,
            stride=OVERLAP,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        self.owner = found.pop("overflow_to_sample_mapping")
        self.places = [
            [
                place if which == 1 else None
                for place, which in zip(places, found.sequence_ids(window), strict=True)
            ]
            for window, places in enumerate(found.pop("offset_mapping"))
        ]
        rows = by_row(found)
        for row, number, places in zip(rows, self.owner, self.places, strict=True) if learn else ():
            row["start_positions"], row["end_positions"] = covered(places, examples[number])
        return rows

    def answers(self, predictions: Any, examples: Sequence[Any]) -> list[Any]:
        best = [(-np.inf, "")] * len(examples)
        for start, end, number, places in zip(*predictions, self.owner, self.places, strict=True):
            context = examples[number].context
            for first in np.argsort(start)[-BEST:].tolist():
                for last in np.argsort(end)[-BEST:].tolist():
                    if not first <= last < min(first + ANSWER_TOKENS, len(places)):
                        continue
                    opens, closes = places[first], places[last]
                    score = start[first] + end[last]
                    if opens and closes and score > best[number][0]:
                        best[number] = (score, context[opens[0] : closes[1]])
        return [text for _, text in best]

    def score(self, answers: Sequence[Any], examples: Sequence[Any]) -> dict[str, float]:
        return metrics.squad(answers, [[text for text, _ in e.answers] for e in examples])


def covered(places: Sequence[tuple[int, int] | None], example: Any) -> tuple[int, int]:
    """The first and last token of the first answer, or [CLS] where the window lacks some of it."""
    text, start = example.answers[0]
    end = start + len(text)
    shown = [(token, place) for token, place in enumerate(places) if place is not None]
    if shown[0][1][0] > start or shown[-1][1][1] < end:
        return 0, 0
    inside = [token for token, (opens, closes) in shown if opens < end and closes > start]
    return inside[0], inside[-1]


def by_row(found: Any) -> list[dict[str, Any]]:
    """A tokenizer's columns as rows."""
    return [dict(zip(found, row, strict=True)) for row in zip(*found.values(), strict=True)]
