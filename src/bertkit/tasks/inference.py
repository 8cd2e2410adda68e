"""Prediction with a task: items are encoded, and the head's outputs converted to predictions."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Container, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

import msgspec

from bertkit.data.rows_in_memory import is_rows
from bertkit.errors import ConfigError, DataError
from bertkit.synonyms import check_keywords
from bertkit.tasks.examples import take
from bertkit.tasks.task import Feature, Item, Outputs, Reading, Task, by_example, group
from bertkit.text.long_texts import Long
from bertkit.text.tokenizer import Tokenizer

TEXTS_PER_BATCH = 4096
"""Number of texts that are tokenized together, which limits the memory use."""

ITEMS_PER_CHUNK = 256
"""Number of items of an iterable that are read and predicted at a time."""

PREDICTED_PREFIX = "predicted_"
"""Prefix of the name of a prediction column if the rows already have a column with the name."""


def unused_column_name(name: str, taken: Container[str]) -> str:
    """Return a name for a column of predictions that no other column has.

    Args:
        name: Preferred name.
        taken: Names of the columns of the rows.
    """
    while name in taken:
        name = PREDICTED_PREFIX + name
    return name


T = TypeVar("T")
A = TypeVar("A", bound=msgspec.Struct)


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield lists of `size` items. Python 3.11 does not have `itertools.batched`.

    Args:
        items: The items.
        size: Number of items in each list. The last list can be shorter.
    """
    rest = iter(items)
    while part := list(itertools.islice(rest, size)):
        yield part


@dataclass(frozen=True)
class Work:
    """Encoded item, with the cost of the prediction."""

    features: Sequence[Feature]
    item: Any = None
    more: int = 0
    """Cost in addition to the cost of the tokens, as a number of tokens."""
    answer_bytes: int = 0
    """Size of the prediction in memory, if it is large compared with the number of tokens."""

    @property
    def tokens(self) -> int:
        """Total cost: the number of tokens of all sequences, plus `more`."""
        return sum(len(feature.encoding) for feature in self.features) + self.more

    @property
    def truncated(self) -> bool:
        """Whether a sequence was truncated."""
        return any(feature.encoding.truncated for feature in self.features)


class Answering(ABC, Generic[A]):
    """Base class of models that predict with a task.

    A call with one item returns one prediction. A list returns a list in the same order, and any
    other iterable returns an iterator of predictions.
    """

    task: Task[Any, A]
    tokenizer: Tokenizer
    length: int
    """Maximum number of tokens of a sequence."""
    head: Any
    """Head of the model. Some tasks need its weights to convert outputs to predictions."""
    columns: Reading = Reading()
    """Columns that the user set in training. They are used if the rows have them."""

    @abstractmethod
    def outputs(self, features: Sequence[Feature]) -> list[Outputs]:
        """Compute the outputs of the head for each feature."""

    @overload
    def __call__(  # type: ignore[overload-overlap]  # A str is also an iterable.
        self, items: Item, *, long: Long | None = ...
    ) -> A: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, items: list[str] | list[Item], *, long: Long | None = ...
    ) -> list[A]: ...
    @overload
    def __call__(self, items: Iterable[Item], *, long: Long | None = ...) -> Iterator[A]: ...
    @overload
    def __call__(
        self, items: Any, *, long: Long | None = ..., reading: Reading | None = ...
    ) -> list[A]: ...
    @check_keywords
    def __call__(
        self, items: Any, *, long: Long | None = None, reading: Reading | None = None
    ) -> A | list[A] | Iterator[A]:
        """Predict for a text, a list or an iterable of texts, or rows.

        Args:
            items: A text, a list or an iterable of texts, or rows: a DataFrame, a column of a
                DataFrame, a Dataset, a list of dicts, or the `Path` of a file.
            long: Policy for texts longer than the maximum length. Default: the first policy of the
                task.
            reading: Columns of the rows.

        Returns:
            One prediction for a single item, and otherwise a list or an iterator of predictions.

        Raises:
            DataError: If an item is invalid, or too long and the policy is `error`.
            ConfigError: If the task does not support the policy.
        """
        if isinstance(items, str | tuple):
            return self.answers([self._example(items)], long=long)[0]
        if is_rows(items) or isinstance(items, Sequence):
            return self.answers(self.examples(items, reading), long=long)
        return self._stream(items, long)

    def examples(self, items: Any, reading: Reading | None = None) -> Sequence[Any]:
        """Convert texts or rows to examples of the task.

        Args:
            items: Texts, items, or rows.
            reading: Columns of the rows.

        Raises:
            DataError: If an item or row is invalid.
        """
        if is_rows(items):
            kind, learned = type(self.task), self.columns
            return take(kind, items, reading, "rows", labeled=False, learned=learned).examples
        examples = []
        for number, item in enumerate(items):
            try:
                examples.append(self._example(item))
            except DataError as error:
                raise DataError(f"rows[{number}]: {error}") from None
        return examples

    def answers(self, examples: Sequence[Any], *, long: Long | None = None) -> list[A]:
        """Predict for examples of the task, in order.

        Args:
            examples: The examples.
            long: Policy for texts longer than the maximum length.
        """
        long = self._policy(long)
        answers: list[A] = []
        for start in range(0, len(examples), TEXTS_PER_BATCH):
            answers += self.run(self._works(examples[start : start + TEXTS_PER_BATCH], long))
        return answers

    def prepare(self, items: Sequence[Item], *, long: Long | None = None) -> list[Work]:
        """Encode items.

        Args:
            items: The items.
            long: Policy for texts longer than the maximum length.

        Raises:
            DataError: If an item is invalid, or too long and the policy is `error`.
            ConfigError: If the task does not support the policy.
        """
        return self._works([self._example(item) for item in items], self._policy(long))

    def run(self, works: Sequence[Work]) -> list[A]:
        """Return the predictions for encoded items, in their order."""
        features = [feature for work in works for feature in work.features]
        return self._answers(works, self.outputs(features))

    def parts(self, works: Sequence[Work], tokens: int) -> Generator[int, None, list[A]]:
        """Compute the same predictions as `run`, in parts with a limited number of tokens.

        Args:
            works: The encoded items.
            tokens: Maximum number of tokens of a part. A longer sequence is a part by itself.

        Yields:
            The number of tokens of the next part, before it is computed.

        Returns:
            The predictions.
        """
        features = [feature for work in works for feature in work.features]
        outputs: list[Outputs] = []
        while len(outputs) < len(features):
            rest, count, size = features[len(outputs) :], 0, 0
            while count < len(rest) and (not count or size + len(rest[count].encoding) <= tokens):
                size += len(rest[count].encoding)
                count += 1
            yield size
            outputs += self.outputs(rest[:count])
        return self._answers(works, outputs)

    def _answers(self, works: Sequence[Work], outputs: Sequence[Outputs]) -> list[A]:
        groups, examples = [work.features for work in works], [work.item for work in works]
        return self.task.answers(by_example(examples, groups, outputs), self.head)

    def _works(self, examples: Sequence[Any], long: Long) -> list[Work]:
        features = self.task.features(
            examples, self.tokenizer, self.length, long=long, labeled=False
        )
        return [Work(parts, item) for parts, item in zip(group(features), examples, strict=True)]

    def _policy(self, long: Long | None) -> Long:
        long = long or self.task.long[0]
        if long not in self.task.long:
            supported = ", ".join(self.task.long)
            raise ConfigError(f"long: {self.task.name} supports {supported}, got {long!r}")
        return long

    def _example(self, item: object) -> Any:
        match item:
            case str(text):
                return self.task.reader.example(text, ())
            case (str(text), str(other)):
                return self.task.reader.example(text, (other,))
            case (str(text), [*others]) if all(isinstance(other, str) for other in others):
                return self.task.reader.example(text, [str(other) for other in others])
        raise DataError(
            f"{str(item)[:60]}: unsupported input of type {type(item).__name__}; pass a text, or a "
            "tuple of a text and its second text, context or choices"
        )

    def _stream(self, items: Iterable[Item], long: Long | None) -> Iterator[A]:
        for part in batched(items, ITEMS_PER_CHUNK):
            yield from self.answers([self._example(item) for item in part], long=long)
