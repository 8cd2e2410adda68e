"""Samples of a pretraining run: the batches of each training step, and the held-out batches."""

from __future__ import annotations

from typing import Any

from bertkit.batch import Batch
from bertkit.data.corpus import Corpus, PreparedText
from bertkit.data.corpus_volumes import in_volumes
from bertkit.data.masking import Masking
from bertkit.data.shuffling import Shuffled
from bertkit.recipes.pretrain_config import PretrainConfig
from bertkit.recipes.pretrain_steps import batches_of_step
from bertkit.text.tokenizer import Tokenizer
from bertkit.training.distributed import Ranks


class RunSamples:
    """Batches of a run. The batches of a step depend only on the number of the step.

    Args:
        text: Prepared text.
        tokenizer: Tokenizer of the text.
        config: Settings of the run.
        ranks: Processes of the run.
    """

    def __init__(
        self, text: PreparedText, tokenizer: Tokenizer, config: PretrainConfig, ranks: Ranks
    ) -> None:
        self.config, self.parts = config, ranks.share(config.train.parts)
        self._text, self._tokenizer = text, tokenizer
        sampling = config.sampling
        self.main = self._build(sampling.length)
        self.first, self.until = self.main, 0
        if sampling.first_length is not None:
            self.first = self._build(sampling.first_length)
            self.until = round(sampling.first_share * config.train.steps)

    def _build(self, length: int) -> Shuffled[Any]:
        """Return the training samples, which have up to `length` tokens."""
        config, seed = self.config, self.config.train.seed
        sampler = config.sampler(self._tokenizer, config.masking)

        def sample(text: PreparedText) -> Shuffled[Any]:
            documents, _ = config.split(text)
            return sampler(text, documents=documents, length=length, seed=seed)

        if not isinstance(self._text, Corpus):
            return sample(self._text)
        return in_volumes(self._text, sample, size=lambda v: -(-v.tokens // length), seed=seed)

    def batches(self, step: int) -> list[Batch]:
        """Return the batches that this process computes in a step."""
        config = self.config
        samples = self.first if step < self.until else self.main
        changes = config.masking.first_mlm_probability is not None
        rate = config.masking.probability(step, config.train.steps) if changes else None

        def batches(first: int, count: int) -> list[Batch]:
            return config.pack(samples.batch(first, count, rate))

        return batches_of_step(config.train, self.parts, step, batches)

    def evaluation(self) -> list[Batch]:
        """Return the held-out batches.

        They always have the default masking, so that losses of different runs are comparable.
        """
        config = self.config
        text = self._text.first_volume if isinstance(self._text, Corpus) else self._text
        _, held_out = config.split(text)
        if not len(held_out) or not config.train.evaluate_samples:
            return []
        sampler = config.sampler(self._tokenizer, Masking())
        samples = sampler(text, documents=held_out, length=config.sampling.length, seed=0)
        return config.pack(samples.evaluation(config.train.evaluate_samples))
