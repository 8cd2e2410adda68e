"""Words of sentences to their vectors, layer by layer (ELMo)."""

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
    """The words of a sentence and what each layer makes of them.

    Shapes: layers (L + 1, W, D): 0 is the word's own vector, the others read the sentence.
    """

    words: list[str]
    layers: NDArray[np.float32]

    @property
    def mean(self) -> NDArray[np.float32]:
        """The mean over layers, as which ELMo's weighted sum begins. Shapes: (W, D)."""
        mean: NDArray[np.float32] = self.layers.mean(0)
        return mean


class ElmoPipeline:
    """Base of the pipelines of an ELMo, which computes in fp32 on the CPU."""

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
        """Open a model as this pipeline; for the arguments and errors see `bertkit.pipeline`."""
        check_cpu(device, "an ELMo")
        if isinstance(model, Loaded):
            raise open_format(model).mismatch("an ELMo", "pass the directory of an ELMo")
        if precision != "fp32" or revision is not None:
            raise ConfigError(f"precision, revision: {cls.name} has none; leave them out")
        return cls(model)


class Words(ElmoPipeline):
    """Sentences -> the states of their words. Nothing is kept from one call to the next."""

    name = "words"

    def __init__(
        self,
        model: Elmo | str | Path,
        *,
        max_batch_tokens: int = MAX_BATCH_TOKENS,
        length: int | None = None,
    ) -> None:
        """`model` is an ELMo, or its folder.

        `length` is how many words a sentence has at most: a server gives one, and a cut word is
        told nobody there, since its log holds no text.
        Raises: CheckpointError.
        """
        self.model = model if isinstance(model, Elmo) else load_elmo(model)
        self.max_batch_tokens, self.length = max_batch_tokens, length

    @check_keywords
    def __call__(self, sentences: str | Sequence[Text]) -> list[WordStates]:
        """The states of each sentence's words; no sentence changes another's.

        A sentence is raw text, which is split at white space and punctuation, or its words.
        Raises: DataError for a sentence without words, or a word without a character.
        """
        split = self.split([sentences] if isinstance(sentences, str) else sentences)
        states: list[WordStates] = [WordStates([], np.empty(0, np.float32))] * len(split)
        for place, rows in self.stream([self.ids(words) for words in split]):
            states[place] = WordStates(split[place], _of_words(rows))
        return states

    def ids(self, words: Sequence[str]) -> NDArray[np.int64]:
        """What the model reads of a sentence, its begin and end too. Shapes: (W + 2, characters).

        Raises: DataError for more words than `length`.
        """
        if self.length is not None and len(words) > self.length:
            raise DataError(
                f"{' '.join(words[:8])[:40]!r}…: {len(words):,} words, and {self.length} are the "
                "most here; shorten it"
            )
        return sentence_ids(words, self.model.config.char_cnn.max_characters_per_token)

    def stream(self, sentences: Sequence[NDArray[np.int64]]) -> Iterator[tuple[int, Tensor]]:
        """The states of `ids`, shortest sentences first, each with the place of its sentence.

        Shapes: (T, characters) -> (layers + 1, T, D).
        """
        for places in by_length([len(ids) for ids in sentences], self.max_batch_tokens):
            parts, _ = self._run([sentences[place] for place in places], None)
            yield from zip(places, parts, strict=True)

    def carried(self, batches: Iterable[Sequence[Text]]) -> Iterator[list[WordStates]]:
        """The same of batches, but the LSTMs go on where they stopped: sentence i of each batch
        begins with the state after sentence i of the batch before it, in both directions.

        AllenNLP does so always; results then depend on what ran before.
        Raises: DataError also for a batch of another size than the first.
        """
        state: State | None = None
        for number, batch in enumerate(batches):
            if state is not None and len(batch) != state[0].shape[2]:
                raise DataError(
                    f"batch {number}: {len(batch)} sentences, and there were {state[0].shape[2]} "
                    "before it; give each batch the same number"
                )
            split = self.split(batch)
            parts, state = self._run([self.ids(words) for words in split], state)
            rows = map(_of_words, parts)
            yield [WordStates(*one) for one in zip(split, rows, strict=True)]

    def split(self, sentences: Sequence[Text]) -> list[list[str]]:
        """The words of sentences. Raises: DataError for what cannot be read."""
        split = [
            untagged(sentence).words if isinstance(sentence, str) else list(sentence)
            for sentence in sentences
        ]
        for number, words in enumerate(split):
            if not words or not all(words):
                what = "has no words" if not words else f"word {words.index('')} is empty"
                raise DataError(f"sentence {number}: {what}; leave it out")
        most = self.model.config.char_cnn.max_characters_per_token - 2
        cut = [word for words in split for word in words if len(bytes_of(word)) > most]
        if cut and self.length is None:
            say(
                f"{len(cut):,} words have more than {most} bytes, and the model reads these alone; "
                f"the first is {cut[0][:20]!r}…"
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
    """The encoding of words with these ids; their begin and end are no words."""
    count = len(ids) - 2
    nothing = np.zeros((len(ids), 2), np.int64)
    inner: list[int | None] = [0] * count
    return Encoding(
        ids=ids,
        types=nothing[:, 0],
        offsets=nothing,
        words=[None, *range(count), None],
        sequence=[None, *inner, None],
        truncated=False,
    )


def _of_words(states: Tensor) -> NDArray[np.float32]:
    """Begin and end of a sentence are no words of it."""
    rows: NDArray[np.float32] = states[:, 1:-1].numpy()
    return rows
