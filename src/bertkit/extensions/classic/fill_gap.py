"""A sentence with a gap to the words that the two directions of an ELMo expect there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from bertkit.checkpoint.hub import resolve
from bertkit.data.rows_in_memory import several
from bertkit.data.tagged_text import untagged
from bertkit.errors import ConfigError
from bertkit.extensions.classic.elmo_files import load_elmo, load_softmax
from bertkit.extensions.classic.gap import Gap
from bertkit.extensions.classic.words import ElmoPipeline, Words, whole_words
from bertkit.pipelines.base import Work
from bertkit.pipelines.fill_mask import Candidate, TopOptions
from bertkit.synonyms import check_keywords
from bertkit.tasks.task import Feature
from bertkit.text.long_texts import Long


class GapAnswer(msgspec.Struct, frozen=True):
    """The words before and after a gap, and the likeliest words for it, likeliest first.

    `forward` is told from what stands before alone, `backward` from what stands behind.
    """

    before: list[str]
    after: list[str]
    forward: list[Candidate]
    backward: list[Candidate]


class FillGap(ElmoPipeline):
    """Predict the word at the gap of a text, written ___, with both language models of an ELMo.

    The forward model predicts the next word, and the backward model the previous word.
    Source: Peters et al. 2018, section 3.1.
    """

    name = "fill-gap"
    policies: tuple[Long, ...] = ("error",)
    item, prediction, options = str, GapAnswer, TopOptions
    example = "I am a ___ . I like playing cricket."

    def __init__(self, model: str | Path, words: Words | None = None) -> None:
        """`model` is the folder of an ELMo with its softmax, `words` what it was opened as.

        Raises: CheckpointError, also for a published folder, which has none.
        """
        folder = resolve(model)
        self.words = words or Words(load_elmo(folder))
        self.softmax = load_softmax(folder, self.words.model.config)

    @check_keywords
    def __call__(self, texts: str | Sequence[str], *, top: int = 10) -> list[GapAnswer]:
        """An answer for each. Raises: DataError for a text without exactly one gap."""
        if top < 1:
            raise ConfigError(f"top: {top} words; ask for one at least")
        return self.run(self.prepare(several(texts), top=top))

    def prepare(self, texts: Sequence[str], *, long: Long = "error", top: int = 10) -> list[Work]:
        """Raises: DataError for a text without exactly one gap, or of more words than there may
        be.
        """
        works = []
        for gap in map(Gap.of, texts):
            before, after = untagged(gap.before).words, untagged(gap.after).words
            # a state knows nothing of what comes after it in its direction: both stand in one
            # reading
            encoding = whole_words(self.words.ids([*before, *after]))
            works.append(Work([Feature(encoding, 0)], (before, after, top)))
        return works

    def run(self, works: Sequence[Work]) -> list[GapAnswer]:
        """An answer for each."""
        answers: list[GapAnswer | None] = [None] * len(works)
        for place, states in self.words.stream([work.features[0].encoding.ids for work in works]):
            before, after, top = works[place].item
            forward, backward = states[-1].chunk(2, -1)
            answers[place] = GapAnswer(
                before,
                after,
                self._likeliest(forward[len(before)], top),
                self._likeliest(backward[len(before) + 1], top),
            )
        return [answer for answer in answers if answer is not None]

    def _likeliest(self, state: Tensor, top: int) -> list[Candidate]:
        """Shapes: (P,)."""
        softmax = self.softmax
        logits = softmax.weight @ state + softmax.bias
        likely = torch.softmax(logits, -1).topk(min(top, len(softmax.words)))
        words = [softmax.words[row] for row in likely.indices.tolist()]
        return list(map(Candidate, words, likely.values.tolist()))
