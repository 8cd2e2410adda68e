"""The samples of a pretraining: what of a corpus is learned from in which step."""

from __future__ import annotations

from typing import Any

from bertkit.batch import Batch
from bertkit.data.blocks import Blocks
from bertkit.data.collate import collate
from bertkit.data.corpus import Corpus
from bertkit.data.corpus_volumes import in_volumes
from bertkit.data.corruption import Corrupted
from bertkit.data.masking import Masking
from bertkit.data.pairs import Pairs, PairSamples, split_pairs
from bertkit.data.samples import Ids, Samples, split_documents
from bertkit.data.shuffling import Shuffled
from bertkit.families import FAMILIES
from bertkit.recipes.pretrain_steps import batches_of_step
from bertkit.recipes.run_file import PretrainConfig, heads_of
from bertkit.text.tokenizer import Tokenizer
from bertkit.training.distributed import Ranks


class RunSamples:
    """The batches of every step, from the step's number alone, and the held-out ones."""

    def __init__(
        self, corpus: Corpus | Pairs, tokenizer: Tokenizer, config: PretrainConfig, ranks: Ranks
    ) -> None:
        self.config, self.parts = config, ranks.share(config.train.parts)
        self.head = next((head for head in heads_of(config) if head != "mlm"), None)
        sampling = config.sampling
        self._corpus, self._tokenizer = corpus, tokenizer
        self.main = self._learned(sampling.length)
        self.first, self.until = self.main, 0
        if sampling.first_length is not None:
            self.first = self._learned(sampling.first_length)
            self.until = round(sampling.first_share * config.train.steps)

    def _learned(self, length: int) -> Shuffled[Any]:
        """The samples that are learned from."""

        def opened(text: Corpus | Pairs) -> Shuffled[Any]:
            learned, _ = self._split(text)
            return self._of(text, learned, config.masking, seed=seed, length=length)

        config, seed = self.config, self.config.train.seed
        if isinstance(self._corpus, Pairs):
            return opened(self._corpus)
        return in_volumes(self._corpus, opened, size=lambda v: -(-v.tokens // length), seed=seed)

    def _split(self, text: Corpus | Pairs) -> tuple[Ids, Ids]:
        """The numbers of documents, or pairs, to learn from, and of those held out."""
        share = self.config.sampling.held_out
        return split_pairs(text, share) if isinstance(text, Pairs) else split_documents(text, share)

    def _of(
        self,
        text: Corpus | Pairs,
        documents: Ids,
        masking: Masking,
        *,
        seed: int = 0,
        length: int | None = None,
    ) -> Shuffled[Any]:
        """What these documents give to learn from."""
        sampling, tokenizer = self.config.sampling, self._tokenizer
        shared: Any = {"documents": documents, "length": length or sampling.length, "seed": seed}
        if isinstance(text, Pairs):
            start = getattr(tokenizer, FAMILIES[self.config.family].start)
            return PairSamples(text, tokenizer, start=start, **shared)
        if self.config.decoder is not None:
            start = getattr(tokenizer, FAMILIES[self.config.family].start)
            damage: Any = self.config.objective
            return Corrupted(text, tokenizer, damage, self.config.corruption, start=start, **shared)
        if self.config.objective == "next":
            return Blocks(text, tokenizer, **shared)
        return Samples(text, tokenizer, sampling, masking, **shared)

    def batches(self, step: int) -> list[Batch]:
        """Those of a step that are this process's."""
        train, masking = self.config.train, self.config.masking
        samples = self.first if step < self.until else self.main
        changes = masking.first_mlm_probability is not None
        share = masking.probability(step, train.steps) if changes else None

        def batches(first: int, count: int) -> list[Batch]:
            drawn = samples.batch(first, count, share)
            return collate(drawn, head=self.head, max_batch_tokens=train.max_batch_tokens)

        return batches_of_step(train, self.parts, step, batches)

    def evaluation(self) -> list[Batch]:
        """Held-out batches whose masks are always 15 % tokens, so that losses compare."""
        train, text = self.config.train, self._corpus
        if not isinstance(text, Pairs):
            text = text.first_volume
        _, held_out = self._split(text)
        if not len(held_out) or not train.evaluate_samples:
            return []
        samples = self._of(text, held_out, Masking())
        drawn = samples.evaluation(train.evaluate_samples)
        return collate(drawn, head=self.head, max_batch_tokens=train.max_batch_tokens)
