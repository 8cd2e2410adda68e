"""Pipeline that predicts a missing word with both directions of an ELMo."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from bertkit.checkpoint.hub import resolve
from bertkit.data.rows_in_memory import as_list
from bertkit.data.tagged_text import untagged
from bertkit.errors import ConfigError
from bertkit.extensions.classic.elmo_files import load_elmo, load_softmax
from bertkit.extensions.classic.gap import Gap
from bertkit.extensions.classic.words import ElmoPipeline, Words, whole_words
from bertkit.pipelines.fill_mask import Candidate, TopOptions
from bertkit.synonyms import check_keywords
from bertkit.tasks.inference import Work
from bertkit.tasks.task import Feature
from bertkit.text.long_texts import Long


class GapAnswer(msgspec.Struct, frozen=True):
    """Words before and after a gap, and the most probable words for the gap.

    `forward` is predicted only from the words before the gap, and `backward` only from the words
    after the gap. The most probable word is first.
    """

    before: list[str]
    after: list[str]
    forward: list[Candidate]
    backward: list[Candidate]


class FillGap(ElmoPipeline):
    """Pipeline that predicts the word for a gap in a text with both directions of an ELMo.

    The gap is written ___. The forward model predicts the word from the text before the gap, and
    the backward model from the text after the gap.
    Source: Peters et al. 2018, section 3.1.
    """

    name = "fill-gap"
    policies: tuple[Long, ...] = ("error",)
    item, prediction, options = str, GapAnswer, TopOptions
    example = "I am a ___ . I like playing cricket."

    def __init__(self, model: str | Path, words: Words | None = None) -> None:
        """Load an ELMo with its softmax layer.

        Args:
            model: Directory of the ELMo.
            words: Pipeline of the same ELMo, if it is already loaded.

        Raises:
            CheckpointError: If the model cannot be loaded, or has no softmax layer. Published
                ELMo directories do not contain it.
        """
        folder = resolve(model)
        self.words = words or Words(load_elmo(folder))
        self.softmax = load_softmax(folder, self.words.model.config)

    @check_keywords
    def __call__(self, texts: str | Sequence[str], *, top: int = 10) -> list[GapAnswer]:
        """Predict the word for the gap in each text.

        Args:
            texts: Texts with exactly one gap, written ___.
            top: Number of words to return for each direction.

        Returns:
            The prediction for each text.

        Raises:
            ConfigError: If `top` is less than 1.
            DataError: If a text does not have exactly one gap.
        """
        if top < 1:
            raise ConfigError(f"top must be at least 1, got {top}")
        return self.run(self.prepare(as_list(texts), top=top))

    def prepare(self, texts: Sequence[str], *, long: Long = "error", top: int = 10) -> list[Work]:
        """Encode texts, and return the work for each text.

        Args:
            texts: Texts with exactly one gap, written ___.
            long: Ignored. A text that is too long always causes an error.
            top: Number of words to return for each direction.

        Raises:
            DataError: If a text does not have exactly one gap, or has too many words.
        """
        works = []
        for gap in map(Gap.of, texts):
            before, after = untagged(gap.before).words, untagged(gap.after).words
            # A state depends only on the words that its direction has already read, so one
            # sequence without the gap serves both directions.
            encoding = whole_words(self.words.ids([*before, *after]))
            works.append(Work([Feature(encoding, 0)], (before, after, top)))
        return works

    def run(self, works: Sequence[Work]) -> list[GapAnswer]:
        """Predict the word for the gap in each text."""
        answers: list[GapAnswer | None] = [None] * len(works)
        for index, states in self.words.stream([work.features[0].encoding.ids for work in works]):
            before, after, top = works[index].item
            forward, backward = states[-1].chunk(2, -1)
            answers[index] = GapAnswer(
                before,
                after,
                self._top_words(forward[len(before)], top),
                self._top_words(backward[len(before) + 1], top),
            )
        return [answer for answer in answers if answer is not None]

    def _top_words(self, state: Tensor, top: int) -> list[Candidate]:
        """Return the `top` most probable words.

        Shapes:
            state: (P,).
        """
        softmax = self.softmax
        logits = softmax.weight @ state + softmax.bias
        best = torch.softmax(logits, -1).topk(min(top, len(softmax.words)))
        words = [softmax.words[row] for row in best.indices.tolist()]
        return list(map(Candidate, words, best.values.tolist()))
