"""Pretraining of an ELMo on a corpus of whole words. Peters et al. 2018, section 3.1."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
from bertkit.training.checkpoints import State
from bertkit.training.distributed import connect
from bertkit.training.master_weights import Masters
from bertkit.training.run import Resume, Run
from bertkit.training.trackers import check_tracker

FAMILY = "elmo"
"""Value of `family` in the run file of an ELMo."""


class SoftmaxSettings(Settings, frozen=True):
    """Settings of the softmax layer."""

    words: Count = 10_000
    """Number of words that the softmax layer predicts, the most frequent words. All other words are
    one class.
    """


class ElmoRun(Settings, frozen=True):
    """Content of the run file of an ELMo."""

    family: Literal["elmo"]
    model: ElmoConfig
    train: Train
    softmax: SoftmaxSettings = SoftmaxSettings()
    held_out: Annotated[float, Meta(ge=0.0, lt=0.5)] = 0.01

    def __post_init__(self) -> None:
        for name in ("first_window", "z_loss", "zero_init", "label_smoothing", "compile"):
            if getattr(self.train, name):
                raise ValueError(f"train.{name}: not supported by ELMo; remove this setting")


def read_elmo_run(data: Mapping[str, Any]) -> ElmoRun:
    """Parse the content of a run file.

    Args:
        data: The content of the run file.

    Raises:
        ConfigError: If a setting is invalid. The message contains the path of the setting.
    """
    config = decode(ElmoRun, data)
    # A run file must not contain unknown keys, unlike options.json.
    _check_unknown(data.get("model", {}), msgspec.to_builtins(config.model), "model")
    return config


def _check_unknown(given: Any, known: Any, path: str) -> None:
    if not isinstance(given, Mapping):
        return
    for name, value in given.items():
        if name not in known:
            raise ConfigError(f"{path}.{name}: no such setting; {did_you_mean(name, known)}")
        _check_unknown(value, known[name], f"{path}.{name}")


def pretrain_elmo(
    settings: Mapping[str, Any], *, corpus: Path | str, out: Path, resume: Resume = False
) -> dict[str, float]:
    """Pretrain an ELMo, or resume a run, and return the final scores on held-out text.

    Each sentence is read separately, and the LSTMs start from states of zeros. `out` contains
    options.json and weights.hdf5 in the published format, and the softmax layer. If possible,
    errors are raised before training starts.

    Args:
        settings: The content of the run file.
        corpus: Directory of the corpus.
        out: Output directory.
        resume: Whether to resume the run in the output directory.

    Returns:
        The scores by their names.

    Raises:
        ConfigError: If a setting is invalid.
        DataError: If the corpus is not usable.
        CheckpointError: If the checkpoint of a resumed run cannot be loaded.
        TrainingError: If training fails.
    """
    with connect() as ranks:
        return _pretrain(Run(out, resume=resume, ranks=ranks), settings, corpus)


def _pretrain(run: Run, settings: Mapping[str, Any], corpus: Path | str) -> dict[str, float]:
    hdf5(run.out)
    text = Corpus.open(corpus)
    tokenizer = text.tokenizer()
    if not isinstance(tokenizer.core.model, models.WordLevel):
        raise DataError(
            f"{corpus}: contains subwords, but ELMo requires whole words; prepare the corpus with "
            "a vocabulary from `bertkit tokenizer train --kind words`"
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
    # `BiLM` has the methods of a model that training uses.
    module = cast(Model, model)
    masters = Masters(module, dtype)
    optimizer, plan = optimization(train, masters, run.ranks)
    state = State(masters, optimizer, _OurNames(), tail_average(train, masters))
    start = begin(run, state, config, train.steps)
    folder = _Folder(run, words)
    if run.ranks.first:
        folder.write(masters.weights)
    if start == 0:
        say(
            f"{sum(w.numel() for w in masters.weights.values()):,} parameters, "
            f"{len(samples.main):,} sentences per epoch, {text.tokens:,} words, "
            f"{len(words):,} words in the softmax"
        )
    held_out = HeldOut(run, module, both_ways, samples.evaluation(), train.evaluate_every)
    scores = learn(
        run, both_ways, samples.batches, plan, train,
        show=folder.show, held_out=held_out, start=start,
    )  # fmt: skip
    return with_perplexity(scores)


def with_perplexity(scores: Mapping[str, float]) -> dict[str, float]:
    """Add the perplexity of each direction to the scores.

    Args:
        scores: The scores by their names.
    """
    losses = {name: value for name, value in scores.items() if name.endswith("_loss")}
    perplexities = {
        f"{name.removesuffix('_loss')}_perplexity": float(torch.tensor(value).exp())
        for name, value in losses.items()
    }
    return {**scores, **perplexities}


class _Samples:
    """Training batches of each step, and batches of held-out text.

    The batches of a step depend only on the number of the step.
    """

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

        def open_volume(volume: Corpus) -> WholeWordSentences:
            documents, _ = split_documents(volume, config.held_out)
            return sentences(volume, documents=documents, seed=seed)

        seed = config.train.seed
        self.main = in_volumes(corpus, open_volume, size=lambda v: v.sentences, seed=seed)
        volume = corpus.first_volume
        _, held_out = split_documents(volume, config.held_out)
        self._evaluated = sentences(volume, documents=held_out, seed=0) if len(held_out) else None

    def batches(self, step: int) -> list[Batch]:
        """Return the batches that this process computes in a step."""

        def batches(first: int, count: int) -> list[Batch]:
            return sentence_batches(self.main.batch(first, count), self.train.max_batch_tokens)

        return batches_of_step(self.train, self.parts, step, batches)

    def evaluation(self) -> list[Batch]:
        if self._evaluated is None or not self.train.evaluate_samples:
            return []
        samples = self._evaluated.evaluation(self.train.evaluate_samples)
        return sentence_batches(samples, self.train.max_batch_tokens)


class _OurNames:
    """Conversion for a model whose weights have the same names in its files."""

    def write(self, weights: Mapping[str, Tensor], /, config: Any) -> dict[str, Tensor]:
        return dict(weights)

    def read(
        self, names: Iterable[str], file: Mapping[str, Tensor], /, config: Any
    ) -> dict[str, Tensor]:
        return {name: file[name] for name in names if name in file}


@dataclass(frozen=True)
class _Folder:
    """Output directory of a run."""

    run: Run
    words: list[str]

    def show(self, checkpoint: Path, weights: Mapping[str, Tensor]) -> None:
        """Save the weights of the last checkpoint in the published format."""
        self.write(weights)

    def write(self, weights: Mapping[str, Tensor]) -> None:
        model = self.run.state.masters.model
        prefix = "elmo."
        inner = {n.removeprefix(prefix): w for n, w in weights.items() if n.startswith(prefix)}
        save_elmo(self.run.out, cast(BiLM, model).config, inner)
        softmax = Softmax(self.words, weights["softmax.weight"], weights["softmax.bias"])
        softmax.save(self.run.out)


def elmo_variant(name: str, settings: Mapping[str, Any]) -> Variant:
    """Return a summary of the model and the run, given the name and content of a run file."""
    run = read_elmo_run(settings)
    config, train = run.model, run.train
    with torch.device("meta"):
        parameters = sum(weight.numel() for weight in Elmo(config, CHARACTERS).parameters())
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
        method=f"next and previous words, {run.softmax.words:,} classes",
        data=f"{train.steps:,} × {train.batch_size:,} sentences",
    )


PRETRAINING = Pretraining(pretrain_elmo, elmo_variant)
