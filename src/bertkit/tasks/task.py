"""What a task is: examples -> features -> loss; outputs -> answers -> scores.

A task is one file: it reads its examples, says what the model reads for each and what it learns
from them, and turns what the head says into typed answers. Training, evaluation, prediction and
the command line are the same for all. One from outside the package is named module:Class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    Literal,
    Protocol,
    Self,
    TypeVar,
)

import msgspec
import numpy as np
from numpy.typing import NDArray

from bertkit.config import Settings, decode, plain
from bertkit.errors import CheckpointError, ConfigError
from bertkit.tasks.table import TASKS
from bertkit.text.encoding import Encoding
from bertkit.text.long_texts import Long
from bertkit.text.tokenizer import Tokenizer

if TYPE_CHECKING:  # what an exported graph said becomes answers without torch
    from torch import Tensor, nn

    from bertkit.batch import Batch
    from bertkit.data.rows import Source
    from bertkit.engine.engine import Engine
    from bertkit.models.model import Model
    from bertkit.models.transformer import Transformer
    from bertkit.objectives.loss import Loss, Totals

Outputs = NDArray[np.float32]
"""What the head says of one feature: (L,) for a sequence, (T, L) for its tokens or places."""


Item = str | tuple[str, str | Sequence[str]]
"""What a task is asked about: a text, or a text and what goes with it (a second text, a question's
context, the choices)."""


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
    """A task with nothing to choose."""


class JsonObject(Settings, frozen=True, kw_only=True):
    """An object in the body of a request."""


@dataclass(frozen=True)
class Feature:
    """One sequence that the model reads for an example.

    `example` is the example's place in the list; `token_indices` are those at which the head
    answers, where it answers at chosen ones; `target` what to learn, None when answering;
    `teacher_outputs` a teacher's, a row for each of its own. `source` is what an encoder reads
    where the encoding is a decoder's.
    """

    encoding: Encoding
    example: int
    token_indices: NDArray[np.int64] | None = None
    target: Any = None
    teacher_outputs: NDArray[np.float32] | None = None
    source: Encoding | None = None

    @property
    def tokens(self) -> int:
        """All that are read for it."""
        return len(self.encoding) + (0 if self.source is None else len(self.source))

    @property
    def truncated(self) -> bool:
        """Whether any of it was cut."""
        return self.encoding.truncated or (self.source is not None and self.source.truncated)


@dataclass(frozen=True)
class ErrorRecord:
    """An answer beside what was expected, for the list of errors.

    `severity` is 0 where nothing is wrong, and larger the worse the answer.
    """

    shown: str
    expected: str
    answered: str
    severity: float


class Placed(Protocol):
    """An example knows where it stands, as file and line, for messages and the list of errors."""

    @property
    def where(self) -> str: ...


E = TypeVar("E", bound=Placed)
"""An example, as read from a file."""
A = TypeVar("A", bound=msgspec.Struct)
"""An answer: typed, and JSON-serialisable."""


class Reader(ABC, Generic[E]):
    """Examples of a task, from files, rows in memory, and items of pipelines."""

    @abstractmethod
    def read(self, source: Source, reading: Reading, *, labelled: bool) -> tuple[list[E], str]:
        """Return the examples of a file or of rows, and a message about how they were read.

        Args:
            source: The file or rows.
            reading: Columns and format.
            labelled: Whether the examples need labels.

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
    """An example with its features and what the head says of each.

    Shapes: outputs[i] belongs to features[i]: (rows, L).
    """

    example: E
    features: Sequence[Feature]
    outputs: Sequence[Outputs]

    @property
    def truncated(self) -> bool:
        """Whether any of its features was cut."""
        return any(feature.truncated for feature in self.features)


@dataclass(frozen=True)
class Serving:
    """Requests and predictions of a task in pipelines and servers.

    Args:
        prediction: Type of a prediction.
        example: Example of an item that the task predicts for. If an item is more than one text,
            the texts by the names that they have in requests.
        route: Path of the task on a server, such as /ner. A server does not offer a task without a
            path.
    """

    prediction: Any = Any
    example: str | Mapping[str, str | tuple[str, ...]] = "The cat sat on the mat."
    route: str = ""


class Task(ABC, Generic[E, A]):
    """The base of every task; a subclass in a file of its own says the rest.

    `labels` names the head's outputs where they have names, `options` is what the user chose
    (and training found, such as a threshold); both are kept in the model's folder.
    """

    name: ClassVar[str]
    """Of the command and the pipeline."""
    metric: str
    """The score by which the best epoch is chosen; larger is better."""
    reader: ClassVar[Reader[Any]]
    """Reader of the examples."""
    Options: ClassVar[type[Settings]] = NoOptions
    long: ClassVar[tuple[Long, ...]] = ("error", "truncate")
    """What may be done with texts longer than the model; the first is the default."""
    serving: ClassVar[Serving] = Serving()
    """Requests and predictions in pipelines and servers."""
    batching: ClassVar[Literal["sequence", "example", "step"]] = "sequence"
    """What must be learned from in one batch: nothing but a sequence itself, the sequences of an
    example (the choices of a question), or all of a step (texts that are compared)."""

    def __init__(self, labels: Sequence[str] = (), options: Settings | None = None) -> None:
        self.labels = tuple(labels)
        self.options: Any = self.Options() if options is None else options

    # ---- what a task is made from

    @classmethod
    def from_examples(cls, train: Sequence[E], options: Settings) -> Self:
        """The task that training examples pose. Raises: DataError when they pose none."""
        return cls((), options)

    @classmethod
    def restore(cls, labels: Sequence[str], settings: Mapping[str, Any]) -> Self:
        """The task of a folder, from its labels and its config.json.

        Raises: CheckpointError for a record that the task cannot have written.
        """
        record = settings.get("bertkit", {}).get("task", {})
        try:
            options = decode(cls.Options, record.get("options", {}), "bertkit.task.options")
        except (ConfigError, AttributeError) as error:
            raise CheckpointError(f"config.json: {error}") from None
        return cls(labels, options)

    def settings(self) -> dict[str, Any]:
        """What the folder's config.json says of the task; `restore` reads it."""
        record = {"name": full_name(type(self)), "options": plain(self.options)}
        return {"bertkit": {"task": record}}

    # ---- what the model reads and learns

    @property
    def head(self) -> str:
        """The name of the model's head; by default the task's own."""
        return self.name

    def build_head(self, encoder: Transformer) -> nn.Module:
        """The head, fresh. Override it for one that is not among `models.model.HEADS`."""
        from bertkit.models import model as models

        return models.head(self.head, encoder, self.labels)

    def check(self, examples: Sequence[E]) -> None:
        """Raises: DataError for an example that this task cannot score, naming its line."""

    @abstractmethod
    def features(
        self,
        examples: Sequence[E],
        tokenizer: Tokenizer,
        length: int,
        *,
        long: Long,
        labelled: bool,
    ) -> list[Feature]:
        """What the model reads, example by example, of at most `length` tokens each.

        With `labelled` each has its target. Raises: DataError as `long` says.
        """

    @abstractmethod
    def targets(self, features: Sequence[Feature]) -> Tensor:
        """The targets of a batch as the loss wants them."""

    @abstractmethod
    def loss_of(self, outputs: Tensor, batch: Batch, totals: Totals, head: nn.Module) -> Loss:
        """The batch's share of the step's loss, from what the head says, as `outputs` gives it.

        `head` is for those that learn with its weights (CRF).
        """

    def loss(self, model: Model, batch: Batch, totals: Totals) -> Loss:
        """The same from the start: an objective."""
        return self.loss_of(self.outputs(model, batch), batch, totals, model.heads[self.head])

    def outputs(self, model: Model, batch: Batch) -> Tensor:
        """What the head says, in fp32. Shapes: (S, L), or (N, L) or (P, L)."""
        out: Tensor = model.heads[self.head](model.states(batch), batch)
        return out.float()

    # ---- what it answers

    @abstractmethod
    def answers(self, outputs: Sequence[ExampleOutput[E]], head: nn.Module) -> list[A]:
        """An answer for each example. `head` is for those that decode with its weights (CRF)."""

    @abstractmethod
    def score(self, answers: Sequence[A], examples: Sequence[E]) -> dict[str, float]:
        """The scores of answers to labelled examples."""

    @property
    def score_names(self) -> tuple[str, ...]:
        """The scores by which the best epoch may be chosen: the larger, the better."""
        return (self.metric,)

    @abstractmethod
    def error_record(self, answer: A, example: E) -> ErrorRecord:
        """An answer beside what was expected."""


def policy_of_files(task: Task[Any, Any]) -> Long:
    """Return what to do with long texts of a file: truncate them if the task supports it."""
    return "truncate" if "truncate" in task.long else task.long[0]


def full_name(task: type[Task[Any, Any]]) -> str:
    """Return the name of a task of bertkit or of an extension, else `module:Class`."""
    place = f"{task.__module__}:{task.__qualname__}"
    return task.name if is_builtin(task) or place in TASKS.places.values() else place


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
    """The features of each example; they stand in the order of the examples."""
    groups: list[list[Feature]] = []
    for feature in features:
        while len(groups) <= feature.example:
            groups.append([])
        groups[feature.example].append(feature)
    return groups


def group_for_training(task: Task[Any, Any], features: Sequence[Feature]) -> list[list[Feature]]:
    """Return lists of features that must be in one batch: a sequence, or those of an example."""
    return [[f] for f in features] if task.batching == "sequence" else group(features)


def by_example(
    examples: Sequence[E], groups: Sequence[Sequence[Feature]], outputs: Sequence[Outputs]
) -> list[ExampleOutput[E]]:
    """The outputs of all features, in order, dealt to their examples."""
    rows = iter(outputs)
    return [
        ExampleOutput(example, features, [next(rows) for _ in features])
        for example, features in zip(examples, groups, strict=True)
    ]
