"""Classification and regression of texts and pairs of texts. Devlin et al. 2019, section 4.1."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from bertkit import metrics
from bertkit.config import Settings
from bertkit.data.labels import (
    canonical_label,
    check_separators,
    join_labels,
    label_sort_key,
    number,
    parse_labels,
    without_fractions,
)
from bertkit.errors import CheckpointError, ConfigError, DataError, did_you_mean
from bertkit.tasks.calibration import (
    apply_temperature,
    best_threshold,
    calibration_error,
    fit_temperature,
    softmax,
)
from bertkit.tasks.capabilities import Calibrated, ChanceLevel, Labeled
from bertkit.tasks.confusion import LabelPair
from bertkit.tasks.contrastive import Contrastive, check_rows
from bertkit.tasks.labeled_text import (
    PROBLEMS,
    ClassifyOptions,
    LabelAnswer,
    LabeledTextReader,
    LabelExample,
    LabelsAnswer,
    label_of,
)
from bertkit.tasks.task import ErrorRecord, ExampleOutput, Feature, Serving
from bertkit.text.long_texts import Long, average_windows, encode
from bertkit.text.tokenizer import Tokenizer

if TYPE_CHECKING:  # An exported model makes predictions without torch.
    from torch import Tensor, nn

    from bertkit.batch import Batch
    from bertkit.objectives.loss import Loss, Totals

Prediction = LabelAnswer | LabelsAnswer
"""Prediction for a text: `LabelAnswer` for one label or a number, `LabelsAnswer` for several
labels."""

LABELS_OF_OPTIONS = {
    "calibrate": ("one label per text",),
    "temperature": ("one label per text",),
    "threshold": ("several labels", "two labels"),
    "tune_threshold": ("two labels",),
    "thresholds": ("several labels",),
    "class_weights": ("one label per text", "several labels"),
}
"""Types of labels that each option supports. Other options support all types."""


class Classify(Contrastive[LabelExample, Prediction], Calibrated, ChanceLevel, Labeled):
    """Classification of texts or text pairs: one label, several labels, or a number (regression).

    The head computes a softmax, a sigmoid for each label, or a number.
    """

    name = "classify"
    reader = LabeledTextReader()
    Options = ClassifyOptions
    serving = Serving(Prediction, "A fine film.", "/predict")
    long = ("error", "truncate", "window")
    _origin = "in the training file"
    """Description of the known labels that completes the message "label 'x' is not ..."."""

    def __init__(self, labels: Sequence[str] = (), options: Settings | None = None) -> None:
        super().__init__(labels, options)
        self.index = {label: index for index, label in enumerate(self.labels)}

    @property
    def metric(self) -> str:  # type: ignore[override]
        if self.options.regression:
            return "pearson"
        return "f1_micro" if self.options.multi_label else "accuracy"

    @property
    def batching(self) -> Literal["sequence", "example", "step"]:  # type: ignore[override]
        if self.options.contrastive:
            return "step"
        return "example" if self.options.both_orders else "sequence"

    @classmethod
    def from_examples(cls, train: Sequence[LabelExample], options: Settings) -> Self:
        """Return the task with the labels of the training examples.

        By default, the task is a regression if all labels are numbers and at least one has a
        fraction. If all labels are JSON lists, a text can have several labels.

        Args:
            train: Training examples.
            options: Options that the user set.

        Raises:
            ConfigError: If options cannot be combined.
            DataError: If an option does not support the labels, or there are fewer than two labels.
        """
        assert isinstance(options, ClassifyOptions)
        asked, options = options.multi_label, _with_defaults(options, train)
        if options.regression:
            return cls(("score",), options)
        task = cls((), options)
        written = {label for example in train for label in task.labels_of(example)}
        if asked is not False:
            several = bool(options.multi_label)
            check_separators({label_of(example) for example in train}, written, several=several)
        task = cls(sorted(without_fractions(written), key=label_sort_key), options)
        counts = Counter(label for example in train for label in task.labels_of(example))
        _check_labels(task.labels, counts, options, train)
        if options.class_weights == "balanced":
            task.weights = _balanced_weights(task.labels, counts, len(train), options)
        return task

    @classmethod
    def restore(cls, labels: Sequence[str], settings: Mapping[str, Any]) -> Self:
        task = super().restore(labels, settings)
        kind = settings.get("problem_type")
        if kind == PROBLEMS["regression"] and len(labels) > 1:
            raise CheckpointError(
                f"config.json: a regression with {len(labels)} outputs is not supported; use a "
                "model with one output"
            )
        if task.options.thresholds and len(task.options.thresholds) != len(labels):
            raise CheckpointError(
                f"config.json: {len(task.options.thresholds)} thresholds for {len(labels)} labels"
            )
        task._origin = "a label of the model"
        task.options = msgspec.structs.replace(
            task.options,
            regression=len(labels) == 1 and kind != PROBLEMS["multi_label"],
            multi_label=kind == PROBLEMS["multi_label"],
        )
        return task

    def settings(self) -> dict[str, Any]:
        kinds = [kind for kind in PROBLEMS if kind != "single" and getattr(self.options, kind)]
        return {**super().settings(), "problem_type": PROBLEMS[(*kinds, "single")[0]]}

    def labels_of(self, example: LabelExample) -> list[str]:
        """Return the labels of an example, in the spelling of the task's labels.

        A regression has no labels.

        Raises:
            DataError: If a list of labels is malformed.
        """
        written = label_of(example)
        if self.options.regression:
            return []
        labels = parse_labels(written, example.where) if self.options.multi_label else [written]
        return list(dict.fromkeys(canonical_label(label, self.index) for label in labels))

    def target(self, example: LabelExample) -> float | int | list[float]:
        """Return the target of an example for the loss.

        Returns:
            The number (regression), 0 or 1 for each label (several labels per text), or the index
            of the label (one label per text).

        Raises:
            DataError: If a label is unknown, or is not a number in a regression.
        """
        if self.options.regression:
            quantity = number(label_of(example))
            if quantity is None:
                raise DataError(f"{example.where}: label {example.label!r} is not a number")
            return quantity
        labels = self.labels_of(example)
        for label in labels:
            if label not in self.index:
                raise DataError(
                    f"{example.where}: label {label!r} is not {self._origin}; "
                    f"{did_you_mean(label, self.labels)}"
                )
        if self.options.multi_label:
            return [float(label in labels) for label in self.labels]
        return self.index[labels[0]]

    def check(self, examples: Sequence[LabelExample]) -> None:
        for example in examples:
            self._check_pair(example)
            self.target(example)

    def _check_pair(self, example: LabelExample) -> None:
        """Check that an example is a pair or a single text, as in training."""
        if self.options.pairs is not None and self.options.pairs != (example.pair is not None):
            actual, expected = (
                ("a pair", "a single text") if example.pair else ("a single text", "a pair")
            )
            raise DataError(
                f"{example.where}: expected {expected}, got {actual}; the second text of a pair is "
                "--pair, the second item of a tuple, or a column of the file"
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
        for example in examples:
            self._check_pair(example)
        pairs = [example.pair for example in examples if example.pair is not None]
        if pairs and len(pairs) < len(examples):
            single = next(example for example in examples if example.pair is None)
            raise DataError(f"{single.where}: no second text, unlike other rows; pass only pairs")
        texts = [example.text for example in examples]
        where = [example.where for example in examples]
        orders = [(texts, pairs)] + [(pairs, texts)] * self.options.both_orders
        encoded = [
            encode(tokenizer, first, second or None, length=length, long=long, where=where)
            for first, second in orders
        ]
        features = [
            Feature(encoding, index, target=self.target(examples[index]) if labeled else None)
            for encodings, owners in encoded
            for encoding, index in zip(encodings, owners, strict=True)
        ]
        return sorted(features, key=lambda feature: feature.example)

    def targets(self, features: Sequence[Feature]) -> Tensor:
        """Return a target for each feature, or for each example if `both_orders` is set."""
        import torch

        if self.options.both_orders:
            features = [f for _, f in sorted({f.example: f for f in features}.items())]
        dtype = torch.int64 if self.single_label else torch.float32
        return torch.tensor([feature.target for feature in features], dtype=dtype)

    @property
    def single_label(self) -> bool:  # type: ignore[override]
        return not (self.options.regression or self.options.multi_label)

    def loss_of(self, outputs: Tensor, batch: Batch, totals: Totals, head: nn.Module) -> Loss:
        """Compute the loss, averaged over the step.

        It is the cross-entropy for one label per text, the binary cross-entropy for several labels,
        and the squared error in a regression. In contrastive training, it is the contrastive loss.
        """
        from torch.nn import functional as F

        from bertkit.objectives.loss import Loss

        targets = batch.targets[self.head]
        if self.options.contrastive and head.training:
            from bertkit.objectives.contrastive import contrastive_loss

            assert batch.example is not None
            share = len(targets) / totals[self.head]
            loss = share * contrastive_loss(outputs, targets, batch.example)
            return Loss(loss, {self.head: loss.detach()})
        if self.options.both_orders:
            assert batch.example is not None
            sums = outputs.new_zeros(len(targets), outputs.shape[1])
            outputs = sums.index_add(0, batch.example, outputs)
        weights = None if self.weights is None else self.weights.to(outputs.device)
        correct = {}
        if self.options.regression:
            loss = F.mse_loss(outputs.squeeze(1), targets, reduction="sum")
        elif self.options.multi_label:
            loss = F.binary_cross_entropy_with_logits(
                outputs, targets, pos_weight=weights, reduction="sum"
            )
            loss = loss / len(self.labels)
        else:
            loss = F.cross_entropy(outputs, targets, weights, reduction="sum")
            correct[self.head] = (outputs.argmax(-1) == targets).sum()
        loss = loss / totals[self.head]
        return Loss(loss, {self.head: loss.detach()}, correct)

    def answers(
        self, outputs: Sequence[ExampleOutput[LabelExample]], head: nn.Module
    ) -> list[Prediction]:
        """Predict from the logits of each text.

        The logits of the windows of a text are averaged with the window lengths as weights. If
        `both_orders` is set, the logits of both orders are added.
        """
        orders = 1 + self.options.both_orders
        features = [feature for item in outputs for feature in item.features]
        owners = [index for index, item in enumerate(outputs) for _ in item.features]
        rows = np.concatenate([rows for item in outputs for rows in item.outputs])
        scores = average_windows(rows, [f.encoding for f in features], owners) * np.float32(orders)
        if self.options.multi_label:
            # This is a sigmoid that does not overflow.
            scores = np.exp(-np.logaddexp(0, -scores))
        elif not self.options.regression:
            scores = softmax(scores / np.float32(self.options.temperature or 1.0))
        return list(map(self._answer, scores.tolist(), (item.truncated for item in outputs)))

    def _answer(self, row: list[float], truncated: bool) -> Prediction:
        scores = dict(zip(self.labels, row, strict=True))
        if self.options.multi_label:
            default = 0.5 if self.options.threshold is None else self.options.threshold
            thresholds = self.options.thresholds or [default] * len(row)
            items = zip(scores.items(), thresholds, strict=True)
            labels = [label for (label, score), threshold in items if score >= threshold]
            labels.sort(key=lambda label: -scores[label])
            return LabelsAnswer(labels, scores, truncated)
        label = max(scores, key=scores.__getitem__)
        if (threshold := self._binary_threshold()) is not None:
            label = self.labels[row[1] >= threshold]
        return LabelAnswer(label, scores[label], scores, truncated)

    def _binary_threshold(self) -> float | None:
        """Return the threshold of the second of two labels.

        If the result is None, the most probable label is predicted.
        """
        if not self._is_binary:
            return None
        options = cast(ClassifyOptions, self.options)
        return options.thresholds[1] if options.thresholds else options.threshold

    @property
    def _is_binary(self) -> bool:
        return self.single_label and len(self.labels) == 2

    def uncalibrated(self) -> Settings:
        options: Settings = msgspec.structs.replace(self.options, thresholds=(), temperature=None)
        return options

    def calibrated(self, answers: Sequence[Prediction], examples: Sequence[LabelExample]) -> Self:
        """Return the task after optimizing thresholds or a temperature that are not set."""
        options = self.options
        if options.multi_label and options.threshold is None and not options.thresholds:
            expected = np.array([self.target(example) for example in examples]) > 0
            scores = self._probabilities(answers)
            thresholds = tuple(map(best_threshold, scores.T, expected.T))
            options = msgspec.structs.replace(options, thresholds=thresholds)
        elif self.single_label and options.calibrate and options.temperature is None:
            targets = np.array([self.target(example) for example in examples])
            temperature = fit_temperature(self._probabilities(answers), targets)
            options = msgspec.structs.replace(options, temperature=temperature)
        if self._is_binary and options.tune_threshold and not options.thresholds:
            scores = self._probabilities(answers)
            if options.temperature != self.options.temperature:
                scores = apply_temperature(scores, options.temperature)
            expected = np.array([self.target(example) for example in examples]) == 1
            threshold = best_threshold(scores[:, 1], expected)
            options = msgspec.structs.replace(options, thresholds=(1.0 - threshold, threshold))
        return self if options is self.options else type(self)(self.labels, options)

    def chosen_on(self, before: Self) -> bool:
        return bool(self.options.thresholds != before.options.thresholds)

    def calibration(
        self, answers: Sequence[Prediction], examples: Sequence[LabelExample]
    ) -> dict[str, float]:
        if not (self.single_label and self.options.calibrate):
            return {}
        targets, temperature = [self.target(e) for e in examples], self.options.temperature or 1.0
        after = self._probabilities(answers)
        right = after.argmax(-1) == targets
        before = apply_temperature(after, 1 / temperature)
        return {
            "temperature": temperature,
            "error": calibration_error(after.max(-1), right),
            "error_before": calibration_error(before.max(-1), right),
        }

    def _probabilities(self, answers: Sequence[Prediction]) -> NDArray[np.float64]:
        """Return the scores of all labels in each prediction. Shapes: returns (N, L)."""
        return np.array([[answer.scores[label] for label in self.labels] for answer in answers])

    def score(
        self, answers: Sequence[Prediction], examples: Sequence[LabelExample]
    ) -> dict[str, float]:
        """Compute the scores of the predictions.

        In a regression, they are the Pearson and Spearman correlations. If a text can have several
        labels, they are F1 scores and the exact match. Otherwise, they are the accuracy, F1, and
        the Matthews correlation. If there are only two labels, the scores of `metrics.binary` are
        added.
        """
        if self.options.regression:
            numbers = [cast(LabelAnswer, answer).score for answer in answers]
            return metrics.regression(numbers, [float(label_of(e)) for e in examples])
        actual = [self.labels_of(example) for example in examples]
        if self.options.multi_label:
            return metrics.multi_label([cast(LabelsAnswer, a).labels for a in answers], actual)
        predicted = [cast(LabelAnswer, answer).label for answer in answers]
        expected = [names[0] for names in actual]
        scores = metrics.classification(predicted, expected, self.labels)
        if self._is_binary:
            positive = self.labels[1]
            probabilities = [answer.scores[positive] for answer in answers]
            scores |= metrics.binary(predicted, probabilities, expected, positive)
        return scores

    def chance(self, examples: Sequence[LabelExample]) -> Mapping[str, float]:
        if len({label_of(example) for example in examples}) < 2:
            return {}
        if self.options.regression:
            return {"pearson": 0.0}
        if not self.options.multi_label:
            return {"matthews": 0.0}
        counts = Counter(label for example in examples for label in self.labels_of(example))
        # The baseline predicts the n most frequent labels for every row, where n is the number
        # with the best score.
        right = np.cumsum(sorted(counts.values(), reverse=True))
        predicted = np.arange(1, len(right) + 1) * len(examples)
        return {"f1_micro": float((2 * right / (predicted + right[-1])).max())} if counts else {}

    @property
    def score_names(self) -> tuple[str, ...]:
        if self.options.regression:
            return "pearson", "spearman"
        if self.options.multi_label:
            return "f1_micro", "f1_macro", "exact"
        names = ("accuracy", "f1", "matthews")
        return (*names, *metrics.BINARY) if self._is_binary else names

    @property
    def labels_compete(self) -> bool:  # type: ignore[override]
        return not self.options.multi_label

    def label_pairs(self, answer: Prediction, example: LabelExample) -> Sequence[LabelPair]:
        """Return the expected and the predicted label.

        If a text can have several labels, return a pair for each label that is expected or
        predicted. The first item is None if the label is not expected, and the second item is None
        if it is not predicted.
        """
        if self.options.regression:
            return ()
        expected = self.labels_of(example)
        if isinstance(answer, LabelAnswer):
            return [(expected[0], answer.label)]
        return [
            (label if label in expected else None, label if label in answer.labels else None)
            for label in dict.fromkeys([*expected, *answer.labels])
        ]

    def error_record(self, answer: Prediction, example: LabelExample) -> ErrorRecord:
        shown = example.text if example.pair is None else f"{example.text} ⟷ {example.pair}"
        label = label_of(example)
        if self.options.regression:
            assert isinstance(answer, LabelAnswer)
            difference = abs(answer.score - float(label))
            return ErrorRecord(shown, label, f"{answer.score:.2f}", difference)
        labels = self.labels_of(example)
        if isinstance(answer, LabelsAnswer):
            wrong = set(labels) ^ set(answer.labels)
            severity = sum(abs((name in labels) - answer.scores[name]) for name in wrong)
            return ErrorRecord(shown, join_labels(labels), join_labels(answer.labels), severity)
        severity = 0.0 if answer.label == labels[0] else 1.0 - answer.scores[labels[0]]
        return ErrorRecord(shown, labels[0], f"{answer.label} ({answer.score:.2f})", severity)


def _with_defaults(options: ClassifyOptions, train: Sequence[LabelExample]) -> ClassifyOptions:
    """Return the options. Options that are not set are inferred from the examples.

    Raises:
        ConfigError: If options cannot be combined.
        DataError: If an option does not support the labels.
    """
    written = {label_of(example) for example in train}
    multi = options.multi_label
    if multi is None:
        multi = all(label.startswith("[") for label in written)
    numbers = [number(label) for label in written]
    regression = options.regression
    if regression is None:
        regression = all(n is not None for n in numbers) and any(
            n != int(n) for n in numbers if n is not None
        )
    if regression and multi:
        raise DataError("regression cannot be combined with multi_label; set one of them")
    kind = "numbers" if regression else "several labels" if multi else "one label per text"
    present = {kind}
    if kind == "one label per text" and len(without_fractions(written)) == 2:
        present.add("two labels")
    default = ClassifyOptions()
    for name, kinds in LABELS_OF_OPTIONS.items():
        if not present.intersection(kinds) and getattr(options, name) != getattr(default, name):
            raise DataError(f"{name}: requires {' or '.join(kinds)}, but train has {kind}")
    if options.tune_threshold and options.threshold is not None:
        raise ConfigError("tune_threshold cannot be combined with threshold; set one of them")
    pairs = options.pairs if options.pairs is not None else train[0].pair is not None
    if options.both_orders and not pairs:
        raise DataError("both_orders: requires pairs, but train has single texts; omit the option")
    if options.contrastive and (regression or multi or pairs):
        kind = "numbers" if regression else "several labels" if multi else "pairs of texts"
        raise DataError(f"contrastive: requires single texts with one label, but train has {kind}")
    return msgspec.structs.replace(options, pairs=pairs, regression=regression, multi_label=multi)


def _check_labels(
    labels: Sequence[str],
    counts: Mapping[str, int],
    options: ClassifyOptions,
    train: Sequence[LabelExample],
) -> None:
    """Check the number of labels and of thresholds, and the number of examples of each label."""
    rows = train[0].where.rpartition(":")[0] or "train"
    if len(labels) < (1 if options.multi_label else 2):
        only = f"only one label, {labels[0]!r}" if labels else "no labels"
        raise DataError(f"{rows}: {only}; add examples of at least two labels")
    if options.contrastive:
        check_rows(counts, rows)
    if options.thresholds and len(options.thresholds) != len(labels):
        raise DataError(
            f"thresholds: {len(options.thresholds)} thresholds for {len(labels)} labels; set one "
            "per label, or none to optimize them on dev"
        )


def _balanced_weights(
    labels: Sequence[str], counts: Mapping[str, int], num_rows: int, options: ClassifyOptions
) -> Tensor:
    """Return weights that balance rare and frequent labels. Shapes: returns (L,).

    A weight is inversely proportional to the frequency of its label. If a text can have several
    labels, it is the number of texts without the label, divided by the number of texts with it.
    """
    import torch

    num_examples = np.array([counts[label] for label in labels])
    weights = (
        np.maximum(num_rows - num_examples, 1) / num_examples
        if options.multi_label
        else num_rows / (len(labels) * num_examples)
    )
    return torch.tensor(weights, dtype=torch.float32)
