"""A task of one's own, in one file: stars, whose order a softmax would not know.

    bertkit finetune rate:Rate --model MODEL --train train.tsv --dev dev.tsv --out stars
    bertkit predict stars "A fine film." --task rate:Rate

Ordinal regression: one score for a text, and a threshold between each star and the next; how
likely a text has more than k stars is a sigmoid of the score above the k-th threshold.
Source: Cao, Mirjalili & Raschka 2020 (CORAL), equation 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertkit.batch import Batch
from bertkit.errors import DataError
from bertkit.models.heads import Pooler
from bertkit.models.transformer import Transformer
from bertkit.objectives.loss import Loss, Totals
from bertkit.tasks.classify import Classify as Labelled
from bertkit.tasks.classify import LabelExample
from bertkit.tasks.task import ErrorRecord, ExampleOutput, Feature, Reading, Task
from bertkit.text.long_texts import Long, encode
from bertkit.text.tokenizer import Tokenizer


class Stars(msgspec.Struct, frozen=True):
    """The stars of a text, and how likely it has more than 1, 2, ..."""

    stars: int
    more_than: list[float]
    truncated: bool = False


class Thresholds(nn.Module):
    """Shapes: (N, D) -> (S, L - 1), a logit for "more than k"."""

    def __init__(self, hidden: int, labels: int, pooler: Pooler) -> None:
        super().__init__()
        self.pooler = pooler
        self.score = nn.Linear(hidden, 1)
        self.bias = nn.Parameter(torch.zeros(labels - 1))

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        out: Tensor = self.score(self.pooler(states, batch)) + self.bias
        return out


class Rate(Task[LabelExample, Stars]):
    """Stars from 1 up to the most that a text of the training file has."""

    name = "rate"
    metric = "accuracy"
    Answer = Stars
    route = "/rate"
    example_item = "A fine film."

    @classmethod
    def read(
        cls, path: Path, reading: Reading, *, labelled: bool
    ) -> tuple[list[LabelExample], str]:
        return Labelled.read(path, reading, labelled=labelled)

    @classmethod
    def example(cls, text: str, others: Sequence[str]) -> LabelExample:
        return Labelled.example(text, others)

    @classmethod
    def from_examples(cls, train: Sequence[LabelExample], options: msgspec.Struct) -> Rate:
        most = max(stars(example) for example in train)
        if most < 2:
            raise DataError(f"{train[0].where}: no text has more than one star")
        return cls([str(number) for number in range(1, most + 1)])

    def build_head(self, encoder: Transformer) -> nn.Module:
        config = encoder.config
        return Thresholds(config.hidden, len(self.labels), Pooler(config))

    def check(self, examples: Sequence[LabelExample]) -> None:
        for example in examples:
            if stars(example) > len(self.labels):
                raise DataError(f"{example.where}: more than {len(self.labels)} stars")

    def features(
        self,
        examples: Sequence[LabelExample],
        tokenizer: Tokenizer,
        length: int,
        *,
        long: Long,
        labelled: bool,
    ) -> list[Feature]:
        texts = [example.text for example in examples]
        encodings, _ = encode(tokenizer, texts, length=length, long=long)
        return [
            Feature(encoding, place, target=stars(examples[place]) if labelled else None)
            for place, encoding in enumerate(encodings)
        ]

    def targets(self, features: Sequence[Feature]) -> Tensor:
        return torch.tensor([feature.target for feature in features])

    def loss_of(self, outputs: Tensor, batch: Batch, totals: Totals, head: nn.Module) -> Loss:
        target = batch.targets[self.head]
        more = target[:, None] > torch.arange(1, len(self.labels), device=target.device)
        loss = F.binary_cross_entropy_with_logits(outputs, more.float(), reduction="sum")
        loss = loss / totals[self.head]
        return Loss(loss, {self.head: loss.detach()})

    def answers(
        self, outputs: Sequence[ExampleOutput[LabelExample]], head: nn.Module
    ) -> list[Stars]:
        answers = []
        for item in outputs:
            (rows,) = item.outputs
            more = 1 / (1 + np.exp(-rows[0]))
            answers.append(Stars(1 + int((more > 0.5).sum()), more.tolist(), item.truncated))
        return answers

    def score(self, answers: Sequence[Stars], examples: Sequence[LabelExample]) -> dict[str, float]:
        off = np.array([a.stars - stars(e) for a, e in zip(answers, examples, strict=True)])
        return {"accuracy": float((off == 0).mean()), "mean_error": float(np.abs(off).mean())}

    def error_record(self, answer: Stars, example: LabelExample) -> ErrorRecord:
        off = abs(answer.stars - stars(example))
        return ErrorRecord(example.text, str(example.label), str(answer.stars), off)


def stars(example: LabelExample) -> int:
    """Raises: DataError for a label that is no number of stars."""
    if not (example.label or "").isdecimal() or int(example.label or 0) < 1:
        raise DataError(f"{example.where}: {example.label!r} is no number of stars, 1 or more")
    return int(example.label or 0)
