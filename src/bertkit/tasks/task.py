"""Base class of tasks: examples -> features -> loss; outputs -> predictions -> scores.

A task is a class in one file. It encodes examples, computes the loss, and converts the outputs of
its head to typed predictions. Training, evaluation, prediction, and the command line use the same
code for all tasks. `bertkit.tasks.capabilities` contains base classes for optional features of
tasks. The name of a third-party task is `module:Class`.
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
"""Outputs of the head for one feature, of shape (L,) if the head predicts for the sequence, or
(T, L) if it predicts for tokens or positions."""


Item = str | tuple[str, str | Sequence[str]]
"""Item that a pipeline predicts for: a text, or a text with a second text, a context, or
choices."""


class Reading(Settings, frozen=True):
    """Columns and format of a file of rows."""

    text_column: str | None = None
    """Column of the text, or of the first text of a pair. Default: a column with a known name."""
    pair_column: str | None = None
    """Column of the second text. Default: a column with a known name, unless text_column is set."""
    label_column: str | None = None
    """Column of the label. If a text can have several labels, these can be columns of 0 and 1; pass
    their names separated by commas. Default: a column with a known name."""
    header: bool = True
    """Whether the first line contains the names of the columns. Otherwise, the columns are named 1,
    2, and so on."""
    separator: str | None = None
    """Separator of columns: a character, tab, or space. With space, a line is split only after its
    first word. Default: a comma in .csv files, otherwise a tab."""

    def options(self) -> dict[str, str]:
        """Return the command-line option of each setting that differs from its default."""
        default = Reading()
        return {
            name: f"--{name.replace('_', '-')}"
            for name in self.__struct_fields__
            if getattr(self, name) != getattr(default, name)
        }


class NoOptions(Settings, frozen=True):
    """Empty options, for tasks that have no options."""


class JsonObject(Settings, frozen=True, kw_only=True):
    """JSON object in the body of a request to a server."""


@dataclass(frozen=True)
class Feature:
    """Input sequence of the model. An example is encoded as one or more features.

    Args:
        encoding: Tokens of the sequence.
        example: Index of the example.
        token_indices: Indices of the tokens for which the head predicts, if not for all tokens.
        target: Target of the loss, or None if there is no target.
        teacher_outputs: Outputs of a teacher. They have the same rows as the outputs of the head.
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
    """Input, prediction and expected value of an example, as the list of errors shows them.

    Args:
        shown: Input of the example.
        expected: Expected value.
        answered: Prediction.
        severity: 0 if the prediction is correct. Worse predictions have larger values.
    """

    shown: str
    expected: str
    answered: str
    severity: float


class Placed(Protocol):
    """Object with a location (file and line), which messages and the list of errors show."""

    @property
    def where(self) -> str: ...


E = TypeVar("E", bound=Placed)
"""Type of an example."""
A = TypeVar("A", bound=msgspec.Struct)
"""Type of a prediction."""


class Reader(ABC, Generic[E]):
    """Reader that creates the examples of a task from files, rows in memory, or pipeline items."""

    @abstractmethod
    def read(self, source: Source, reading: Reading, *, labeled: bool) -> tuple[list[E], str]:
        """Read the examples from a file or from rows, and return them with a message to log.

        The message describes how the examples were read, such as which columns were used.

        Args:
            source: The file or rows.
            reading: Columns and format.
            labeled: Whether the examples need labels.

        Raises:
            DataError: If a row is invalid. The message contains the location of the row.
        """

    @abstractmethod
    def example(self, text: str, others: Sequence[str]) -> E:
        """Convert an item of a pipeline to an example without a label.

        Args:
            text: The text, or the first text of the item.
            others: The other texts of the item.

        Raises:
            DataError: If a text is empty, or the number of texts is wrong.
        """

    def key(self, example: E) -> Hashable:
        """Return the input without the label. Examples with equal keys are duplicates."""
        return repr(example).replace(repr(example.where), "")

    def group(self, example: E) -> Hashable:
        """Return the group that an example belongs to, such as its context.

        All examples of a group are held out together.
        """
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
        example: Example of an item for which the task predicts. If an item consists of several
            texts, the example maps their names in requests to the texts.
        route: Path of the task on a server, such as /ner. If it is empty, servers do not offer the
            task.
    """

    prediction: Any = Any
    example: str | Mapping[str, str | tuple[str, ...]] = "The cat sat on the mat."
    route: str = ""


class Task(ABC, Generic[E, A]):
    """Base class of tasks.

    The file `config.json` of a model contains the labels and the options of its task.

    Args:
        labels: Names of the outputs of the head, if they have names.
        options: Options of the task: an `Options` object. Default: `Options()`.
    """

    name: ClassVar[str]
    """Name of the command, the pipeline, and the head."""
    metric: str
    """Name of the score by which the best epoch is selected. Larger values are better."""
    reader: ClassVar[Reader[Any]]
    """Reader of the examples."""
    Options: ClassVar[type[Settings]] = NoOptions
    """Type of the options. Each field is an option of `bertkit finetune`."""
    long: ClassVar[tuple[Long, ...]] = ("error", "truncate")
    """Supported policies for texts longer than the maximum length, the default first."""
    serving: ClassVar[Serving] = Serving()
    """Requests and predictions in pipelines and servers."""
    batching: ClassVar[Literal["sequence", "example", "step"]] = "sequence"
    """Which sequences must be in the same training batch. `sequence`: no constraint. `example`: all
    sequences of an example, such as its choices. `step`: all sequences of a step, because their
    texts are compared with each other."""

    def __init__(self, labels: Sequence[str] = (), options: Settings | None = None) -> None:
        self.labels = tuple(labels)
        self.options: Any = self.Options() if options is None else options

    # ---- Creation

    @classmethod
    def from_examples(cls, train: Sequence[E], options: Settings) -> Self:
        """Return the task for training examples, such as with the labels of these examples.

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
        """Return the entries of `config.json` from which `restore` creates the task."""
        record = {"name": full_name(type(self)), "options": plain(self.options)}
        return {"bertkit": {"task": record}}

    # ---- Training

    @property
    def head(self) -> str:
        """Name of the head in the model. Default: the name of the task."""
        return self.name

    def build_head(self, encoder: Transformer) -> nn.Module:
        """Return a newly initialized head. Override this method if the task needs another head."""
        from bertkit.models import model as models

        return models.head(self.head, encoder, self.labels)

    def check(self, examples: Sequence[E]) -> None:
        """Check that examples can be scored, for example that their labels are known.

        Args:
            examples: Labeled examples.

        Raises:
            DataError: If an example cannot be scored. The message contains its location.
        """

    @abstractmethod
    def features(
        self, examples: Sequence[E], tokenizer: Tokenizer, length: int, *, long: Long, labeled: bool
    ) -> list[Feature]:
        """Encode each example as one or more sequences, in the order of the examples.

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
        """Compute what a batch contributes to the loss of a step.

        Args:
            outputs: Result of the method `outputs` for the batch.
            batch: The batch, with targets.
            totals: Number of targets in the step for each head.
            head: Head of the model, for losses that need its weights (CRF).
        """

    def loss(self, model: Model, batch: Batch, totals: Totals) -> Loss:
        """Run the model on a batch, and compute the loss; see `loss_of`."""
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
            head: Head of the model, for tasks that decode with its weights (CRF).
        """

    @abstractmethod
    def score(self, answers: Sequence[A], examples: Sequence[E]) -> dict[str, float]:
        """Compute the scores of predictions, by the names of the scores.

        Args:
            answers: Predictions.
            examples: Labeled examples.
        """

    @property
    def score_names(self) -> tuple[str, ...]:
        """Names of the scores that `--metric` supports. Larger values are better."""
        return (self.metric,)

    @abstractmethod
    def error_record(self, answer: A, example: E) -> ErrorRecord:
        """Describe the prediction and the expected value of an example for `errors.html`."""


def policy_of_files(task: Task[Any, Any]) -> Long:
    """Return what to do with long texts in files: truncate them if the task supports it."""
    return "truncate" if "truncate" in task.long else task.long[0]


def full_name(task: type[Task[Any, Any]]) -> str:
    """Return the name of a task. For a task outside bertkit and its extensions: `module:Class`."""
    path = f"{task.__module__}:{task.__qualname__}"
    return task.name if is_builtin(task) or path in TASKS.paths.values() else path


def is_builtin(task: type[Task[Any, Any]]) -> bool:
    """Return whether a task is part of bertkit."""
    return task.__module__.startswith("bertkit.")


def make_batch(task: Task[Any, Any], features: Sequence[Feature]) -> Batch:
    """Return a batch of features, with their targets if they have any.

    Args:
        task: The task.
        features: The features. In the batch, they are sorted by length, the shortest first.
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
    """Return lists of features that must be in the same batch.

    A list contains one feature or all features of an example, which depends on the task.
    """
    return [[f] for f in features] if task.batching == "sequence" else group(features)


def by_example(
    examples: Sequence[E], groups: Sequence[Sequence[Feature]], outputs: Sequence[Outputs]
) -> list[ExampleOutput[E]]:
    """Combine examples with their features and outputs.

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
