"""Pretraining objectives of generative models: their settings, texts, and samples."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from bertkit.batch import Batch
from bertkit.config import at, paths
from bertkit.data.collate import pack_by_length
from bertkit.data.corpus import PreparedText
from bertkit.data.masking import Masking
from bertkit.data.samples import Ids
from bertkit.extensions.generation.bleu import sacrebleu_metrics, score_translations
from bertkit.extensions.generation.blocks import Blocks, pack_blocks
from bertkit.extensions.generation.corruption import Corrupted, Corruption, CorruptionType
from bertkit.extensions.generation.pairs import SIDES, Pairs, PairSamples, pack_pairs, split_pairs
from bertkit.extensions.generation.pipeline import Generate
from bertkit.extensions.generation.prepare_pairs import read_pairs
from bertkit.families import FAMILIES
from bertkit.recipes.pretrain_config import PretrainConfig, Sampler, TestScorer
from bertkit.text.tokenizer import Tokenizer

METHODS = {
    "next": "next tokens",
    "translate": "translations",
    "spans": "span corruption",
    "infill": "text infilling",
    "mass": "masked span (MASS)",
    "prefix": "prefix LM",
}
"""Short description of each objective."""

IGNORED = (
    *("generator", "teacher", "masking."),
    *("sampling.cross_documents", "sampling.short_seq_probability"),
)
"""Settings that no generative objective uses, as prefixes of their names."""


class GenerativeConfig(PretrainConfig, frozen=True):
    """Settings that all generative objectives share. These objectives do not mask tokens."""

    def unsupported(self) -> Sequence[str]:
        defaults = paths(type(self))
        ignored = [name for name in defaults if name.startswith(IGNORED)]
        return [name for name in ignored if at(self, name) != defaults[name]]

    @property
    def heads(self) -> tuple[str, ...]:
        return ("lm",)

    @property
    def hub_task(self) -> str:
        return "translation" if self.objective == "translate" else "text-generation"

    @property
    def method(self) -> str:
        return METHODS[self.objective]


class NextTokenConfig(GenerativeConfig, frozen=True):
    """Settings for next-token prediction with a causal model, such as GPT."""

    objective: Literal["next"] = "next"

    architecture: ClassVar[str] = "a causal model"

    def sampler(self, tokenizer: Tokenizer, masking: Masking) -> Sampler:
        return partial(Blocks, tokenizer=tokenizer)

    def pack(self, samples: Sequence[Any]) -> list[Batch]:
        return pack_by_length(samples, pack_blocks, self.train.max_batch_tokens)


class SequenceToSequenceConfig(GenerativeConfig, frozen=True):
    """Settings that all objectives of encoder-decoder models share."""

    architecture: ClassVar[str] = "an encoder with a decoder"

    def unsupported(self) -> Sequence[str]:
        has_first_length = self.sampling.first_length is not None
        return [*super().unsupported(), *["sampling.first_length"] * has_first_length]

    def start(self, tokenizer: Tokenizer) -> int:
        """Return the id of the token that starts the decoder's input."""
        start: int = getattr(tokenizer, FAMILIES[self.family].start)
        return start

    def pack(self, samples: Sequence[Any]) -> list[Batch]:
        return pack_by_length(samples, pack_pairs, self.train.max_batch_tokens)


class TranslationConfig(SequenceToSequenceConfig, frozen=True):
    """Settings for translation. The model is trained to generate a target text from its source."""

    objective: Literal["translate"] = "translate"

    @classmethod
    def open_text(cls, folder: Path | str) -> PreparedText:
        return Pairs.open(folder)

    def split(self, text: Any) -> tuple[Ids, Ids]:
        return split_pairs(text, self.sampling.held_out)

    def sampler(self, tokenizer: Tokenizer, masking: Masking) -> Sampler:
        return partial(PairSamples, tokenizer=tokenizer, start=self.start(tokenizer))

    def read_test(self, file: Path) -> TestScorer:
        sacrebleu_metrics()
        (sources, _), (references, _) = read_pairs(None, None, file, *SIDES)

        def score(folder: Path) -> dict[str, float]:
            generate = Generate.open(folder, device=self.train.device)
            return score_translations(generate, sources, references).scores

        return score


class DenoisingConfig(SequenceToSequenceConfig, frozen=True):
    """Settings for denoising of corrupted text, as in T5, BART, MASS, or a prefix LM."""

    objective: CorruptionType = "spans"
    corruption: Corruption = Corruption()
    """Settings of text corruption."""

    def unsupported(self) -> Sequence[str]:
        is_ignored = self.corruption.permute and self.objective != "infill"
        return [*super().unsupported(), *["corruption.permute"] * is_ignored]

    @property
    def method(self) -> str:
        fraction = f"; {self.corruption.rate:.0%} of tokens"
        return super().method + fraction * (self.objective != "prefix")

    def sampler(self, tokenizer: Tokenizer, masking: Masking) -> Sampler:
        corrupted = partial(Corrupted, kind=self.objective, settings=self.corruption)
        return partial(corrupted, tokenizer=tokenizer, start=self.start(tokenizer))
