"""Task in one file: predict the number of stars of a review.

    bertkit finetune rate:Rate --model MODEL --train train.tsv --dev dev.tsv --out stars
    bertkit predict stars "A fine film." --task rate:Rate

The model is an ordinal regression: one score per text, and one threshold between adjacent numbers
of stars. The probability of more than k stars is the sigmoid of the score plus the k-th bias.

Source: Cao, Mirjalili and Raschka 2020 (CORAL), equation 1.
"""

from __future__ import annotations

from collections.abc import Sequence

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
from bertkit.tasks.labeled_text import LabeledTextReader, LabelExample
from bertkit.tasks.task import ErrorRecord, ExampleOutput, Feature, Serving, Task
from bertkit.text.long_texts import Long, encode
from bertkit.text.tokenizer import Tokenizer


class Stars(msgspec.Struct, frozen=True):
    """Prediction for one text: its number of stars, and the probabilities of more than 1, 2, ..."""

    stars: int
    more_than: list[float]
    truncated: bool = False


class Thresholds(nn.Module):
    """Head with one logit per threshold: "more than k stars".

    Shapes:
        states: (N, D); returns (S, L - 1).
    """

    def __init__(self, hidden: int, labels: int, pooler: Pooler) -> None:
        super().__init__()
        self.pooler = pooler
        self.score = nn.Linear(hidden, 1)
        self.bias = nn.Parameter(torch.zeros(labels - 1))

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        out: Tensor = self.score(self.pooler(states, batch)) + self.bias
        return out


class Rate(Task[LabelExample, Stars]):
    """Number of stars of a text, from 1 to the maximum in the training file."""

    name = "stars"
    reader = LabeledTextReader()
    metric = "accuracy"
    serving = Serving(Stars, "A fine film.", "/stars")

    @classmethod
    def from_examples(cls, train: Sequence[LabelExample], options: msgspec.Struct) -> Rate:
        maximum = max(number_of_stars(example) for example in train)
        if maximum < 2:
            raise DataError(f"{train[0].where}: all texts have 1 star; add texts with more stars")
        return cls([str(number) for number in range(1, maximum + 1)])

    def build_head(self, encoder: Transformer) -> nn.Module:
        config = encoder.config
        return Thresholds(config.hidden, len(self.labels), Pooler(config))

    def check(self, examples: Sequence[LabelExample]) -> None:
        for example in examples:
            if number_of_stars(example) > len(self.labels):
                raise DataError(
                    f"{example.where}: stars must be at most {len(self.labels)}, the maximum in "
                    f"the training file, got {example.label}"
                )

    def features(
        self,
        examples: Sequence[LabelExample],
        tokenizer: Tokenizer,
        length: int,
        *,
        long: Long,
        labeled: bool,
    ) -> list[Feature]:
        texts = [example.text for example in examples]
        encodings, _ = encode(tokenizer, texts, length=length, long=long)
        return [
            Feature(encoding, index, target=number_of_stars(example) if labeled else None)
            for index, (example, encoding) in enumerate(zip(examples, encodings, strict=True))
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
        predictions = []
        for output in outputs:
            (logits,) = output.outputs[0]
            more_than = 1 / (1 + np.exp(-logits))
            stars = 1 + int((more_than > 0.5).sum())
            predictions.append(Stars(stars, more_than.tolist(), output.truncated))
        return predictions

    def score(self, answers: Sequence[Stars], examples: Sequence[LabelExample]) -> dict[str, float]:
        pairs = zip(answers, examples, strict=True)
        errors = np.array(
            [abs(answer.stars - number_of_stars(example)) for answer, example in pairs]
        )
        return {"accuracy": float((errors == 0).mean()), "mean_error": float(errors.mean())}

    def error_record(self, answer: Stars, example: LabelExample) -> ErrorRecord:
        error = abs(answer.stars - number_of_stars(example))
        return ErrorRecord(example.text, str(example.label), str(answer.stars), error)


def number_of_stars(example: LabelExample) -> int:
    """Return the label as a number.

    Raises:
        DataError: If the label is not an integer of at least 1.
    """
    label = example.label or ""
    if not label.isdecimal() or int(label) < 1:
        raise DataError(f"{example.where}: stars must be an integer of at least 1, got {label!r}")
    return int(label)
