"""Base class of the pipelines: their arguments, and inputs that are one item or several."""

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
"""Replacements of `clean_up_tokenization_spaces` in transformers."""


class Arguments(Settings, frozen=True):
    """Arguments of all pipelines. They do not change results, so bertkit ignores them.

    It forms batches by number of tokens, without padding.
    """

    batch_size: int | None = None
    num_workers: int | None = None
    padding: bool | str | None = None


class Truncation(Arguments, frozen=True):
    """Arguments of the tokenizer in transformers."""

    truncation: bool | None = None
    """Whether to truncate long texts. Default: only if `max_length` is set."""
    max_length: Count | None = None
    """Maximum number of tokens of a text. Default: the maximum length of the model."""

    def encode(
        self, loaded: Loaded, texts: Sequence[str], pairs: Sequence[str] | None = None
    ) -> list[Encoding]:
        """Encode texts or pairs.

        Args:
            loaded: The model.
            texts: The texts.
            pairs: Second texts.

        Raises:
            DataError: If a text is too long, and is not to be truncated.
        """
        truncates = self.max_length is not None if self.truncation is None else self.truncation
        longest = loaded.length
        if truncates and self.max_length is not None:
            longest = min(self.max_length, longest)
        encodings, _ = encode(loaded.tokenizer, texts, pairs, length=longest, long="truncate")
        for text, encoding in zip(texts, encodings, strict=True):
            if encoding.truncated and not truncates:
                raise DataError(
                    f"{text[:40]!r}: longer than the maximum of {longest} tokens; shorten it, or "
                    "pass truncation=True (to fill-mask in tokenizer_kwargs)"
                )
        return encodings


class ArgumentsOfCalls:
    """Base class of objects whose calls accept the arguments of a pipeline in transformers.

    Arguments that are given when a pipeline is opened are the defaults of its calls.
    """

    accepted: type[Arguments]
    given: Mapping[str, Any] = {}
    """Arguments from the opening of the pipeline."""

    @classmethod
    def check(cls, given: Mapping[str, Any], arguments: Mapping[str, Any]) -> Any:
        """Return all arguments of a call as an object of the class `accepted`.

        Args:
            given: Arguments from the opening of the pipeline.
            arguments: Arguments of the call, which take precedence.

        Raises:
            ConfigError: If an argument is unknown or not supported, or has an invalid value.
        """
        (checked,) = with_keywords(cls.__name__, {cls.accepted: given}, arguments)
        return checked

    def __call__(self, inputs: Any, **arguments: Any) -> Any:
        """Return the result for an item, or a list with the result for each of several items.

        Args:
            inputs: An item, or several.
            arguments: Arguments of the pipeline in transformers 4.57, by name.

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
        """Check all items before the first one is computed.

        Args:
            items: The items.
            arguments: The arguments of the call, an object of the class `accepted`.

        Raises:
            DataError: If an item is not valid.
        """
        check_texts(items)

    @abstractmethod
    def results(self, items: Sequence[Any], arguments: Any) -> list[Any]:
        """Return the result for each item.

        Args:
            items: The items.
            arguments: The arguments of the call, an object of the class `accepted`.
        """


class TransformersPipeline(ArgumentsOfCalls):
    """Base class of pipelines that convert the outputs of one of bertkit's pipelines."""

    runs: str
    """Name of bertkit's pipeline."""

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
        """Load a model as this pipeline. For the arguments and errors, see `bertkit.pipeline`."""
        cls.check({}, arguments)
        inner = pipeline(cls.runs, model, precision=precision, device=device, revision=revision)
        return cls(inner, arguments)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.model!r}>"


def as_items(inputs: Any) -> tuple[bool, list[Any]]:
    """Return whether the input of a call is one item, and all items as a list.

    Raises:
        DataError: If the input is neither an item nor several.
    """
    if isinstance(inputs, str | Mapping):
        return True, [inputs]
    if not isinstance(inputs, Iterable):
        raise DataError(f"inputs: expected a text or a list, got {type(inputs).__name__}")
    return False, list(inputs)


def check_texts(items: Sequence[Any]) -> None:
    """Check that all items are texts with visible characters.

    Raises:
        DataError: If an item is not.
    """
    for index, item in enumerate(items):
        if not isinstance(item, str):
            raise DataError(
                f"inputs[{index}]: expected a text, got {type(item).__name__}; pass a text"
            )
        if not item.strip():
            raise DataError(f"inputs[{index}]: the text is empty; remove it")


def windows(encoding: Encoding, part: int, longest: int, overlap: int, name: str) -> list[Encoding]:
    """Return overlapping windows over the tokens of one text.

    Args:
        encoding: The tokens of a text or pair.
        part: Text to split: 0 for the text, 1 for the pair.
        longest: Maximum number of tokens of a window.
        overlap: Number of tokens that consecutive windows share.
        name: Argument that sets the overlap, for the message.

    Raises:
        ConfigError: If a window has no space for more tokens than the overlap.
    """
    size = encoding.sequence.count(part)
    capacity = longest - (len(encoding) - size)
    if size > capacity <= overlap:
        raise ConfigError(
            f"{name}: windows overlap by {overlap} tokens, but a window of {longest} tokens has "
            f"space for {max(capacity, 0)} tokens of the text; decrease {name}"
        )
    return encoding.windows(part, longest, overlap)


def cleaned(text: str) -> str:
    """Return a text without the spaces before punctuation and English contractions."""
    for old, new in CLEANED.items():
        text = text.replace(old, new)
    return text
