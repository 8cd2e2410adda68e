"""Base classes of the pipelines, which handle arguments and single or multiple inputs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from bertkit.checkpoint.directory import Loaded
from bertkit.config import Count, Settings, with_keywords
from bertkit.errors import ConfigError, DataError
from bertkit.nn.precision import Inference
from bertkit.pipelines import pipeline
from bertkit.tasks.inference import TEXTS_PER_BATCH, batched
from bertkit.text.encoding import Encoding
from bertkit.text.long_texts import encode

CLEANED = {
    " .": ".", " ?": "?", " !": "!", " ,": ",", " ' ": "'", " n't": "n't", " 'm": "'m",
    " 's": "'s", " 've": "'ve", " 're": "'re",
}  # fmt: skip
"""Replacements that `clean_up_tokenization_spaces` makes in transformers."""


class Arguments(Settings, frozen=True):
    """Arguments that all pipelines accept but ignore, because they do not change results.

    bertkit chooses batches by the number of tokens, and does not pad them.
    """

    batch_size: int | None = None
    num_workers: int | None = None
    padding: bool | str | None = None


class Truncation(Arguments, frozen=True):
    """Arguments that control truncation, named as in the tokenizer of transformers."""

    truncation: bool | None = None
    """Whether to truncate long texts. Default: only if `max_length` is set."""
    max_length: Count | None = None
    """Maximum number of tokens in a text. Default: the maximum length of the model."""

    def encode(
        self, loaded: Loaded, texts: Sequence[str], pairs: Sequence[str] | None = None
    ) -> list[Encoding]:
        """Encode texts or pairs.

        Args:
            loaded: The model.
            texts: The texts.
            pairs: Second text of each pair. Default: encode single texts.

        Raises:
            DataError: If a text is too long and may not be truncated.
        """
        truncates = self.max_length is not None if self.truncation is None else self.truncation
        longest = loaded.length
        if truncates and self.max_length is not None:
            longest = min(self.max_length, longest)
        encodings, _ = encode(loaded.tokenizer, texts, pairs, length=longest, long="truncate")
        for text, encoding in zip(texts, encodings, strict=True):
            if encoding.truncated and not truncates:
                raise DataError(
                    f"{text[:40]!r}: the text is longer than the maximum of {longest} tokens; "
                    "shorten the text, or pass truncation=True (for fill-mask: in "
                    "tokenizer_kwargs)"
                )
        return encodings


class ArgumentsOfCalls:
    """Base class of objects that are called with the arguments of a pipeline in transformers.

    The arguments with which a pipeline is opened become the defaults for its calls.
    """

    accepted: type[Arguments]
    given: Mapping[str, Any] = {}
    """Arguments with which the pipeline was opened."""

    @classmethod
    def check(cls, given: Mapping[str, Any], arguments: Mapping[str, Any]) -> Any:
        """Combine and check the arguments, and return them as an object of the class `accepted`.

        Args:
            given: Arguments with which the pipeline was opened.
            arguments: Arguments of the call, which take precedence over `given`.

        Raises:
            ConfigError: If an argument is unknown or not supported, or has an invalid value.
        """
        (checked,) = with_keywords(cls.__name__, {cls.accepted: given}, arguments)
        return checked

    def __call__(self, inputs: Any, **arguments: Any) -> Any:
        """Return the result for an item or, for several items, a list of their results.

        Args:
            inputs: An item, or several items.
            arguments: Keyword arguments of the pipeline in transformers 4.57.

        Raises:
            ConfigError: If an argument is unknown or not supported, or has an invalid value.
            DataError: If an item is not valid.
        """
        checked = self.check(self.given, arguments)
        is_single, items = as_items(inputs)
        self.check_items(items, checked)
        parts = batched(items, TEXTS_PER_BATCH)
        results = [result for part in parts for result in self.results(part, checked)]
        return results[0] if is_single else results

    def check_items(self, items: Sequence[Any], arguments: Any) -> None:
        """Check all items before any result is computed.

        Args:
            items: The items.
            arguments: Arguments of the call, as an object of the class `accepted`.

        Raises:
            DataError: If an item is not valid.
        """
        check_texts(items)

    @abstractmethod
    def results(self, items: Sequence[Any], arguments: Any) -> list[Any]:
        """Return the result for each item.

        Args:
            items: The items.
            arguments: Arguments of the call, as an object of the class `accepted`.
        """


class TransformersPipeline(ArgumentsOfCalls):
    """Base class of pipelines that run one of bertkit's pipelines and convert its outputs."""

    runs: str
    """Name of bertkit's pipeline to run."""

    def __init__(self, model: Any, given: Mapping[str, Any]) -> None:
        self.model, self.given = model, given

    @classmethod
    def open(
        cls,
        model: str | Path | Loaded,
        *,
        precision: Inference = "fp32",
        device: str = "auto",
        revision: str | None = None,
        **arguments: Any,
    ) -> Self:
        """Load a model for this pipeline.

        `bertkit.pipeline` describes the arguments and errors.
        """
        cls.check({}, arguments)
        inner = pipeline(cls.runs, model, precision=precision, device=device, revision=revision)
        return cls(inner, arguments)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.model!r}>"


def as_items(inputs: Any) -> tuple[bool, list[Any]]:
    """Return whether the input of a call is a single item, and a list of all items.

    Raises:
        DataError: If the input is neither an item nor a collection of items.
    """
    if isinstance(inputs, str | Mapping):
        return True, [inputs]
    if not isinstance(inputs, Iterable):
        raise DataError(f"inputs: expected a text or a list, got {type(inputs).__name__}")
    return False, list(inputs)


def check_texts(items: Sequence[Any]) -> None:
    """Check that every item is a text with visible characters.

    Raises:
        DataError: If an item is not such a text.
    """
    for index, item in enumerate(items):
        if not isinstance(item, str):
            raise DataError(
                f"inputs[{index}]: expected a text, got {type(item).__name__}; pass a text"
            )
        if not item.strip():
            raise DataError(f"inputs[{index}]: the text is empty; remove this text")


def windows(encoding: Encoding, part: int, longest: int, overlap: int, name: str) -> list[Encoding]:
    """Split a text or pair into overlapping windows.

    Args:
        encoding: Encoding of the text or pair.
        part: Which text to split: 0 for the first, 1 for the second text of a pair.
        longest: Maximum number of tokens in a window.
        overlap: Number of tokens that consecutive windows share.
        name: Name of the argument that sets the overlap, for the error message.

    Raises:
        ConfigError: If a window has no space for tokens beyond the overlap.
    """
    size = encoding.sequence.count(part)
    capacity = longest - (len(encoding) - size)
    if size > capacity <= overlap:
        raise ConfigError(
            f"{name}: windows overlap by {overlap} tokens, but a window of {longest} tokens has "
            f"space for only {max(capacity, 0)} tokens of the text; decrease {name}"
        )
    return encoding.windows(part, longest, overlap)


def cleaned(text: str) -> str:
    """Remove the spaces before punctuation and English contractions from a text."""
    for old, new in CLEANED.items():
        text = text.replace(old, new)
    return text
