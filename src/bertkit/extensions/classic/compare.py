"""Classification as it was done from one year to the next: what transfer was worth at each step.

A pretrained encoder beside the encoder from scratch (Devlin et al. 2019, section 5), and what was
usual before: word vectors, language models of LSTMs, a frozen ELMo, GPT.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from markupsafe import Markup
from msgspec import Meta
from msgspec.structs import replace

from bertkit.checkpoint.directory import Loaded, load, save
from bertkit.checkpoint.formats import open_format
from bertkit.checkpoint.weights import FILE as WEIGHTS
from bertkit.config import Count, Positive, Seed, Settings, plain
from bertkit.console import say
from bertkit.errors import CheckpointError, ConfigError, DataError
from bertkit.extensions.classic.recurrent_config import RecurrentConfig
from bertkit.extensions.classic.word_features import WordFeatureEncoder, WordFeatures, WordTokenizer
from bertkit.extensions.classic.word_models import ElmoFormat
from bertkit.metrics import spread
from bertkit.models.model import build
from bertkit.nn.precision import Precision
from bertkit.recipes.evaluate import evaluate, numbers
from bertkit.recipes.finetune import Finetune, finetune
from bertkit.recipes.study import Way, study
from bertkit.storage import refuse_used, write_json
from bertkit.tasks.classify import Classify, ClassifyOptions, LabelExample
from bertkit.tasks.examples import read_examples
from bertkit.tasks.task import Reading
from bertkit.view.chart import score_bars, write_svg
from bertkit.view.figures import Table, score_table
from bertkit.view.page import write_report

RANDOM, VECTORS, LSTM, ELMO, GPT, PRETRAINED = (
    "random weights",
    "word vectors",
    "LSTM fine-tuned",
    "ELMo features",
    "GPT fine-tuned",
    "pretrained",
)
"""The ways, in the order of the table: the last five in that of their years."""

REASONS = {
    RANDOM: (
        "A network of the model's shape, learning from nothing, with its own epochs and rate.",
        "Devlin et al. 2019, section 5",
    ),
    VECTORS: (
        "One vector for each word, whatever its context, into a BiLSTM, the mean of its states, "
        "and a classifier.",
        "Mikolov et al. 2013; Conneau et al. 2017",
    ),
    LSTM: (
        "A language model of LSTMs, all of whose weights start the classifier: a text is read from "
        "the left, into one state.",
        "Dai & Le 2015; Howard & Ruder 2018",
    ),
    ELMO: (
        "States of a frozen language model of LSTMs that reads both ways, mixed by learned "
        "weights, in the place of the word vectors.",
        "Peters et al. 2018",
    ),
    GPT: (
        "A Transformer that reads from the left, fine-tuned whole with one linear layer on top.",
        "Radford et al. 2018",
    ),
    PRETRAINED: (
        "A Transformer in which each word sees both sides, fine-tuned whole.",
        "Devlin et al. 2019",
    ),
}
"""What each way begins with, and whose it is."""

START = "random-start"
"""The folder of the random weights, while they are fine-tuned."""


class Compare(Settings, frozen=True):
    """Each way has the settings that are usual for it, and is scored after its best epoch."""

    seeds: Count = 3
    """Runs of each way, from `seed` on."""
    seed: Seed = 0
    batch_size: Count = 32
    length: Count | None = None
    """Tokens of a text (or pair) that models read, words of each text for the word vectors and
    ELMo; what is longer is cut. By default the model's own, or a shorter one's beside it."""
    device: str = "auto"
    """Device that the models are fine-tuned on; auto is a GPU if PyTorch finds one."""
    precision: Precision = "auto"
    """Precision of the encoders and the GPT; LSTMs compute in fp32."""
    epochs: Count = 3
    """Epochs of the pretrained encoder."""
    learning_rate: Positive | None = None
    """Learning rate of the pretrained encoder; by default as `finetune` has it."""
    random_epochs: Count = 10
    """Epochs of the encoder with random weights, which has farther to go."""
    random_learning_rate: Positive = 1e-4
    """Learning rate of the encoder with random weights."""
    vector_epochs: Count = 10
    """Epochs of the BiLSTM on word vectors, and of the BiLSTM on ELMo's states."""
    vector_learning_rate: Positive | None = None
    """Learning rate of these BiLSTMs; by default as `finetune` has it."""
    gpt_epochs: Count = 3
    """Epochs of the GPT."""
    gpt_learning_rate: Positive = 6.25e-5
    """Learning rate of the GPT."""
    lstm_epochs: Count = 10
    """Epochs of the language model of LSTMs."""
    lstm_learning_rate: Positive = 3e-3
    """Learning rate of the language model of LSTMs."""
    lstm_layer_decay: Annotated[float, Meta(gt=0.0, le=1.0)] = 0.38
    """How much slower each of its layers learns than the one above it (Howard & Ruder 2018: 1/2.6);
    1 as Dai & Le 2015."""
    lstm_gradual_unfreezing: bool = True
    """Whether its layers begin to learn one after the other, from the top."""


def compare(
    model: str | Path,
    *,
    train: Path | str,
    dev: Path | str,
    test: Path | str | None = None,
    out: Path | str,
    vectors: Path | str | None = None,
    elmo: Path | str | None = None,
    lstm: Path | str | None = None,
    gpt: Path | str | None = None,
    settings: Compare | None = None,
    reading: Reading | None = None,
) -> dict[str, Any]:
    """Compare a pretrained model with earlier methods of classification.

    The ways: the model fine-tuned; a network of the same shape from random weights, with the
    epochs and rate that those want; and of these what is given: word vectors (GloVe or word2vec
    text) into a BiLSTM, the mean of its states and a classifier; a frozen ELMo's states in their
    place, mixed by learned weights; a language model of LSTMs, and a GPT, fine-tuned. Labels may
    be classes, several a text, or numbers, as for `classify`.
    `out` gets compare.json, .svg, .html, and the models that were fine-tuned. The same settings
    give the same scores on one machine. Returns: what compare.json holds.
    Raises: ConfigError when `out` exists, DataError naming file and line, CheckpointError for a
    model of another kind; before any work.

    Args:
        model: A model folder or hub id.
        train: Labelled examples to learn from.
        dev: Examples that select the best epoch.
        test: Examples to score. Without it dev is scored, whose rows chose the epoch: all scores
            are then a little too high.
        out: The folder of what is made; it must not exist yet.
        vectors: Word vectors: GloVe or word2vec text, also .gz.
        elmo: The folder of an ELMo.
        lstm: A folder of `bertkit pretrain lstm-lm`.
        gpt: The folder or hub id of a GPT, or of another causal Transformer.
    """
    settings, out = settings or Compare(), Path(out)
    refuse_used(out)
    asked = {VECTORS: vectors, LSTM: lstm, ELMO: elmo, GPT: gpt}
    given = {way: str(path) for way, path in asked.items() if path is not None}
    files = {"train": train, "dev": dev, **({} if test is None else {"test": test})}
    trial = _Trial(str(model), files, given, out, settings, reading)
    seeds = range(settings.seed, settings.seed + settings.seeds)
    try:
        scores = study(trial.ways(), seeds, trial.task.metric)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"stopped; what was fine-tuned stays in {out}; remove it to begin again"
        ) from None
    except BaseException:
        if not any(out.rglob(WEIGHTS)):  # nothing of use is there yet
            shutil.rmtree(out, ignore_errors=True)
        raise
    finally:
        shutil.rmtree(out / START, ignore_errors=True)
    result = {
        "model": str(model),
        **{
            name: {"file": str(file), "rows": len(trial.rows[name])} for name, file in files.items()
        },
        **trial.record(),
        "labels": list(trial.task.labels),
        "settings": plain(settings),
        "metric": trial.task.metric,
        "scores": scores,
    }
    write_json(out / "compare.json", result)
    each = {way: by_name[trial.task.metric] for way, by_name in scores.items()}
    chart = score_bars(each, trial.task.metric)
    write_svg(out / "compare.svg", chart)
    _write_page(out, result, chart)
    return result


class _Trial:
    """The rows that all ways learn and are scored on, and a run of each way for a seed.

    Raises: ConfigError, CheckpointError, DataError naming file and line; nothing is written.
    """

    def __init__(
        self,
        model: str,
        files: Mapping[str, Path | str],
        given: dict[str, str],
        out: Path,
        settings: Compare,
        reading: Reading | None,
    ) -> None:
        self.model, self.given, self.out, self.settings = model, given, out, settings
        rows = {name: read_examples(Classify, file, reading) for name, file in files.items()}
        self.rows, self.reading = rows, reading
        self.options = ClassifyOptions()
        self.task = Classify.from_examples(rows["train"], self.options)
        if self.task.options.multi_label:  # one threshold for all: networks on words learn none
            self.options = ClassifyOptions(threshold=0.5)
            self.task = Classify.from_examples(rows["train"], self.options)
        for name in files:
            self.task.check(rows[name])
        self.loaded = load(model, heads=())
        causal = {way: load(given[way], heads=()) for way in (LSTM, GPT) if way in given}
        for way, loaded in causal.items():
            _check_kind(way, loaded)
        self.length = _length(settings, [self.loaded, *causal.values()])
        self.coverage: dict[str, float] = {}
        if VECTORS in given:
            self.coverage = coverage(Path(given[VECTORS]), rows)
        if ELMO in given:
            opened = open_format(given[ELMO])
            if not isinstance(opened, ElmoFormat):
                raise opened.mismatch("an ELMo", "use the directory of an ELMo, or remove --elmo")
        self.mixtures: list[dict[str, float]] = []
        self._files = files

    def ways(self) -> dict[str, Way]:
        """A run for a seed of each way that there is."""
        ways: dict[str, Way] = {RANDOM: self.random, PRETRAINED: self.pretrained}
        ways |= {way: partial(self.on_words, way) for way in (VECTORS, ELMO) if way in self.given}
        ways |= {way: partial(self.causal, way) for way in (LSTM, GPT) if way in self.given}
        return {way: ways[way] for way in REASONS if way in ways}

    def pretrained(self, seed: int) -> dict[str, float]:
        """Scores of the model, fine-tuned."""
        asked = self.settings
        settings = Finetune(epochs=asked.epochs, learning_rate=asked.learning_rate)
        return self._finetune(self.model, PRETRAINED, seed, settings)

    def random(self, seed: int) -> dict[str, float]:
        """Scores of a model of the same shape, fine-tuned from random weights."""
        start, asked = self.out / START / f"seed-{seed}", self.settings
        torch.manual_seed(seed)
        model = build(self.loaded.model.config)
        save(start, model, self.loaded.tokenizer, self.loaded.family)
        settings = Finetune(epochs=asked.random_epochs, learning_rate=asked.random_learning_rate)
        return self._finetune(start, RANDOM, seed, settings)

    def causal(self, way: str, seed: int) -> dict[str, float]:
        """Scores of a model that reads from the left, fine-tuned."""
        asked = self.settings
        settings = Finetune(epochs=asked.gpt_epochs, learning_rate=asked.gpt_learning_rate)
        if way == LSTM:
            settings = Finetune(
                epochs=asked.lstm_epochs,
                learning_rate=asked.lstm_learning_rate,
                layer_decay=asked.lstm_layer_decay,
                gradual_unfreezing=asked.lstm_gradual_unfreezing,
            )
        return self._finetune(self.given[way], way, seed, settings)

    def on_words(self, way: str, seed: int) -> dict[str, float]:
        """Return the scores of a BiLSTM on word vectors or on the states of an ELMo."""
        asked = self.settings
        settings = Finetune(epochs=asked.vector_epochs, learning_rate=asked.vector_learning_rate)
        scores = self._finetune(self.given[way], way, seed, settings)
        if way == ELMO:
            encoder = load(self._folder(way, seed)).model.encoder
            assert isinstance(encoder, WordFeatureEncoder)
            self.mixtures.append(encoder.mixture())
        return scores

    def _folder(self, way: str, seed: int) -> Path:
        return self.out / way.replace(" ", "-").lower() / f"seed-{seed}"

    def _finetune(
        self, start: str | Path, way: str, seed: int, settings: Finetune
    ) -> dict[str, float]:
        precision = "fp32" if way in (LSTM, VECTORS, ELMO) else self.settings.precision
        out = self._folder(way, seed)
        scores = finetune(
            "classify",
            start,
            train=self._files["train"],
            dev=self._files["dev"],
            reading=self.reading,
            options=self.options,
            out=out,
            settings=replace(
                settings,
                batch_size=self.settings.batch_size,
                seed=seed,
                length=self.length,
                precision=precision,
                device=self.settings.device,
            ),
        )
        if "test" in self.rows:
            scores = numbers(evaluate(str(out), self.rows["test"], device=self.settings.device))
        return {name: value for name, value in scores.items() if name != "epoch"}

    def record(self) -> dict[str, Any]:
        """What each way began with, beside the model, and what a mixture of layers became."""
        record: dict[str, Any] = {}
        if VECTORS in self.given:
            record["vectors"] = {"file": self.given[VECTORS], "coverage": self.coverage}
        if ELMO in self.given:
            names = self.mixtures[0]
            mixture = {name: spread([one[name] for one in self.mixtures]) for name in names}
            record["elmo"] = {"folder": self.given[ELMO], "mixture": mixture}
        folders = {"lstm": LSTM, "gpt": GPT}
        named = {name: self.given[way] for name, way in folders.items() if way in self.given}
        return {**record, **named}


def coverage(file: Path, rows: Mapping[str, Sequence[LabelExample]]) -> dict[str, float]:
    """Return the fraction of the words of each data set that have a vector.

    Raises:
        DataError: If no word of train has a vector.
    """
    features = WordFeatures.load(file)
    tokenizer = WordTokenizer(features)
    fractions = {}
    for name, examples in rows.items():
        texts = [text for one in examples for text in (one.text, one.pair) if text is not None]
        known = np.concatenate([one.ids[1:-1, 0] > 0 for one in tokenizer.encode_batch(texts)])
        fractions[name] = float(known.mean()) if len(known) else 0.0
    if not fractions["train"]:
        raise DataError(f"{file}: no vector of any word of train; are they of one language?")
    train, dev = fractions["train"], fractions["dev"]
    say(f"word vectors: {train:.1%} of the words of train, {dev:.1%} of dev")
    return fractions


def _check_kind(way: str, loaded: Loaded) -> None:
    """Raises: CheckpointError for a model that is not of the way's kind."""
    model, name = loaded.model, "lstm" if way == LSTM else "gpt"
    if model.causal and isinstance(model.config, RecurrentConfig) == (way == LSTM):
        return
    kind = "language model of LSTMs" if way == LSTM else "Transformer that reads from the left"
    raise CheckpointError(
        f"{loaded.folder}: a {loaded.family.name} model is no {kind}; give such a folder, or leave "
        f"--{name} out"
    )


def _length(settings: Compare, models: Sequence[Loaded]) -> int:
    """What all of them read of a text. Raises: ConfigError for more than one can read."""
    for loaded in models:
        longest = loaded.model.config.max_positions
        if settings.length is not None and settings.length > longest:
            raise ConfigError(
                f"length: {settings.length} is longer than the model's {longest} tokens "
                f"({loaded.folder})"
            )
    return settings.length or min(loaded.length for loaded in models)


def _write_page(out: Path, result: dict[str, Any], chart: Markup) -> None:
    names, rows = score_table(result["scores"], result["metric"], result["settings"]["seeds"])
    began = {
        PRETRAINED: result["model"],
        VECTORS: result.get("vectors", {}).get("file", ""),
        ELMO: result.get("elmo", {}).get("folder", ""),
        LSTM: result.get("lstm", ""),
        GPT: result.get("gpt", ""),
    }
    ways = [(way, *REASONS[way], began.get(way, "")) for way in result["scores"]]
    settings = [(key, str(value)) for key, value in result["settings"].items()]
    mixture = result.get("elmo", {}).get("mixture", {})
    write_report(
        out / "compare.html",
        "compare.html",
        **{"vectors": None, "test": None, **result}
        | {
            "chart": chart,
            "table": Table("Scores", rows, ("way", *names)),
            "ways": Table("Ways", ways, ("way", "what it is", "source", "begins with"), wraps=True),
            "mixture": Table(
                "Weights of ELMo's layers",
                [(name, one["mean"], one["sd"]) for name, one in mixture.items()],
                ("layer", "weight", "standard deviation"),
            ),
            "settings": Table("Settings", settings),
        },
    )
