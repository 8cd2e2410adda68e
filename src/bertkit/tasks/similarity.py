"""Sentence embeddings, whose cosine is the similarity of two texts. Reimers & Gurevych 2019."""

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
    find_label,
    first_column,
    missing_columns,
)
from bertkit.data.row_errors import read_each
from bertkit.data.row_readers import Source
from bertkit.errors import ConfigError, DataError
from bertkit.models.model import Model
from bertkit.models.transformer import Transformer
from bertkit.nn.pooling import Activation, Dense, Mode, Pool, Pooling
from bertkit.objectives.contrastive import compute_in_parts
from bertkit.objectives.loss import Loss, Totals
from bertkit.tasks.capabilities import ChanceLevel, UsesPooling
from bertkit.tasks.task import ErrorRecord, ExampleOutput, Feature, Reader, Reading, Serving, Task
from bertkit.tasks.trained_columns import open_rows
from bertkit.text.long_texts import Long, encode
from bertkit.text.prompts import DOCUMENT, QUERY, Prompts
from bertkit.text.tokenizer import Tokenizer

ANCHORS, POSITIVES = ("anchor", "query"), ("positive", "answer", "document")
"""Additional names of the columns that contain the first and the second texts."""

NEGATIVE = "negative"
"""Prefix of the names of columns that contain negatives."""

SCORED = ("cosine", "cosent")
"""Losses for pairs with a similarity label."""

LOSSES_OF_OPTIONS = {
    "scale": ("ranking", "cosent", "margin_mse"),
    "margin": ("triplet",),
    "highest": SCORED,
}
"""Losses that use an option. Options that are not listed are used by all losses."""


@dataclass(frozen=True)
class SimilarityExample:
    """A text, its positive, its negatives, and the label of the pair of text and positive."""

    texts: tuple[str, ...]
    label: float | None = None
    where: str = "a text"
    """File and line, for messages."""


class SimilarityOptions(Settings, frozen=True):
    """Options of sentence embeddings: loss, pooling, and prompts."""

    loss: Literal["ranking", "cosine", "cosent", "triplet", "margin_mse"] | None = None
    """Loss. `ranking`: cross-entropy over in-batch negatives (Henderson et al. 2017), in which
    duplicates of the positive are not used as negatives. A single text is its own positive, with
    different dropout (SimCSE). `cosine`: squared error between the cosine and the label divided by
    `highest`. `cosent`: of two pairs in a step, the pair with the higher label must have the higher
    cosine (Su 2022, CoSENT). `triplet`: the positive must be closer to the text than the negative.
    `margin_mse`: squared error between the label and `scale` times the difference between the
    cosines of the positive and the negative (Hofstätter et al. 2020). Default: `cosine` for pairs
    with labels and without negatives, otherwise `ranking`."""
    scale: Positive = 20.0
    """Inverse temperature, by which cosines are multiplied in `ranking`, `cosent` and
    `margin_mse`."""
    margin: Annotated[float, Meta(ge=0.0)] = 0.2
    """Margin of `triplet`, as a difference of cosine similarities."""
    highest: Positive | None = None
    """Label of pairs with equal meaning, for scored pairs. Default: the highest label in train."""
    pooling: Mode | None = None
    """Pooling: the mean of all states, the first state (cls), or the maximum. Default: the
    pooling of the model, or mean."""
    dense: Count | None = None
    """Output size of a linear layer after pooling. Default: the linear layer of the model, if it
    has one and `pooling` is not set."""
    activation: Activation = "tanh"
    """Activation function of the linear layer `dense`."""
    dimensions: tuple[Count, ...] = ()
    """Sizes to which embeddings can be truncated later (Matryoshka, Kusupati et al. 2022). For each
    size n, the loss is also computed on the first n dimensions."""
    prompt: str | None = None
    """Prompt for the first text of an example: the name of one of the model's prompts, or a text
    such as "query: ". Default: the query prompt of the model, or for scored pairs its default
    prompt."""
    pair_prompt: str | None = None
    """Prompt for the other texts of an example. Default: the document prompt of the model, or for
    scored pairs `prompt`."""


class SimilarityAnswer(msgspec.Struct, frozen=True):
    """Cosine of the embeddings of two texts, and the rank of the second text.

    `rank` is the rank of the second text, from 1, if all different second texts are sorted by their
    cosine with the first text. Texts with equal tokens count as one. More than 4,096 pairs are
    ranked in groups. `rank` is None for a single pair and for scored pairs.
    """

    score: float
    rank: int | None = None
    truncated: bool = False


class SimilarityReader(Reader[SimilarityExample]):
    """Reader of texts, pairs, triplets, or scored pairs from a table."""

    def read(
        self, source: Source, reading: Reading, *, labeled: bool
    ) -> tuple[list[SimilarityExample], str]:
        """Read texts and, if the table has them, second texts, negatives, and labels.

        Negatives are in columns whose names start with `negative`.
        """
        table = open_rows(source, reading)
        given = (reading.text_column, reading.pair_column, reading.label_column)
        is_complete = reading.text_column is not None and reading.pair_column is not None
        check_columns(table, *given, only=is_complete)
        text = reading.text_column or first_column(table, (*ANCHORS, *TEXTS), *given)
        pair = reading.pair_column or first_column(table, (*POSITIVES, *PAIRS), text, *given)
        label = reading.label_column
        if labeled and label is None:
            label = find_label(table, text, pair)
        label = label or first_column(table, ("label", *LABELS), text, pair)
        negatives = [c for c in table.columns if c.lower().startswith(NEGATIVE)]
        if text is None:
            missing = {"--text-column": "text"}
            raise missing_columns(table, missing if pair else {**missing, "--pair-column": "pair"})
        if negatives and pair is None:
            raise DataError(f"{table.name}: no second texts for the negatives; set --pair-column")
        chosen = [text, *([pair] if pair else []), *negatives]

        columns = [table.texts(column) for column in chosen]
        labels = None if label is None else table.texts(label)

        def example(index: int) -> SimilarityExample:
            where = table.where(index)
            texts = tuple(column[index] for column in columns)
            if not all(text.strip() for text in texts):
                raise DataError(f"{where}: a text is empty; remove the row")
            number = None if labels is None else _parse_label(labels[index], where)
            return SimilarityExample(texts, number, where)

        examples = read_each(example, range(len(table)))
        summary = ", ".join(map(repr, chosen)) + (f", label = {label!r}" if label else "")
        return examples, f"{table.summary}; {len(examples):,} rows; texts = {summary}"

    def example(self, text: str, others: Sequence[str]) -> SimilarityExample:
        if len(others) != 1 or not text.strip() or not others[0].strip():
            raise DataError(f"{text[:40]!r}: expected two texts that are not empty; pass a pair")
        return SimilarityExample((text, others[0]))

    def key(self, example: SimilarityExample) -> tuple[str, ...]:
        return example.texts

    def group(self, example: SimilarityExample) -> str:
        return example.texts[0]


class Similarity(Task[SimilarityExample, SimilarityAnswer], ChanceLevel, UsesPooling):
    """Sentence embeddings, which are trained on pairs, triplets, scored pairs, or texts."""

    name = "similarity"
    reader = SimilarityReader()
    Options = SimilarityOptions
    serving = Serving(SimilarityAnswer, {"text": "A cat.", "other": "A kitten."})
    batching = "step"
    initial_prompts, lowercase = Prompts(), False
    """Prompts and lowercasing of the model before fine-tuning."""

    @property
    def metric(self) -> str:  # type: ignore[override]
        return "spearman" if self.options.loss in SCORED else "mrr"

    @property
    def score_names(self) -> tuple[str, ...]:
        return ("pearson", "spearman") if self.options.loss in SCORED else ("recall@1", "mrr")

    # ---- Creation

    @classmethod
    def from_examples(cls, train: Sequence[SimilarityExample], options: Settings) -> Self:
        """Return the task with a loss that suits the examples, and with their highest label.

        Args:
            train: Training examples.
            options: Options that the user set.

        Raises:
            ConfigError: If the loss does not support the examples or an option.
        """
        assert isinstance(options, SimilarityOptions)
        texts = {len(example.texts) for example in train}
        labeled = all(example.label is not None for example in train)
        loss = options.loss or ("cosine" if labeled and texts == {2} else "ranking")
        needs = {"triplet": (3, False), "margin_mse": (3, True)}
        least, label = (2, True) if loss in SCORED else needs.get(loss, (1, False))
        if min(texts) < least or (label and not labeled):
            lacks = "labels" if label and not labeled else "negatives" if least == 3 else "pairs"
            raise ConfigError(
                f"loss: {loss} requires {lacks}, but train has no {lacks}; use another loss"
            )
        for name, losses in LOSSES_OF_OPTIONS.items():
            if loss not in losses and getattr(options, name) != getattr(SimilarityOptions(), name):
                raise ConfigError(
                    f"{name}: requires loss {' or '.join(losses)}, got {loss}; remove {name}"
                )
        if options.dense is None and options.activation != SimilarityOptions().activation:
            raise ConfigError("activation: requires dense, the size of the linear layer; set dense")
        highest = options.highest
        if loss in SCORED and highest is None:
            highest = max(max(abs(e.label or 0.0) for e in train), 1e-9)
        return cls((), msgspec.structs.replace(options, loss=loss, highest=highest))

    def check(self, examples: Sequence[SimilarityExample]) -> None:
        first = examples[0]
        for example in examples:
            if len(example.texts) != len(first.texts):
                raise DataError(
                    f"{example.where}: {len(example.texts)} texts, but {len(first.texts)} in "
                    f"{first.where}; use the same number in all rows"
                )
            if self.options.loss in SCORED and example.label is None:
                raise DataError(f"{example.where}: no label; add a label, or set loss to ranking")

    def with_pooling(self, pooling: Pooling | None) -> Self:
        """Return the task with the pooling and prompts of the initial model, unless they are set.

        Raises:
            ConfigError: If the model has no prompt with the name that was set.
        """
        initial, options = pooling or Pooling(), self.options
        mode = options.pooling or initial.mode
        if options.pooling is None and options.dense is None and initial.dense is not None:
            options = msgspec.structs.replace(
                options, dense=initial.width(0), activation=initial.dense.activation
            )
        prompts, is_symmetric = initial.prompts, options.loss in (None, *SCORED)
        first = prompts.find(options.prompt, None if is_symmetric else QUERY)
        second = first if is_symmetric else prompts.find(None, DOCUMENT)
        if options.pair_prompt is not None:
            second = prompts.find(options.pair_prompt)
        if first or second:
            say(f"prompts: {first!r} for the first text, {second!r} for the others")
        elif prompts.known:
            say(f"prompt: none (the model has {prompts.known})")
        options = msgspec.structs.replace(options, pooling=mode, prompt=first, pair_prompt=second)
        task = type(self)((), options)
        task.initial_prompts, task.lowercase = prompts, initial.lowercase
        return task

    @property
    def prompts(self) -> Prompts:
        """Prompts of the trained model.

        They are the prompts of the initial model, but the prompts for queries and documents are
        those used in training. If training uses the same prompt for both, it is also the default
        prompt.
        """
        options, initial = self.options, self.initial_prompts
        first, second = options.prompt or "", options.pair_prompt or ""
        if options.loss in (None, *SCORED) and first == second == initial.find():
            return initial
        others = {name: text for name, text in initial.named.items() if name not in DOCUMENT}
        named = {**others, QUERY[0]: first, DOCUMENT[0]: second}
        if not any(named.values()):
            return msgspec.structs.replace(initial, named={}, default=None)
        default = initial.default if initial.default in named else None
        if first == second:
            default = QUERY[0] if first else None
        return msgspec.structs.replace(initial, named=named, default=default)

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
            raise ConfigError(f"dimensions: {longest} exceeds the embedding size, {width}")
        return Pool(pooling)

    # ---- Features, targets, and loss

    def features(
        self,
        examples: Sequence[SimilarityExample],
        tokenizer: Tokenizer,
        length: int,
        *,
        long: Long,
        labeled: bool,
    ) -> list[Feature]:
        """Encode all texts of each example for training, and otherwise its first two texts.

        Raises:
            DataError: If an example has only one text, unless `labeled` is set.
        """
        single = next((example for example in examples if len(example.texts) == 1), None)
        if single is not None and not labeled:
            raise DataError(f"{single.where}: only one text; pass a pair")
        first, second = self.options.prompt or "", self.options.pair_prompt or ""
        rows: list[tuple[int, int, str]] = []
        prompts: list[str] = []
        for number, example in enumerate(examples):
            texts = example.texts if labeled else example.texts[:2]
            pair_prompt = second
            if labeled and len(texts) == 1:
                # In SimCSE, a text is its own positive, with different dropout.
                texts, pair_prompt = (texts[0], texts[0]), first
            rows += [(number, position, text) for position, text in enumerate(texts)]
            prompts += [first, *[pair_prompt] * (len(texts) - 1)]
        encodings, _ = encode(
            tokenizer,
            [text for *_, text in rows],
            length=length,
            long=long,
            where=[examples[number].where for number, *_ in rows],
            prompts=prompts,
        )
        if labeled and self.options.loss == "ranking":
            seconds = _number_texts(
                e.ids for e, (_, position, _) in zip(encodings, rows, strict=True) if position == 1
            )
            copies = len(seconds) - len(set(seconds.tolist()))
            if copies:
                say(
                    f"similarity: {copies:,} of {len(seconds):,} second texts are duplicates; a "
                    "duplicate of the target is not used as a negative"
                )
        return [
            Feature(encoding, number, target=(pos, examples[number].label) if labeled else None)
            for encoding, (number, pos, _) in zip(encodings, rows, strict=True)
        ]

    def targets(self, features: Sequence[Feature]) -> Tensor:
        """Return the position of each text within its example, and the label of the example.

        Shapes:
            Returns (S, 2).
        """
        return torch.tensor([(f.target[0], f.target[1] or 0.0) for f in features])

    def outputs(self, model: Model, batch: Batch) -> Tensor:
        """Compute the embedding of each sequence.

        Shapes:
            Returns (S, D).
        """
        return compute_in_parts(super().outputs, model, batch)

    def loss_of(self, outputs: Tensor, batch: Batch, totals: Totals, head: nn.Module) -> Loss:
        """Compute the mean loss of the examples, also averaged over the sizes in `dimensions`."""
        assert batch.example is not None
        positions, labels = batch.targets[self.head].unbind(1)
        count = int(batch.example.max()) + 1
        texts = len(outputs) // count
        order = torch.argsort(batch.example * texts + positions.long())
        vectors, labels = outputs[order].unflatten(0, (count, texts)), labels[order][::texts]
        widths = {outputs.shape[1], *self.options.dimensions}
        copies = _copies_of_targets(batch, order.tolist(), texts)
        losses = [self._loss(vectors[..., :width], labels, copies) for width in sorted(widths)]
        loss = torch.stack(losses).mean() * len(outputs) / totals[self.head]
        return Loss(loss, {self.head: loss.detach()})

    def _loss(
        self, vectors: Tensor, labels: Tensor, copies: NDArray[np.bool_] | None = None
    ) -> Tensor:
        """Compute the loss for one embedding size.

        Shapes:
            vectors: (examples, texts, D); copies: (examples, candidates).
        """
        options = self.options
        first, *others = F.normalize(vectors, dim=-1).unbind(1)
        positive = (first * others[0]).sum(-1)
        match options.loss:
            case "cosine":
                return F.mse_loss(positive, labels / options.highest)
            case "cosent":
                gaps = options.scale * (positive[:, None] - positive)
                # Select all pairs of examples of which the second example has the higher label.
                ordered = gaps[labels[:, None] < labels]
                return torch.logsumexp(F.pad(ordered, (1, 0)), 0)
            case "triplet":
                negative = (first * others[1]).sum(-1)
                return F.relu(options.margin + negative - positive).mean()
            case "margin_mse":
                # The saved model normalizes embeddings, so the loss is computed from cosines. With
                # dot products, the norms of embeddings would also be trained.
                negative = (first * others[1]).sum(-1)
                return F.mse_loss(options.scale * (positive - negative), labels)
        scores = options.scale * first @ torch.cat(others).T
        if copies is not None and copies.any():
            scores = scores.masked_fill(torch.from_numpy(copies).to(scores.device), -torch.inf)
        return F.cross_entropy(scores, torch.arange(len(first), device=scores.device))

    # ---- Predictions and scores

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
        if len(examples) > 1 and not self._are_scored(examples):
            numbers = _number_texts(item.features[1].encoding.ids for item in outputs)
            ranks = list(_ranks(first, second, numbers))
        return [
            SimilarityAnswer(score, rank, item.truncated)
            for score, rank, item in zip(scores.tolist(), ranks, outputs, strict=True)
        ]

    def _are_scored(self, examples: Sequence[SimilarityExample]) -> bool:
        """Return whether the examples are scored by their labels instead of being ranked."""
        labeled = all(example.label is not None for example in examples)
        return labeled and self.options.loss in (None, *SCORED)

    def score(
        self, answers: Sequence[SimilarityAnswer], examples: Sequence[SimilarityExample]
    ) -> dict[str, float]:
        """Compute the scores of the cosine similarities.

        If all examples have labels, the scores are the Pearson and Spearman correlations with the
        labels. If the pairs are ranked, recall and MRR are also computed. Rows with equal texts
        count only once in recall and MRR.
        """
        labels = [example.label for example in examples if example.label is not None]
        labeled = len(labels) == len(examples)
        scores = metrics.regression([a.score for a in answers], labels) if labeled else {}
        if not self._are_scored(examples):
            rows = zip(answers, examples, strict=True)
            ranks = {example.texts[:2]: answer.rank or 1 for answer, example in rows}
            scores |= metrics.ranking([*ranks.values()], of=len({texts[-1] for texts in ranks}))
        return scores

    def chance(self, examples: Sequence[SimilarityExample]) -> Mapping[str, float]:
        if self._are_scored(examples):
            return {"spearman": 0.0} if len({example.label for example in examples}) > 1 else {}
        return {"mrr": metrics.random_mrr(len({example.texts[1] for example in examples}))}

    def error_record(self, answer: SimilarityAnswer, example: SimilarityExample) -> ErrorRecord:
        shown = " ⟷ ".join(example.texts[:2])
        if example.label is None:
            rank = answer.rank or 1
            return ErrorRecord(shown, "rank 1", f"rank {rank}", 1.0 - 1.0 / rank)
        expected = example.label / (self.options.highest or 1.0)
        return ErrorRecord(
            shown, f"{expected:.2f}", f"{answer.score:.2f}", abs(expected - answer.score)
        )


def _copies_of_targets(batch: Batch, order: Sequence[int], texts: int) -> NDArray[np.bool_]:
    """Find candidates of each example that have the same tokens as its target, but are not it.

    Args:
        batch: The sequences.
        order: Indices of the sequences, sorted by example and then by position in the example.
        texts: Number of texts per example.

    Shapes:
        Returns (examples, candidates). The candidates are all second texts, then all third texts,
        and so on.
    """
    ids, bounds = batch.ids.cpu().numpy(), batch.layout.cu_seqlens.tolist()
    table = _number_texts(ids[bounds[i] : bounds[i + 1]] for i in order).reshape(-1, texts)
    copies: NDArray[np.bool_] = table[:, 1:2] == table[:, 1:].T.reshape(1, -1)
    np.fill_diagonal(copies, val=False)
    return copies


def _number_texts(texts: Iterable[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return a number for each sequence of token ids. Equal sequences have equal numbers."""
    numbers: dict[bytes, int] = {}
    return np.array([numbers.setdefault(ids.tobytes(), len(numbers)) for ids in texts])


def _ranks(
    first: NDArray[np.float32], second: NDArray[np.float32], numbers: NDArray[np.int64]
) -> list[int]:
    """Return the rank of each second text among all different ones. Ties count against it."""
    second = second[np.unique(numbers, return_index=True)[1]]
    ranks: list[int] = []
    for start in range(0, len(first), 1024):
        scores = first[start : start + 1024] @ second.T
        targets = scores[np.arange(len(scores)), numbers[start : start + len(scores)]]
        ranks += (scores >= targets[:, None]).sum(1).tolist()
    return ranks


def _parse_label(text: str, where: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not np.isfinite(number):
        raise DataError(f"{where}: label {text!r} is not a number; fix it or set --label-column")
    return number
