"""Items become work, and what a head says of it becomes answers: a task, asked by texts."""

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

TEXTS_AT_ONCE = 4096
"""Texts tokenized at a time, so that many need little memory."""

STREAM_ITEMS = 256
"""Items of a stream read before the first of them is answered."""

PREDICTED_PREFIX = "predicted_"
"""Begins the name of a column of answers where the rows have one that is called so."""


def free(name: str, taken: Container[str]) -> str:
    """What a column of answers is called beside those of the rows."""
    while name in taken:
        name = PREDICTED_PREFIX + name
    return name


T = TypeVar("T")
A = TypeVar("A", bound=msgspec.Struct)


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of `size` items, the last shorter (itertools.batched, which Python 3.11 lacks)."""
    rest = iter(items)
    while part := list(itertools.islice(rest, size)):
        yield part


@dataclass(frozen=True)
class Work:
    """What a model reads for one item, in one sequence or several, and what it is asked."""

    features: Sequence[Feature]
    item: Any = None
    more: int = 0
    """What it costs beside reading: as much as so many tokens."""
    answer_bytes: int = 0
    """How much memory its answer takes, where that is much for its tokens."""

    @property
    def tokens(self) -> int:
        """Those that are read, and `more`."""
        return sum(len(feature.encoding) for feature in self.features) + self.more

    @property
    def truncated(self) -> bool:
        return any(feature.encoding.truncated for feature in self.features)


class Answering(ABC, Generic[A]):
    """What answers by a task: one item gives one answer, a list a list, in its order, and any other
    iterable a stream of answers.
    """

    task: Task[Any, A]
    tokenizer: Tokenizer
    length: int
    """Tokens that the model reads."""
    head: Any
    """The model's, for tasks that decode with its weights."""
    columns: Reading = Reading()
    """Those that were named for training; rows that have them are read so."""

    @abstractmethod
    def outputs(self, features: Sequence[Feature]) -> list[Outputs]:
        """What the head says of each feature."""

    @overload
    def __call__(  # type: ignore[overload-overlap]  # a str is an iterable too
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
        """Answers to one text, to many, to a stream, or to the rows of a program.

        Rows are a DataFrame, one of its columns, a Dataset, dicts, or a file as a `Path`; `reading`
        names their columns. `long` says what to do with texts longer than the model; by default
        what the task does.
        Raises: DataError for a text that cannot be answered about, ConfigError for a policy that
        the task has not.
        """
        if isinstance(items, str | tuple):
            return self.answers([self._example(items)], long=long)[0]
        if is_rows(items) or isinstance(items, Sequence):
            return self.answers(self.examples(items, reading), long=long)
        return self._stream(items, long)

    def examples(self, items: Any, reading: Reading | None = None) -> Sequence[Any]:
        """The task's own examples of texts or rows. Raises: DataError."""
        if is_rows(items):
            kind, learned = type(self.task), self.columns
            return take(kind, items, reading, "rows", labelled=False, learned=learned).examples
        examples = []
        for number, item in enumerate(items):
            try:
                examples.append(self._example(item))
            except DataError as error:
                raise DataError(f"rows[{number}]: {error}") from None
        return examples

    def answers(self, examples: Sequence[Any], *, long: Long | None = None) -> list[A]:
        """Answers to the task's own examples, in their order."""
        long = self._policy(long)
        answers: list[A] = []
        for start in range(0, len(examples), TEXTS_AT_ONCE):
            answers += self.run(self._works(examples[start : start + TEXTS_AT_ONCE], long))
        return answers

    def prepare(self, items: Sequence[Item], *, long: Long | None = None) -> list[Work]:
        """Raises: DataError, ConfigError as a call does."""
        return self._works([self._example(item) for item in items], self._policy(long))

    def run(self, works: Sequence[Work]) -> list[A]:
        """An answer for each."""
        features = [feature for work in works for feature in work.features]
        return self._answers(works, self.outputs(features))

    def parts(self, works: Sequence[Work], tokens: int) -> Generator[int, None, list[A]]:
        """Answer as `run` does, but read about so many tokens at a time.

        Yields: the tokens of each part before it is read.
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
            examples, self.tokenizer, self.length, long=long, labelled=False
        )
        return [Work(parts, item) for parts, item in zip(group(features), examples, strict=True)]

    def _policy(self, long: Long | None) -> Long:
        long = long or self.task.long[0]
        if long not in self.task.long:
            known = ", ".join(self.task.long)
            raise ConfigError(f"long: {self.task.name} knows {known}, and not {long!r}")
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
            f"{str(item)[:60]}: {type(item).__name__} is nothing to ask about; give a text, or a "
            "tuple of a text and what goes with it"
        )

    def _stream(self, items: Iterable[Item], long: Long | None) -> Iterator[A]:
        for part in batched(items, STREAM_ITEMS):
            yield from self.answers([self._example(item) for item in part], long=long)
