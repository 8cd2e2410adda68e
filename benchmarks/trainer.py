"""Tasks of the fine-tuning benchmark with transformers' `Trainer`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from bertkit import metrics
from bertkit.data.tag_schemes import spans

OVERLAP, BEST, ANSWER_TOKENS = 128, 20, 30
"""SQuAD settings: overlap of windows in tokens, number of candidate positions, and maximum answer
length in tokens. These are the defaults of both libraries."""


class Rows(Dataset[dict[str, Any]]):
    """Dataset of the inputs of a model, with one dict per row."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.rows[index]


class Padding:
    """Wrapper of a collator that counts the padding of its batches."""

    def __init__(self, collator: Any) -> None:
        self.collator, self.real, self.all = collator, 0, 0

    def __call__(self, rows: list[dict[str, Any]]) -> Any:
        batch = self.collator(rows)
        self.real += int(batch["attention_mask"].sum())
        self.all += batch["attention_mask"].numel()
        return batch

    def fill(self) -> float:
        """Return the fraction of tokens that are not padding, since the last call."""
        found = self.real / self.all
        self.real = self.all = 0
        return found


class Peer(ABC):
    """A task with transformers, as in its example scripts."""

    model: str
    collator = "DataCollatorWithPadding"

    def __init__(self, tokenizer: Any, train: Sequence[Any], length: int) -> None:
        self.tokenizer, self.length, self.labels = tokenizer, length, self.labels_of(train)
        self.index = {label: index for index, label in enumerate(self.labels)}

    def labels_of(self, train: Sequence[Any]) -> list[str]:
        """Return the names of the model's outputs."""
        return sorted({example.label for example in train})

    def outputs(self) -> dict[str, int]:
        return {"num_labels": len(self.labels)}

    @abstractmethod
    def rows(self, examples: Sequence[Any], *, learn: bool) -> list[dict[str, Any]]:
        """Tokenize the examples; with `learn`, also add targets."""

    @abstractmethod
    def answers(self, predictions: Any, examples: Sequence[Any]) -> list[Any]:
        """Return a prediction per example, from the logits of the last result of `rows`."""

    @abstractmethod
    def score(self, answers: Sequence[Any], examples: Sequence[Any]) -> dict[str, float]:
        """Score predictions with bertkit's metrics, so that scores are comparable."""


class Labels(Peer):
    """Classification of texts or pairs, as in run_glue."""

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
        return [self.labels[index] for index in predictions.argmax(-1).tolist()]

    def score(self, answers: Sequence[Any], examples: Sequence[Any]) -> dict[str, float]:
        return metrics.classification(
            answers, [example.label for example in examples], sorted(self.labels)
        )


class Numbers(Labels):
    """Regression on pairs, which transformers uses for a model with one output."""

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
    """Token classification at the first subword of each word, as in run_ner."""

    model = "AutoModelForTokenClassification"
    collator = "DataCollatorForTokenClassification"
    firsts: Sequence[dict[int, int]] = ()
    """Index of the first subword of each word, per row."""

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
        for number, (row, example) in enumerate(zip(rows, examples, strict=True)):
            first: dict[int, int] = {}
            for token, word in enumerate(found.word_ids(number)):
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
        """Return the scores, or raise AssertionError if F1 differs from seqeval's F1."""
        from seqeval.metrics import f1_score  # type: ignore[import-untyped]

        targets = [example.tags for example in examples]
        scores = metrics.entities([*map(spans, answers)], [*map(spans, targets)])
        seqeval_f1 = float(f1_score(targets, answers))
        assert abs(scores["f1"] - seqeval_f1) < 1e-9, f"F1 {scores['f1']}, seqeval's {seqeval_f1}"
        return scores


class Spans(Peer):
    """Question answering, as in run_qa.

    This does only the work that is necessary for the answers: batches have no extra padding, and
    neither probabilities nor files are computed.
    """

    model = "AutoModelForQuestionAnswering"
    owner: Sequence[int] = ()
    """Index of the example of each window."""
    spans: Sequence[list[tuple[int, int] | None]] = ()
    """Start and end of each token of each window in the context, or None outside of the context."""

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
        self.spans = [
            [
                span if segment == 1 else None
                for span, segment in zip(offsets, found.sequence_ids(window), strict=True)
            ]
            for window, offsets in enumerate(found.pop("offset_mapping"))
        ]
        rows = by_row(found)
        for row, number, offsets in zip(rows, self.owner, self.spans, strict=True) if learn else ():
            row["start_positions"], row["end_positions"] = answer_tokens(offsets, examples[number])
        return rows

    def answers(self, predictions: Any, examples: Sequence[Any]) -> list[Any]:
        best = [(-np.inf, "")] * len(examples)
        for start, end, number, offsets in zip(*predictions, self.owner, self.spans, strict=True):
            context = examples[number].context
            for first in np.argsort(start)[-BEST:].tolist():
                for last in np.argsort(end)[-BEST:].tolist():
                    if not first <= last < min(first + ANSWER_TOKENS, len(offsets)):
                        continue
                    opens, closes = offsets[first], offsets[last]
                    score = start[first] + end[last]
                    if opens and closes and score > best[number][0]:
                        best[number] = (score, context[opens[0] : closes[1]])
        return [text for _, text in best]

    def score(self, answers: Sequence[Any], examples: Sequence[Any]) -> dict[str, float]:
        return metrics.squad(answers, [[text for text, _ in e.answers] for e in examples])


def answer_tokens(offsets: Sequence[tuple[int, int] | None], example: Any) -> tuple[int, int]:
    """Return the first and last token of the first answer, or [CLS] if it is not in the window."""
    text, start = example.answers[0]
    end = start + len(text)
    shown = [(token, span) for token, span in enumerate(offsets) if span is not None]
    if shown[0][1][0] > start or shown[-1][1][1] < end:
        return 0, 0
    inside = [token for token, (opens, closes) in shown if opens < end and closes > start]
    return inside[0], inside[-1]


def by_row(found: Any) -> list[dict[str, Any]]:
    """Convert the columns of a tokenizer's output to rows."""
    return [dict(zip(found, row, strict=True)) for row in zip(*found.values(), strict=True)]
