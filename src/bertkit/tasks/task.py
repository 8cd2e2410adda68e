"""Base class of tasks: examples -> features -> loss; outputs -> predictions -> scores.

A task is a class in one file. It encodes examples, computes the loss, and converts outputs of its
head to typed predictions. Training, evaluation, prediction, and the command line are the same for
all tasks. `bertkit.tasks.capabilities` contains base classes for optional features of tasks. The
name of a third-party task is `module:Class`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, Self, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from bertkit.config import Settings, decode, plain
from bertkit.errors import CheckpointError, ConfigError
from bertkit.tasks.table import TASKS
from bertkit.text.encoding import Encoding
from bertkit.text.long_texts import Long
from bertkit.text.tokenizer import Tokenizer

if TYPE_CHECKING:  # An exported model makes predictions without torch.
    from torch import Tensor, nn

    from bertkit.batch import Batch
    from bertkit.data.row_readers import Source
    from bertkit.engine.engine import Engine
    from bertkit.models.model import Model
    from bertkit.models.transformer import Transformer
    from bertkit.objectives.loss import Loss, Totals

Outputs = NDArray[np.float32]
"""Outputs of the head for one feature: (L,) for a sequence, (T, L) for its tokens or positions."""


Item = str | tuple[str, str | Sequence[str]]
"""Input of a prediction: a text, or a text with a second text, a context, or choices."""


class Reading(Settings, frozen=True):
    """Columns and format of a file of rows."""

    text_column: str | None = None
    """Column of the text, or of the first text of a pair. Default: a column with a known name."""
    pair_column: str | None = None
    """Column of the second text. Default: a column with a known name, unless text_column is set."""
    label_column: str | None = None
    """Column of the label. For several labels per text: columns of 0 and 1, separated by commas.
    Default: a column with a known name."""
    header: bool = True
    """Whether the first line contains the names of the columns. If false, columns are called 1, 2,
    and so on."""
    separator: str | None = None
    """Character that separates columns, tab, or space to split a line after its first word.
    Default: a comma in .csv, otherwise a tab."""

    def options(self) -> dict[str, str]:
        """Return the settings that differ from their defaults, as command-line options."""
        default = Reading()
        return {
            name: f"--{name.replace('_', '-')}"
            for name in self.__struct_fields__
            if getattr(self, name) != getattr(default, name)
        }


class NoOptions(Settings, frozen=True):
    """Options of a task without options."""


class JsonObject(Settings, frozen=True, kw_only=True):
    """Object in the body of a request."""


@dataclass(frozen=True)
class Feature:
    """Input sequence for an example.

    Args:
        encoding: Tokens of the sequence.
        example: Index of the example.
        token_indices: Tokens that the head predicts for, if it predicts for selected tokens.
        target: Target of the loss; None for predictions.
        teacher_outputs: Outputs of a teacher, with the rows of the outputs of the head.
        source: Input of the encoder, if `encoding` is the input of a decoder.
    """

    encoding: Encoding
    example: int
    token_indices: NDArray[np.int64] | None = None
    target: Any = None
    teacher_outputs: NDArray[np.float32] | None = None
    source: Encoding | None = None

    @property
    def tokens(self) -> int:
        """Number of tokens, including the source."""
        return len(self.encoding) + (0 if self.source is None else len(self.source))

    @property
    def truncated(self) -> bool:
        """Whether the sequence or its source was truncated."""
        return self.encoding.truncated or (self.source is not None and self.source.truncated)


@dataclass(frozen=True)
class ErrorRecord:
    """Prediction and expected value of an example, for the list of errors.

    Args:
        shown: Input.
        expected: Expected value.
        answered: Prediction.
        severity: 0 for a correct prediction; larger for a worse one.
    """

    shown: str
    expected: str
    answered: str
    severity: float


class Placed(Protocol):
    """Object with a location: file and line, for messages and the list of errors."""

    @property
    def where(self) -> str: ...


E = TypeVar("E", bound=Placed)
"""Type of an example."""
A = TypeVar("A", bound=msgspec.Struct)
"""Type of a prediction."""


class Reader(ABC, Generic[E]):
    """Examples of a task, from files, rows in memory, and items of pipelines."""

    @abstractmethod
    def read(self, source: Source, reading: Reading, *, labeled: bool) -> tuple[list[E], str]:
        """Return the examples of a file or of rows, and a message about how they were read.

        Args:
            source: The file or rows.
            reading: Columns and format.
            labeled: Whether the examples need labels.

        Raises:
            DataError: If a row cannot be used; the message contains its location.
        """

    @abstractmethod
    def example(self, text: str, others: Sequence[str]) -> E:
        """Return an example without a label, from an item of a pipeline.

        Args:
            text: The text, or the first text of the item.
            others: The other texts of the item.

        Raises:
            DataError: If a text is empty, or the number of texts is wrong.
        """

    def key(self, example: E) -> Hashable:
        """Return the input without the label; examples with equal keys are duplicates."""
        return repr(example).replace(repr(example.where), "")

    def group(self, example: E) -> Hashable:
        """Return the origin of an example, such as a context; a group is held out as a whole."""
        return self.key(example)


@dataclass(frozen=True)
class ExampleOutput(Generic[E]):
    """Example with its features and the outputs of the head.

    Shapes:
        outputs[i]: (rows, L), the outputs for features[i].
    """

    example: E
    features: Sequence[Feature]
    outputs: Sequence[Outputs]

    @property
    def truncated(self) -> bool:
        """Whether a feature was truncated."""
        return any(feature.truncated for feature in self.features)


@dataclass(frozen=True)
class Serving:
    """Requests and predictions of a task in pipelines and servers.

    Args:
        prediction: Type of a prediction.
        example: Example of an item that the task predicts for. If an item consists of several
            texts: the texts by their names in requests.
        route: Path of the task on a server, such as /ner. A server does not offer a task without a
            path.
    """

    prediction: Any = Any
    example: str | Mapping[str, str | tuple[str, ...]] = "The cat sat on the mat."
    route: str = ""


class Task(ABC, Generic[E, A]):
    """Base class of tasks.

    `config.json` of a model contains the labels and the options of its task.

    Args:
        labels: Names of the outputs of the head, if they have names.
        options: Options, an `Options` object. Default: `Options()`.
    """

    name: ClassVar[str]
    """Name of the command, the pipeline, and the head."""
    metric: str
    """Name of the score that selects the best epoch; larger is better."""
    reader: ClassVar[Reader[Any]]
    """Reader of the examples."""
    Options: ClassVar[type[Settings]] = NoOptions
    """Type of the options; each field is an option of `bertkit finetune`."""
    long: ClassVar[tuple[Long, ...]] = ("error", "truncate")
    """Supported policies for texts longer than the maximum length, the default first."""
    serving: ClassVar[Serving] = Serving()
    """Requests and predictions in pipelines and servers."""
    batching: ClassVar[Literal["sequence", "example", "step"]] = "sequence"
    """Sequences that must be in one training batch. `sequence`: no constraint. `example`: all
    sequences of an example (choices). `step`: all sequences of a step (texts that are compared)."""

    def __init__(self, labels: Sequence[str] = (), options: Settings | None = None) -> None:
        self.labels = tuple(labels)
        self.options: Any = self.Options() if options is None else options

    # ---- Creation

    @classmethod
    def from_examples(cls, train: Sequence[E], options: Settings) -> Self:
        """Return the task for training examples, for example with their labels.

        Args:
            train: Training examples.
            options: Options that the user set.

        Raises:
            DataError: If the task cannot be trained on the examples.
        """
        return cls((), options)

    @classmethod
    def restore(cls, labels: Sequence[str], settings: Mapping[str, Any]) -> Self:
        """Return the task of a model directory.

        Args:
            labels: Labels of the model.
            settings: Content of `config.json`.

        Raises:
            CheckpointError: If the options are invalid.
        """
        record = settings.get("bertkit", {}).get("task", {})
        try:
            options = decode(cls.Options, record.get("options", {}), "bertkit.task.options")
        except (ConfigError, AttributeError) as error:
            raise CheckpointError(f"config.json: {error}") from None
        return cls(labels, options)

    def settings(self) -> dict[str, Any]:
        """Return the keys of `config.json` from which `restore` builds the task."""
        record = {"name": full_name(type(self)), "options": plain(self.options)}
        return {"bertkit": {"task": record}}

    # ---- Training

    @property
    def head(self) -> str:
        """Name of the head in the model. Default: the name of the task."""
        return self.name

    def build_head(self, encoder: Transformer) -> nn.Module:
        """Return a newly initialized head. Override it for a head that bertkit does not have."""
        from bertkit.models import model as models

        return models.head(self.head, encoder, self.labels)

    def check(self, examples: Sequence[E]) -> None:
        """Check that examples can be scored, for example that their labels are known.

        Args:
            examples: Labeled examples.

        Raises:
            DataError: If an example cannot be scored; the message contains its location.
        """

    @abstractmethod
    def features(
        self, examples: Sequence[E], tokenizer: Tokenizer, length: int, *, long: Long, labeled: bool
    ) -> list[Feature]:
        """Encode examples as one or more sequences each, in the order of the examples.

        Args:
            examples: The examples.
            tokenizer: Tokenizer of the model.
            length: Maximum number of tokens of a sequence.
            long: Policy for texts longer than the maximum length.
            labeled: Whether to add targets.

        Raises:
            DataError: If a text is too long and the policy is `error`.
        """

    @abstractmethod
    def targets(self, features: Sequence[Feature]) -> Tensor:
        """Return the targets of a batch of features as one tensor."""

    @abstractmethod
    def loss_of(self, outputs: Tensor, batch: Batch, totals: Totals, head: nn.Module) -> Loss:
        """Compute the contribution of a batch to the loss of a step.

        Args:
            outputs: Result of `outputs`.
            batch: The batch, with targets.
            totals: Number of targets in the step, by head.
            head: Head of the model, for losses with weights (CRF).
        """

    def loss(self, model: Model, batch: Batch, totals: Totals) -> Loss:
        """Compute the loss from the states of a model; see `loss_of`."""
        return self.loss_of(self.outputs(model, batch), batch, totals, model.heads[self.head])

    def outputs(self, model: Model, batch: Batch) -> Tensor:
        """Compute the outputs of the head in fp32.

        Shapes:
            Returns (S, L) for sequences, (N, L) for tokens, or (P, L) for selected tokens.
        """
        out: Tensor = model.heads[self.head](model.states(batch), batch)
        return out.float()

    # ---- Prediction

    @abstractmethod
    def answers(self, outputs: Sequence[ExampleOutput[E]], head: nn.Module) -> list[A]:
        """Return a prediction for each example.

        Args:
            outputs: Examples with the outputs of the head.
            head: Head of the model, for decoding with weights (CRF).
        """

    @abstractmethod
    def score(self, answers: Sequence[A], examples: Sequence[E]) -> dict[str, float]:
        """Compute the scores of predictions by name.

        Args:
            answers: Predictions.
            examples: Labeled examples.
        """

    @property
    def score_names(self) -> tuple[str, ...]:
        """Names of the scores that `--metric` supports; larger is better."""
        return (self.metric,)

    @abstractmethod
    def error_record(self, answer: A, example: E) -> ErrorRecord:
        """Return the prediction and the expected value of an example, for `errors.html`."""


def policy_of_files(task: Task[Any, Any]) -> Long:
    """Return what to do with long texts of a file: truncate them if the task supports it."""
    return "truncate" if "truncate" in task.long else task.long[0]


def full_name(task: type[Task[Any, Any]]) -> str:
    """Return the name of a task of bertkit or of an extension, else `module:Class`."""
    path = f"{task.__module__}:{task.__qualname__}"
    return task.name if is_builtin(task) or path in TASKS.paths.values() else path


def is_builtin(task: type[Task[Any, Any]]) -> bool:
    """Return whether a task is part of bertkit."""
    return task.__module__.startswith("bertkit.")


def make_batch(task: Task[Any, Any], features: Sequence[Feature]) -> Batch:
    """Return a batch of features, with targets if they have any.

    Args:
        task: The task.
        features: Features; the batch contains the shortest first.
    """
    import torch

    from bertkit.batch import Batch
    from bertkit.objectives.distill import TEACHER_OUTPUTS

    features = sorted(features, key=lambda feature: len(feature.encoding))
    chosen = [f.token_indices for f in features if f.token_indices is not None]
    targets, example = {}, None
    if features[0].target is not None:
        targets[task.head] = task.targets(features)
    if features[0].teacher_outputs is not None:
        targets[TEACHER_OUTPUTS] = torch.from_numpy(
            np.concatenate([f.teacher_outputs for f in features])
        )
    if task.batching != "sequence":
        _, numbers = np.unique([f.example for f in features], return_inverse=True)
        example = torch.from_numpy(numbers)
    return Batch.of(
        [f.encoding for f in features],
        token_indices=chosen or None,
        targets=targets,
        example=example,
        sources=_sources(features),
    )


def run_head(task: Task[Any, Any], engine: Engine, features: Sequence[Feature]) -> list[Outputs]:
    """Compute the outputs of the head for each feature, in order.

    Args:
        task: The task.
        engine: Engine with a model that has the head of the task.
        features: The features.
    """
    indices = [f.token_indices for f in features if f.token_indices is not None]
    encodings = [f.encoding for f in features]
    return engine.run(encodings, task.outputs, indices or None, _sources(features))


def _sources(features: Sequence[Feature]) -> list[Encoding] | None:
    return [f.source for f in features if f.source is not None] or None


def group(features: Iterable[Feature]) -> list[list[Feature]]:
    """Return the features of each example, in the order of the examples."""
    groups: list[list[Feature]] = []
    for feature in features:
        while len(groups) <= feature.example:
            groups.append([])
        groups[feature.example].append(feature)
    return groups


def group_for_training(task: Task[Any, Any], features: Sequence[Feature]) -> list[list[Feature]]:
    """Return lists of features that must be in one batch: one feature, or all of an example."""
    return [[f] for f in features] if task.batching == "sequence" else group(features)


def by_example(
    examples: Sequence[E], groups: Sequence[Sequence[Feature]], outputs: Sequence[Outputs]
) -> list[ExampleOutput[E]]:
    """Return examples with their features and outputs.

    Args:
        examples: The examples.
        groups: Features of each example.
        outputs: Outputs of all features, in order.
    """
    rows = iter(outputs)
    return [
        ExampleOutput(example, features, [next(rows) for _ in features])
        for example, features in zip(examples, groups, strict=True)
    ]
