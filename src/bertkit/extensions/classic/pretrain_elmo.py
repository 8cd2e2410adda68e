"""Pretrain an ELMo from a corpus of whole words: Peters et al. 2018, section 3.1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import msgspec
import torch
from msgspec import Meta
from tokenizers import models
from torch import Tensor

from bertkit.batch import Batch
from bertkit.config import Count, Settings, decode
from bertkit.console import say
from bertkit.data.corpus import Corpus
from bertkit.data.corpus_volumes import in_volumes
from bertkit.data.samples import split_documents
from bertkit.errors import ConfigError, DataError, did_you_mean
from bertkit.extensions.classic.bidirectional_lm import BiLM, new_bilm
from bertkit.extensions.classic.bidirectional_loss import both_ways
from bertkit.extensions.classic.character_ids import CHARACTERS
from bertkit.extensions.classic.elmo import Elmo, ElmoConfig
from bertkit.extensions.classic.elmo_files import Softmax, hdf5, save_elmo
from bertkit.extensions.classic.whole_words import WholeWordSentences, sentence_batches
from bertkit.models.model import Model
from bertkit.nn.precision import resolve, resolve_device
from bertkit.recipes.model_sizes import Pretraining, Variant
from bertkit.recipes.pretrain_steps import (
    HeldOut,
    batches_of_step,
    begin,
    check_record,
    learn,
    optimization,
    tail_average,
    warn,
    with_parts,
)
from bertkit.recipes.run_file import Train
from bertkit.text.tokenizer import Tokenizer
from bertkit.training.checkpoints import OurNames, State
from bertkit.training.distributed import joined
from bertkit.training.master_weights import Masters
from bertkit.training.run import Resume, Run
from bertkit.training.trackers import check_tracker

FAMILY = "elmo"
"""What `family` is in the run file of one."""


class Told(Settings, frozen=True):
    """Which words are told."""

    words: Count = 10_000
    """The most frequent words of the corpus, over which the softmax goes; others are one class."""


class ElmoRun(Settings, frozen=True):
    """A complete run file of an ELMo."""

    family: Literal["elmo"]
    model: ElmoConfig
    train: Train
    softmax: Told = Told()
    held_out: Annotated[float, Meta(ge=0.0, lt=0.5)] = 0.01

    def __post_init__(self) -> None:
        for name in ("first_window", "z_loss", "zero_init", "label_smoothing", "compile"):
            if getattr(self.train, name):
                raise ValueError(f"train.{name}: an ELMo has none; leave it out")


def read_elmo_run(data: Mapping[str, Any]) -> ElmoRun:
    """The settings of a run. Raises: ConfigError with the key path."""
    config = decode(ElmoRun, data)
    # options.json holds more than is read; a run file does not
    _refuse_unknown(data.get("model", {}), msgspec.to_builtins(config.model), "model")
    return config


def _refuse_unknown(given: Any, known: Any, path: str) -> None:
    if not isinstance(given, Mapping):
        return
    for name, value in given.items():
        if name not in known:
            raise ConfigError(f"{path}.{name}: no such setting; {did_you_mean(name, known)}")
        _refuse_unknown(value, known[name], f"{path}.{name}")


def pretrain_elmo(
    settings: Mapping[str, Any], *, corpus: Path | str, out: Path, resume: Resume = False
) -> dict[str, float]:
    """Run (or go on with) the pretraining of an ELMo and return the held-out scores at its end.

    Each sentence is read alone, from the zero state. `out` becomes a folder with options.json and
    weights.hdf5, as published ones have them, and the softmax beside.
    Raises: ConfigError, DataError, CheckpointError, TrainingError, before work starts where the
    fault can be seen then.
    """
    with joined() as ranks:
        return _pretrain(Run(out, resume=resume, ranks=ranks), settings, corpus)


def _pretrain(run: Run, settings: Mapping[str, Any], corpus: Path | str) -> dict[str, float]:
    hdf5(run.out)
    text = Corpus.open(corpus)
    tokenizer = text.tokenizer()
    if not isinstance(tokenizer.core.model, models.WordLevel):
        raise DataError(
            f"{corpus}: holds pieces of words, and an ELMo learns from whole ones; make its "
            "vocabulary with `bertkit tokenizer train --kind words`"
        )
    tokenizer.need("bos", "eos", "unk")
    config = read_elmo_run(with_parts(settings, run))
    train = config.train
    device = resolve_device(train.device, "train.device")
    dtype = resolve(train.precision, device)
    warn(train, attention_dropout=0.0, device=device)
    check_tracker(train.track, "train.track")
    check_record(run, config, text, tokenizer)
    names = tokenizer.pieces(range(tokenizer.vocab_size))
    words = names[: config.softmax.words]
    samples = _Samples(text, tokenizer, names, config, run.ranks.share(train.parts))

    torch.manual_seed(train.seed)
    model = new_bilm(config.model, CHARACTERS, len(words)).to(device)
    as_model = cast(Model, model)  # the loop asks no more of it than to be called with a batch
    masters = Masters(as_model, dtype)
    optimizer, plan = optimization(train, masters, run.ranks)
    state = State(masters, optimizer, OurNames(), tail_average(train, masters))
    start = begin(run, state, config, train.steps)
    folder = _Folder(run, words)
    if run.ranks.first:
        folder.write(masters.weights)
    if start == 0:
        say(
            f"{sum(w.numel() for w in masters.weights.values()):,} parameters, "
            f"{len(samples.main):,} sentences an epoch, {text.tokens:,} words, of which "
            f"{len(words):,} different ones are told"
        )
    held_out = HeldOut(run, as_model, both_ways, samples.evaluation(), train.evaluate_every)
    scores = learn(
        run, both_ways, samples.batches, plan, train,
        folder=folder, held_out=held_out, start=start,
    )  # fmt: skip
    return with_perplexity(scores)


def with_perplexity(scores: Mapping[str, float]) -> dict[str, float]:
    """The held-out scores, and the perplexity that each direction's loss is."""
    losses = {name: value for name, value in scores.items() if name.endswith("_loss")}
    perplexities = {
        f"{name.removesuffix('_loss')}_perplexity": float(torch.tensor(value).exp())
        for name, value in losses.items()
    }
    return {**scores, **perplexities}


class _Samples:
    """The batches of every step, from the step's number alone, and the held-out ones."""

    def __init__(
        self, corpus: Corpus, tokenizer: Tokenizer, names: list[str], config: ElmoRun, parts: range
    ) -> None:
        self.train, self.parts = config.train, parts
        sentences = partial(
            WholeWordSentences,
            names=names,
            marks=(tokenizer.bos, tokenizer.eos, tokenizer.unk),
            size=min(config.softmax.words, len(names)),
            characters=config.model.char_cnn.max_characters_per_token,
        )

        def opened(volume: Corpus) -> WholeWordSentences:
            documents, _ = split_documents(volume, config.held_out)
            return sentences(volume, documents=documents, seed=seed)

        seed = config.train.seed
        self.main = in_volumes(corpus, opened, size=lambda v: v.sentences, seed=seed)
        volume = corpus.first_volume
        _, held_out = split_documents(volume, config.held_out)
        self._evaluated = sentences(volume, documents=held_out, seed=0) if len(held_out) else None

    def batches(self, step: int) -> list[Batch]:
        """Those of a step that are this process's."""

        def batches(first: int, count: int) -> list[Batch]:
            return sentence_batches(self.main.batch(first, count), self.train.max_batch_tokens)

        return batches_of_step(self.train, self.parts, step, batches)

    def evaluation(self) -> list[Batch]:
        if self._evaluated is None or not self.train.evaluate_samples:
            return []
        drawn = self._evaluated.evaluation(self.train.evaluate_samples)
        return sentence_batches(drawn, self.train.max_batch_tokens)


@dataclass(frozen=True)
class _Folder:
    """The folder of the ELMo that a run makes."""

    run: Run
    words: list[str]

    def show(self, checkpoint: Path, weights: Mapping[str, Tensor]) -> None:
        """Write the weights that were just saved."""
        self.write(weights)

    def write(self, weights: Mapping[str, Tensor]) -> None:
        model = self.run.state.masters.model
        prefix = "elmo."
        own = {n.removeprefix(prefix): w for n, w in weights.items() if n.startswith(prefix)}
        save_elmo(self.run.out, cast(BiLM, model).config, own)
        softmax = Softmax(self.words, weights["softmax.weight"], weights["softmax.bias"])
        softmax.save(self.run.out)


def elmo_variant(name: str, settings: Mapping[str, Any]) -> Variant:
    """Return the variant of a run file, from its name and settings."""
    run = read_elmo_run(settings)
    config, train = run.model, run.train
    with torch.device("meta"):
        parameters = sum(p.numel() for p in Elmo(config, CHARACTERS).parameters())
    return Variant(
        name=name,
        family=FAMILY,
        parameters=parameters,
        layers=config.layers,
        decoder=0,
        hidden=config.hidden,
        heads=0,
        embedding=config.lstm.projection_dim,
        weights=config.layers,
        method=f"next and previous words, of {run.softmax.words:,}",
        data=f"{train.steps:,} × {train.batch_size:,} sentences",
    )


PRETRAINING = Pretraining(pretrain_elmo, elmo_variant)
