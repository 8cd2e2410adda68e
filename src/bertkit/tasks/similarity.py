"""Vectors of texts: those that mean the same point the same way. Reimers & Gurevych 2019."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Self

import msgspec
import numpy as np
import torch
from msgspec import Meta
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from bertkit import metrics
from bertkit.batch import Batch
from bertkit.config import Count, Positive, Settings
from bertkit.console import say
from bertkit.data.columns import (
    LABELS,
    PAIRS,
    TEXTS,
    check_columns,
    first_column,
    missing_columns,
)
from bertkit.data.row_errors import each_of
from bertkit.data.row_readers import Source
from bertkit.errors import ConfigError, DataError
from bertkit.models.model import Model
from bertkit.models.transformer import Transformer
from bertkit.nn.pooling import Activation, Dense, Mode, Pool, Pooling
from bertkit.objectives.contrastive import of_step
from bertkit.objectives.loss import Loss, Totals
from bertkit.tasks.capabilities import ChanceLevel, UsesPooling
from bertkit.tasks.task import ErrorRecord, ExampleOutput, Feature, Reader, Reading, Serving, Task
from bertkit.tasks.trained_columns import open_rows
from bertkit.text.long_texts import Long, encode
from bertkit.text.prompts import DOCUMENT, QUERY, Prompts
from bertkit.text.tokenizer import Tokenizer

ANCHORS, POSITIVES = ("anchor", "query"), ("positive", "answer", "document")
NEGATIVE = "negative"
"""Names of columns, beside those that other tasks know; negatives begin with the last."""

SCORED = ("cosine", "cosent")
"""Losses of pairs with a label that says how alike they are."""

OF_LOSSES = {
    "scale": ("ranking", "cosent", "margin_mse"),
    "margin": ("triplet",),
    "highest": SCORED,
}
"""Options that some losses have."""


@dataclass(frozen=True)
class SimilarityExample:
    """A text, one that means the same, others that do not, and how alike the first two are."""

    texts: tuple[str, ...]
    label: float | None = None
    where: str = "a text"
    """File and line, for messages."""


class SimilarityOptions(Settings, frozen=True):
    """What is learned, and what a vector is."""

    loss: Literal["ranking", "cosine", "cosent", "triplet", "margin_mse"] | None = None
    """`ranking`: of all texts of a step each is to find its own second (Henderson et al. 2017), and
    none of its negatives; copies of that second are ignored; single texts find themselves again
    under another dropout (SimCSE).
    `cosine`: the cosine is the label. `cosent`: of two pairs of a step the one with the higher
    label has the higher cosine (Su 2022, CoSENT). `triplet`: nearer to the second than to the
    negative. `margin_mse`: by how much, the label says (Hofstätter et al. 2020), in cosines times
    `scale`. By default `cosine` where there are labels and no negatives, else `ranking`."""
    scale: Positive = 20.0
    """What cosines are multiplied by in `ranking`, `cosent` and `margin_mse`."""
    margin: Annotated[float, Meta(ge=0.0)] = 0.2
    """Margin of `triplet`, in cosine."""
    highest: Positive | None = None
    """Highest label of scored pairs (equal meaning); by default the highest in train."""
    pooling: Mode | None = None
    """What a vector is: the mean of all states, the first, or the largest of each number. By
    default as the folder has it that is started from, else the mean."""
    dense: Count | None = None
    """A linear layer that makes of it so many numbers. By default, with `pooling`, the folder's."""
    activation: Activation = "tanh"
    """What follows that layer."""
    dimensions: tuple[Count, ...] = ()
    """Dimensions of Matryoshka embeddings: vectors can be truncated to each of them
    (Kusupati et al. 2022)."""
    prompt: str | None = None
    """What stands before the first text of a row: a name of the folder's prompts, or a text such as
    "query: ". By default the folder's for queries; of scored pairs, its default one."""
    pair_prompt: str | None = None
    """Prompt before the other texts. By default the model's for documents; for scored pairs,
    `prompt`."""


class SimilarityAnswer(msgspec.Struct, frozen=True):
    """The cosine of two texts' vectors; among several pairs without labels, the rank of the second
    text among all distinct second texts, by cosine, from 1 (of more than 4,096 pairs, those of a
    part). Texts with equal tokens are not distinct.
    """

    score: float
    rank: int | None = None
    truncated: bool = False


class SimilarityReader(Reader[SimilarityExample]):
    """Texts, pairs, triplets, or scored pairs, from a table."""

    def read(
        self, source: Source, reading: Reading, *, labelled: bool
    ) -> tuple[list[SimilarityExample], str]:
        """Read a text, its pair, negatives (columns `negative...`), and a label, if any."""
        table = open_rows(source, reading)
        given = (reading.text_column, reading.pair_column, reading.label_column)
        is_complete = reading.text_column is not None and reading.pair_column is not None
        check_columns(table, *given, only=is_complete)
        text = reading.text_column or first_column(table, (*ANCHORS, *TEXTS), *given)
        pair = reading.pair_column or first_column(table, (*POSITIVES, *PAIRS), text, *given)
        label = reading.label_column or first_column(table, ("label", *LABELS), text, pair)
        negatives = [c for c in table.columns if c.lower().startswith(NEGATIVE)]
        if text is None:
            missing = {"--text-column": "text"}
            raise missing_columns(table, missing if pair else {**missing, "--pair-column": "pair"})
        if negatives and pair is None:
            raise DataError(f"{table.name}: negatives without a pair; name it with --pair-column")
        chosen = [text, *([pair] if pair else []), *negatives]

        columns = [table.texts(column) for column in chosen]
        labels = None if label is None else table.texts(label)

        def example(index: int) -> SimilarityExample:
            where = table.where(index)
            texts = tuple(column[index] for column in columns)
            if not all(text.strip() for text in texts):
                raise DataError(f"{where}: a text is empty; remove the row")
            number = None if labels is None else _number(labels[index], where)
            return SimilarityExample(texts, number, where)

        examples = each_of(example, range(len(table)))
        summary = ", ".join(map(repr, chosen)) + (f", label = {label!r}" if label else "")
        return examples, f"{table.summary}; {len(examples):,} rows; texts = {summary}"

    def example(self, text: str, others: Sequence[str]) -> SimilarityExample:
        if len(others) != 1 or not text.strip() or not others[0].strip():
            raise DataError(f"{text[:40]!r}: give a pair of texts, neither empty")
        return SimilarityExample((text, others[0]))

    def key(self, example: SimilarityExample) -> tuple[str, ...]:
        return example.texts

    def group(self, example: SimilarityExample) -> str:
        return example.texts[0]


class Similarity(Task[SimilarityExample, SimilarityAnswer], ChanceLevel, UsesPooling):
    """Sentence embeddings, from pairs, triplets, scored pairs, or texts."""

    name = "similarity"
    reader = SimilarityReader()
    Options = SimilarityOptions
    serving = Serving(SimilarityAnswer, {"text": "A cat.", "other": "A kitten."})
    batching = "step"
    held, lowercase = Prompts(), False
    """Those of the folder that it starts from."""

    @property
    def metric(self) -> str:  # type: ignore[override]
        return "spearman" if self.options.loss in SCORED else "mrr"

    @property
    def score_names(self) -> tuple[str, ...]:
        return ("pearson", "spearman") if self.options.loss in SCORED else ("recall@1", "mrr")

    # ---- what it is made from

    @classmethod
    def from_examples(cls, train: Sequence[SimilarityExample], options: Settings) -> Self:
        """What these examples teach. Raises: ConfigError for a loss that they cannot."""
        assert isinstance(options, SimilarityOptions)
        texts = {len(example.texts) for example in train}
        labelled = all(example.label is not None for example in train)
        loss = options.loss or ("cosine" if labelled and texts == {2} else "ranking")
        needs = {"triplet": (3, False), "margin_mse": (3, True)}
        least, label = (2, True) if loss in SCORED else needs.get(loss, (1, False))
        if min(texts) < least or (label and not labelled):
            lacks = "labels" if label and not labelled else "negatives" if least == 3 else "pairs"
            raise ConfigError(
                f"loss: {loss} learns from {lacks}, and there are none; choose another"
            )
        for name, losses in OF_LOSSES.items():
            if loss not in losses and getattr(options, name) != getattr(SimilarityOptions(), name):
                raise ConfigError(
                    f"{name}: is for the loss {' or '.join(losses)}, and this one is {loss}; leave "
                    "it out"
                )
        highest = options.highest
        if loss in SCORED and highest is None:
            highest = max(max(abs(e.label or 0.0) for e in train), 1e-9)
        return cls((), msgspec.structs.replace(options, loss=loss, highest=highest))

    def check(self, examples: Sequence[SimilarityExample]) -> None:
        first = examples[0]
        for example in examples:
            if len(example.texts) != len(first.texts):
                raise DataError(
                    f"{example.where}: {len(example.texts)} texts, and {len(first.texts)} in "
                    f"{first.where}; give each row as many"
                )
            if self.options.loss in SCORED and example.label is None:
                raise DataError(f"{example.where}: no label; give one, or choose loss = ranking")

    def with_pooling(self, pooling: Pooling | None) -> Self:
        """Raises: ConfigError for a prompt that the folder has not."""
        held, options = pooling or Pooling(), self.options
        mode = options.pooling or held.mode
        if options.pooling is None and options.dense is None and held.dense is not None:
            options = msgspec.structs.replace(
                options, dense=held.width(0), activation=held.dense.activation
            )
        prompts, alike = held.prompts, options.loss in (None, *SCORED)
        first = prompts.find(options.prompt, None if alike else QUERY)
        second = first if alike else prompts.find(None, DOCUMENT)
        if options.pair_prompt is not None:
            second = prompts.find(options.pair_prompt)
        if first or second:
            say(f"prompts: {first!r} before the first text, {second!r} before the others")
        elif prompts.known:
            say(f"prompt: none (the model has {prompts.known})")
        options = msgspec.structs.replace(options, pooling=mode, prompt=first, pair_prompt=second)
        task = type(self)((), options)
        task.held, task.lowercase = prompts, held.lowercase
        return task

    @property
    def prompts(self) -> Prompts:
        """The folder's, with what is learned with as those of queries and documents; where that is
        one, as the default too.
        """
        options, held = self.options, self.held
        first, second = options.prompt or "", options.pair_prompt or ""
        if options.loss in (None, *SCORED) and first == second == held.find():
            return held
        others = {name: text for name, text in held.named.items() if name not in DOCUMENT}
        named = {**others, QUERY[0]: first, DOCUMENT[0]: second}
        if not any(named.values()):
            return msgspec.structs.replace(held, named={}, default=None)
        default = held.default if held.default in named else None
        if first == second:
            default = QUERY[0] if first else None
        return msgspec.structs.replace(held, named=named, default=default)

    def build_head(self, encoder: Transformer) -> nn.Module:
        options, hidden = self.options, encoder.config.hidden
        dense = Dense(hidden, options.dense, options.activation) if options.dense else None
        pooling = Pooling(
            options.pooling or "mean",
            normalize=True,
            dense=dense,
            prompts=self.prompts,
            lowercase=self.lowercase,
        )
        longest, width = max(options.dimensions, default=0), pooling.width(hidden)
        if longest > width:
            raise ConfigError(f"dimensions: {longest}; the model's vectors have {width} numbers")
        return Pool(pooling)

    # ---- what the model reads and learns

    def features(
        self,
        examples: Sequence[SimilarityExample],
        tokenizer: Tokenizer,
        length: int,
        *,
        long: Long,
        labelled: bool,
    ) -> list[Feature]:
        """One for each text; what is learned is asked of all texts, answers of the first two.

        Raises: DataError for a text alone, of which nothing can be answered.
        """
        alone = next((example for example in examples if len(example.texts) == 1), None)
        if alone is not None and not labelled:
            raise DataError(f"{alone.where}: a text alone is like nothing; give pairs")
        first, second = self.options.prompt or "", self.options.pair_prompt or ""
        rows: list[tuple[int, int, str]] = []
        prompts: list[str] = []
        for number, example in enumerate(examples):
            texts = example.texts if labelled else example.texts[:2]
            others = second
            if labelled and len(texts) == 1:  # its own second, under other draws of dropout
                texts, others = (texts[0], texts[0]), first
            rows += [(number, place, text) for place, text in enumerate(texts)]
            prompts += [first, *[others] * (len(texts) - 1)]
        encodings, _ = encode(
            tokenizer,
            [text for *_, text in rows],
            length=length,
            long=long,
            where=[examples[number].where for number, *_ in rows],
            prompts=prompts,
        )
        if labelled and self.options.loss == "ranking":
            seconds = _numbered(
                e.ids for e, (_, place, _) in zip(encodings, rows, strict=True) if place == 1
            )
            copies = len(seconds) - len(set(seconds.tolist()))
            if copies:
                say(
                    f"similarity: {copies:,} of {len(seconds):,} second texts are duplicates; a "
                    "duplicate of the target is not used as a negative"
                )
        return [
            Feature(encoding, number, target=(place, examples[number].label) if labelled else None)
            for encoding, (number, place, _) in zip(encodings, rows, strict=True)
        ]

    def targets(self, features: Sequence[Feature]) -> Tensor:
        """The place of each text in its example, and the example's label. Shapes: (S, 2)."""
        return torch.tensor([(f.target[0], f.target[1] or 0.0) for f in features])

    def outputs(self, model: Model, batch: Batch) -> Tensor:
        """Each sequence's vector. Shapes: (S, D)."""
        return of_step(super().outputs, model, batch)

    def loss_of(self, outputs: Tensor, batch: Batch, totals: Totals, head: nn.Module) -> Loss:
        """The mean over examples, and over the `dimensions` that vectors may be cut to."""
        assert batch.example is not None
        places, labels = batch.targets[self.head].unbind(1)
        count = int(batch.example.max()) + 1
        texts = len(outputs) // count
        order = torch.argsort(batch.example * texts + places.long())
        vectors, labels = outputs[order].unflatten(0, (count, texts)), labels[order][::texts]
        widths = {outputs.shape[1], *self.options.dimensions}
        copies = _copies_of_targets(batch, order.tolist(), texts)
        losses = [self._loss(vectors[..., :width], labels, copies) for width in sorted(widths)]
        loss = torch.stack(losses).mean() * len(outputs) / totals[self.head]
        return Loss(loss, {self.head: loss.detach()})

    def _loss(
        self, vectors: Tensor, labels: Tensor, copies: NDArray[np.bool_] | None = None
    ) -> Tensor:
        """Shapes: vectors (examples, texts, D); copies as `_copies_of_targets` returns them."""
        options = self.options
        first, *others = F.normalize(vectors, dim=-1).unbind(1)
        near = (first * others[0]).sum(-1)
        match options.loss:
            case "cosine":
                return F.mse_loss(near, labels / options.highest)
            case "cosent":
                gaps = options.scale * (near[:, None] - near)
                wrong = gaps[labels[:, None] < labels]  # of each pair with a more alike one
                return torch.logsumexp(F.pad(wrong, (1, 0)), 0)
            case "triplet":
                far = (first * others[1]).sum(-1)
                return F.relu(options.margin + far - near).mean()
            case "margin_mse":  # of cosines, which the folder gives; products would learn lengths
                far = (first * others[1]).sum(-1)
                return F.mse_loss(options.scale * (near - far), labels)
        scores = options.scale * first @ torch.cat(others).T
        if copies is not None and copies.any():
            scores = scores.masked_fill(torch.from_numpy(copies).to(scores.device), -torch.inf)
        return F.cross_entropy(scores, torch.arange(len(first), device=scores.device))

    # ---- what it answers

    def answers(
        self, outputs: Sequence[ExampleOutput[SimilarityExample]], head: nn.Module
    ) -> list[SimilarityAnswer]:
        if not outputs:
            return []
        examples = [item.example for item in outputs]
        vectors = np.stack([item.outputs for item in outputs]).reshape(len(outputs), 2, -1)
        norms = np.linalg.norm(vectors, axis=2, keepdims=True)
        first, second = (vectors / np.maximum(norms, 1e-12)).transpose(1, 0, 2)
        scores = (first * second).sum(1)
        ranks: list[int | None] = [None] * len(examples)
        if len(examples) > 1 and not self._has_scores(examples):
            numbers = _numbered(item.features[1].encoding.ids for item in outputs)
            ranks = list(_ranks(first, second, numbers))
        return [
            SimilarityAnswer(score, rank, item.truncated)
            for score, rank, item in zip(scores.tolist(), ranks, outputs, strict=True)
        ]

    def _has_scores(self, examples: Sequence[SimilarityExample]) -> bool:
        """Return whether the examples are scored pairs; a model trained to rank ranks them."""
        labelled = all(example.label is not None for example in examples)
        return labelled and self.options.loss in (None, *SCORED)

    def score(
        self, answers: Sequence[SimilarityAnswer], examples: Sequence[SimilarityExample]
    ) -> dict[str, float]:
        """Compute Pearson and Spearman if there are labels; otherwise, or if the pairs were ranked,
        recall and MRR, in which rows with equal texts count once.
        """
        labels = [example.label for example in examples if example.label is not None]
        labelled = len(labels) == len(examples)
        scores = metrics.regression([a.score for a in answers], labels) if labelled else {}
        if not self._has_scores(examples):
            each = zip(answers, examples, strict=True)
            ranks = {example.texts[:2]: answer.rank or 1 for answer, example in each}
            scores |= metrics.ranking([*ranks.values()], of=len({texts[-1] for texts in ranks}))
        return scores

    def chance(self, examples: Sequence[SimilarityExample]) -> Mapping[str, float]:
        if self._has_scores(examples):
            return {"spearman": 0.0} if len({example.label for example in examples}) > 1 else {}
        return {"mrr": metrics.random_mrr(len({example.texts[1] for example in examples}))}

    def error_record(self, answer: SimilarityAnswer, example: SimilarityExample) -> ErrorRecord:
        shown = " ⟷ ".join(example.texts[:2])
        if example.label is None:
            place = answer.rank or 1
            return ErrorRecord(shown, "found first", f"place {place}", 1.0 - 1.0 / place)
        wanted = example.label / (self.options.highest or 1.0)
        return ErrorRecord(
            shown, f"{wanted:.2f}", f"{answer.score:.2f}", abs(wanted - answer.score)
        )


def _copies_of_targets(batch: Batch, order: Sequence[int], texts: int) -> NDArray[np.bool_]:
    """Find the candidates, other than the target, that have the tokens of an example's target.

    Args:
        batch: The sequences.
        order: Their order by example and place.
        texts: Number of texts per example.

    Shapes:
        Returns (examples, candidates): candidates place by place, as `_loss` ranks them.
    """
    ids, bounds = batch.ids.cpu().numpy(), batch.layout.cu_seqlens.tolist()
    table = _numbered(ids[bounds[i] : bounds[i + 1]] for i in order).reshape(-1, texts)
    copies: NDArray[np.bool_] = table[:, 1:2] == table[:, 1:].T.reshape(1, -1)
    np.fill_diagonal(copies, val=False)
    return copies


def _numbered(texts: Iterable[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return a number for each text, given as its ids; equal texts have equal numbers."""
    numbers: dict[bytes, int] = {}
    return np.array([numbers.setdefault(ids.tobytes(), len(numbers)) for ids in texts])


def _ranks(
    first: NDArray[np.float32], second: NDArray[np.float32], numbers: NDArray[np.int64]
) -> list[int]:
    """Return the rank of each second text among all distinct ones; ties count against it."""
    second = second[np.unique(numbers, return_index=True)[1]]
    ranks: list[int] = []
    for start in range(0, len(first), 1024):
        scores = first[start : start + 1024] @ second.T
        own = scores[np.arange(len(scores)), numbers[start : start + len(scores)]]
        ranks += (scores >= own[:, None]).sum(1).tolist()
    return ranks


def _number(text: str, where: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not np.isfinite(number):
        raise DataError(f"{where}: the label {text!r} is no number; mend it or name another column")
    return number
