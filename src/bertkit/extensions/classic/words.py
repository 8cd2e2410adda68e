"""Pipeline that computes the states of words with an ELMo."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertkit.batch import by_length
from bertkit.checkpoint.directory import Loaded
from bertkit.checkpoint.formats import open_format
from bertkit.console import say
from bertkit.data.tagged_text import untagged
from bertkit.engine.engine import MAX_BATCH_TOKENS
from bertkit.errors import ConfigError, DataError
from bertkit.extensions.classic.character_ids import bytes_of, sentence_ids
from bertkit.extensions.classic.elmo import Elmo, State
from bertkit.extensions.classic.elmo_files import load_elmo
from bertkit.nn.precision import Inference, check_cpu
from bertkit.synonyms import check_keywords
from bertkit.text.encoding import Encoding, Text


@dataclass(frozen=True, eq=False)
class WordStates:
    """Words of a sentence, with their states in each layer.

    Shapes:
        layers: (L + 1, W, D). Layer 0 contains the word vectors, which do not depend on the
            sentence.
    """

    words: list[str]
    layers: NDArray[np.float32]

    @property
    def mean(self) -> NDArray[np.float32]:
        """Mean of the states over the layers, of shape (W, D).

        ELMo's weighted sum of layers has this value before training.
        """
        mean: NDArray[np.float32] = self.layers.mean(0)
        return mean


class ElmoPipeline:
    """Base class of pipelines for an ELMo, which run in fp32 on the CPU."""

    name: ClassVar[str]

    def __init__(self, model: str | Path) -> None:
        raise NotImplementedError

    @classmethod
    def open(
        cls,
        model: str | Path | Loaded,
        *,
        precision: Inference = "fp32",
        device: str = "auto",
        revision: str | None = None,
    ) -> Self:
        """Open this pipeline for a model. For the arguments and errors, see `bertkit.pipeline`."""
        check_cpu(device, "an ELMo")
        if isinstance(model, Loaded):
            raise open_format(model).mismatch("an ELMo", "pass the directory of an ELMo")
        if precision != "fp32" or revision is not None:
            raise ConfigError(
                f"precision, revision: not supported by the pipeline {cls.name}; remove them"
            )
        return cls(model)


class Words(ElmoPipeline):
    """Pipeline that computes the states of the words in sentences.

    The states do not depend on earlier calls.
    """

    name = "words"

    def __init__(
        self,
        model: Elmo | str | Path,
        *,
        max_batch_tokens: int = MAX_BATCH_TOKENS,
        length: int | None = None,
    ) -> None:
        """Load an ELMo.

        Args:
            model: The ELMo, or its directory.
            max_batch_tokens: Maximum number of words in a batch.
            length: Maximum number of words per sentence. A server sets it. If it is set, no
                warnings about truncated words are printed, because a server must not log texts.

        Raises:
            CheckpointError: If the model cannot be loaded.
        """
        self.model = model if isinstance(model, Elmo) else load_elmo(model)
        self.max_batch_tokens, self.length = max_batch_tokens, length

    @check_keywords
    def __call__(self, sentences: str | Sequence[Text]) -> list[WordStates]:
        """Compute the states of the words in each sentence. Sentences do not affect each other.

        Args:
            sentences: Each sentence is a text, which is split at whitespace and punctuation, or a
                list of words.

        Returns:
            The words and states of each sentence.

        Raises:
            DataError: If a sentence has no words, or a word is empty.
        """
        split = self.split([sentences] if isinstance(sentences, str) else sentences)
        states: list[WordStates] = [WordStates([], np.empty(0, np.float32))] * len(split)
        for index, rows in self.stream([self.ids(words) for words in split]):
            states[index] = WordStates(split[index], _remove_boundaries(rows))
        return states

    def ids(self, words: Sequence[str]) -> NDArray[np.int64]:
        """Convert a sentence to character ids, including its beginning and end.

        Args:
            words: The words of the sentence.

        Raises:
            DataError: If there are more than `length` words.

        Shapes:
            returns: (W + 2, characters).
        """
        if self.length is not None and len(words) > self.length:
            raise DataError(
                f"{' '.join(words[:8])[:40]!r}…: the sentence must have at most {self.length} "
                f"words, got {len(words):,}"
            )
        return sentence_ids(words, self.model.config.char_cnn.max_characters_per_token)

    def stream(self, sentences: Sequence[NDArray[np.int64]]) -> Iterator[tuple[int, Tensor]]:
        """Compute the states of sentences, and yield them in order of increasing length.

        Args:
            sentences: Character ids of each sentence.

        Yields:
            The index of a sentence, and its states.

        Shapes:
            sentences: (T, characters) for each sentence.
            states: (layers + 1, T, D).
        """
        for indices in by_length([len(ids) for ids in sentences], self.max_batch_tokens):
            parts, _ = self._run([sentences[index] for index in indices], None)
            yield from zip(indices, parts, strict=True)

    def carried(self, batches: Iterable[Sequence[Text]]) -> Iterator[list[WordStates]]:
        """Compute the states of sentences while the LSTMs keep their state between batches.

        Sentence i of each batch starts with the final state of sentence i of the previous batch, in
        both directions. Therefore, the results depend on previous batches. AllenNLP always does
        this.

        Args:
            batches: Batches of sentences.

        Yields:
            The words and states of the sentences in each batch.

        Raises:
            DataError: If a sentence is invalid, or the batches have different sizes.
        """
        state: State | None = None
        for number, batch in enumerate(batches):
            if state is not None and len(batch) != state[0].shape[2]:
                raise DataError(
                    f"batch {number} must have {state[0].shape[2]} sentences, as the previous "
                    f"batches do, got {len(batch)}"
                )
            split = self.split(batch)
            parts, state = self._run([self.ids(words) for words in split], state)
            rows = map(_remove_boundaries, parts)
            yield [WordStates(*pair) for pair in zip(split, rows, strict=True)]

    def split(self, sentences: Sequence[Text]) -> list[list[str]]:
        """Split sentences into words.

        Args:
            sentences: The sentences.

        Raises:
            DataError: If a sentence has no words, or a word is empty.
        """
        split = [
            untagged(sentence).words if isinstance(sentence, str) else list(sentence)
            for sentence in sentences
        ]
        for number, words in enumerate(split):
            if not words or not all(words):
                problem = "has no words" if not words else f"word {words.index('')} is empty"
                raise DataError(f"sentence {number}: {problem}; remove the sentence or the word")
        limit = self.model.config.char_cnn.max_characters_per_token - 2
        truncated = [word for words in split for word in words if len(bytes_of(word)) > limit]
        if truncated and self.length is None:
            say(
                f"{len(truncated):,} words are truncated to {limit} bytes; "
                f"the first is {truncated[0][:20]!r}…"
            )
        return split

    @torch.inference_mode()
    def _run(
        self, sentences: Sequence[NDArray[np.int64]], state: State | None
    ) -> tuple[list[Tensor], State | None]:
        if not sentences:
            return [], state
        lengths = [len(ids) for ids in sentences]
        ids = torch.from_numpy(np.concatenate(sentences))
        device = self.model.words.projection.weight.device
        states, state = self.model(ids.to(device), lengths, state)
        return list(states.cpu().split(lengths, 1)), state


def whole_words(ids: NDArray[np.int64]) -> Encoding:
    """Return the encoding of a sentence.

    Args:
        ids: Character ids of the sentence, including its beginning and end.
    """
    count = len(ids) - 2
    zeros = np.zeros((len(ids), 2), np.int64)
    inner: list[int | None] = [0] * count
    return Encoding(
        ids=ids,
        types=zeros[:, 0],
        offsets=zeros,
        words=[None, *range(count), None],
        sequence=[None, *inner, None],
        truncated=False,
    )


def _remove_boundaries(states: Tensor) -> NDArray[np.float32]:
    """Remove the states of the markers for the beginning and end of a sentence."""
    rows: NDArray[np.float32] = states[:, 1:-1].numpy()
    return rows
