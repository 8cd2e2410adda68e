"""Classification three ways: a pretrained encoder, word vectors, and the encoder from scratch.

What pretraining is worth on a task (Devlin et al. 2019, section 5), beside what was usual before:
static word vectors under a recurrent network (Conneau et al. 2017).
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from markupsafe import Markup
from msgspec import Meta
from torch import Tensor, nn

from bertkit.batch import Batch
from bertkit.checkpoint.folder import load, save
from bertkit.checkpoint.weights import FILE as WEIGHTS
from bertkit.config import Count, Rate, Seed, Settings, plain
from bertkit.console import say
from bertkit.errors import ConfigError, DataError
from bertkit.models.model import build
from bertkit.models.recurrent import BiLSTM
from bertkit.nn.dropout import Dropout
from bertkit.nn.precision import Precision
from bertkit.recipes.finetune import Finetune, finetune
from bertkit.recipes.study import study
from bertkit.storage import refuse_used, write_json
from bertkit.tasks.classify import Classify, Example
from bertkit.tasks.classify import Options as ClassifyOptions
from bertkit.tasks.examples import read_examples
from bertkit.tasks.task import Feature, Reading
from bertkit.text.encoding import Encoding
from bertkit.text.vectors import Vectors, tokens
from bertkit.training.fit import fit
from bertkit.view.chart import score_bars, write_svg
from bertkit.view.figures import Table, score_table
from bertkit.view.page import write_report

RANDOM, VECTORS, PRETRAINED = "random weights", "word vectors", "pretrained"
"""The ways, in the order of the table."""

START = "random-start"
"""The folder of the random weights, while they are fine-tuned."""


class Compare(Settings, frozen=True):
    """Each way has the settings that are usual for it, and is scored at its best epoch on dev."""

    seeds: Count = 3
    """Runs of each way, from `seed` on."""
    seed: Seed = 0
    batch_size: Count = 32
    length: Count | None = None
    """Tokens of a text (or pair) the encoders read, words of each text for the word vectors; what
    is longer is cut. The model's own by default."""
    precision: Precision = "auto"
    """Of the encoders."""
    epochs: Count = 3
    """Of the pretrained encoder."""
    learning_rate: Annotated[float, Meta(gt=0.0)] = 5e-5
    """Of the pretrained encoder."""
    random_epochs: Count = 10
    """Of the encoder with random weights, which has farther to go."""
    random_learning_rate: Annotated[float, Meta(gt=0.0)] = 1e-4
    """Of the encoder with random weights."""
    vector_epochs: Count = 10
    """Of the network on word vectors."""
    vector_learning_rate: Annotated[float, Meta(gt=0.0)] = 1e-3
    """Of the network on word vectors (Adam)."""
    tune_vectors: bool = False
    """Whether the word vectors learn, too."""
    width: Count = 128
    """Of the BiLSTM on the word vectors, in each direction."""
    dropout: Rate = 0.3
    """Before and after that BiLSTM."""


class WordStates(nn.Module):
    """Word vectors, read by a BiLSTM; each text of a pair alone. Shapes: N words -> (N, 2 · width).

    It stands where a model has its encoder.
    """

    def __init__(self, vectors: Tensor, settings: Compare) -> None:
        super().__init__()
        self.vectors = nn.Embedding.from_pretrained(vectors, freeze=not settings.tune_vectors)
        self.dropout = Dropout(settings.dropout)
        self.lstm = BiLSTM(vectors.shape[1], settings.width, layers=1)

    def forward(self, batch: Batch) -> Tensor:
        texts = 2 * batch.layout.sequence_ids + batch.types
        lengths = texts.unique_consecutive(return_counts=True)[1].tolist()
        out: Tensor = self.dropout(self.lstm(self.dropout(self.vectors(batch.ids)), lengths))
        return out


class MeanClassifier(nn.Module):
    """Numbers from the mean state of a text, or from [u, v, |u - v|, u · v] of a pair's.

    Shapes: (N, D) -> (S, L). Source: Conneau et al. 2017 (InferSent), section 3.1.
    """

    def __init__(self, inputs: int, outputs: int, *, pairs: bool) -> None:
        super().__init__()
        self.texts = 2 if pairs else 1
        self.out = nn.Linear(4 * inputs if pairs else inputs, outputs)

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        text = self.texts * batch.layout.sequence_ids + batch.types
        count = self.texts * len(batch.layout.lengths)
        sums = torch.zeros(count, states.shape[1], device=states.device).index_add(0, text, states)
        mean = sums / text.bincount(minlength=count)[:, None]
        if self.texts == 2:
            u, v = mean[::2], mean[1::2]
            mean = torch.cat([u, v, (u - v).abs(), u * v], 1)
        out: Tensor = self.out(mean)
        return out


def compare(
    model: str | Path,
    *,
    train: Path | str,
    dev: Path | str,
    out: Path | str,
    vectors: Path | str,
    settings: Compare | None = None,
    reading: Reading | None = None,
) -> dict[str, Any]:
    """Labels learned three ways: random weights, word vectors, pretrained.

    The ways: the model fine-tuned; a network of the same shape from random weights, with the
    epochs and rate that those want; and word vectors (GloVe or word2vec text) into a BiLSTM, the
    mean of its states and a classifier. Labels may be classes, several a text, or numbers, as
    for `classify`.
    `out` gets compare.json, .svg, .html, and the models that were fine-tuned. The same settings
    give the same scores on one machine. Returns: what compare.json holds.
    Raises: ConfigError when `out` exists, DataError naming file and line; before any work.

    Args:
        model: A model folder or hub id.
        train: Labelled examples to learn from.
        dev: The same, to choose the best epoch by and to score.
        out: The folder of what is made; it must not exist yet.
        vectors: Word vectors: GloVe or word2vec text, also .gz.
    """
    settings, out = settings or Compare(), Path(out)
    refuse_used(out)
    trial = _Trial(str(model), train, dev, vectors, out, settings, reading)
    ways = {RANDOM: trial.random, VECTORS: trial.vectors, PRETRAINED: trial.pretrained}
    seeds = range(settings.seed, settings.seed + settings.seeds)
    try:
        scores = study(ways, seeds, trial.task.metric)
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
        "train": {"file": str(train), "rows": len(trial.learn)},
        "dev": {"file": str(dev), "rows": len(trial.check)},
        "vectors": {"file": str(vectors), "coverage": trial.coverage},
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

    Raises: ConfigError, DataError naming file and line; nothing is written.
    """

    def __init__(
        self,
        model: str,
        train: Path | str,
        dev: Path | str,
        vectors: Path | str,
        out: Path,
        settings: Compare,
        reading: Reading | None,
    ) -> None:
        self.model, self.out, self.settings = model, out, settings
        self.learn, self.check = (read_examples(Classify, file, reading) for file in (train, dev))
        self.task = Classify.from_examples(self.learn, ClassifyOptions())
        self.task.check(self.check)
        self.loaded = load(model, heads=())
        longest = self.loaded.model.config.max_positions
        self.length = settings.length or self.loaded.length
        if self.length > longest:
            raise ConfigError(f"length: {self.length} is longer than the model's {longest} tokens")
        self.words = _Words.of(Vectors.load(vectors), [*self.learn, *self.check])
        rows = {"train": self.learn, "dev": self.check}
        self.coverage = {name: self.words.coverage(examples) for name, examples in rows.items()}
        if not self.coverage["train"]:
            raise DataError(
                f"{vectors}: no vector of any word of {train}; are they of one language?"
            )
        say(
            f"word vectors know {self.coverage['train']:.1%} of the words of train, "
            f"{self.coverage['dev']:.1%} of those of dev"
        )
        self.features = {
            name: self.words.features(self.task, examples, self.length, labelled=name == "train")
            for name, examples in rows.items()
        }
        self._files: dict[str, Any] = {"train": train, "dev": dev, "reading": reading}

    def pretrained(self, seed: int) -> dict[str, float]:
        """Scores of the model, fine-tuned."""
        settings = self.settings
        return self._finetune(self.model, PRETRAINED, seed, settings.epochs, settings.learning_rate)

    def random(self, seed: int) -> dict[str, float]:
        """Scores of a model of the same shape, fine-tuned from random weights."""
        start, settings = self.out / START / f"seed-{seed}", self.settings
        torch.manual_seed(seed)
        model = build(self.loaded.model.config)
        save(start, model, self.loaded.tokenizer, self.loaded.family)
        return self._finetune(
            start, RANDOM, seed, settings.random_epochs, settings.random_learning_rate
        )

    def vectors(self, seed: int) -> dict[str, float]:
        """Scores of a network on word vectors."""
        task, settings = self.task, self.settings
        torch.manual_seed(seed)
        pairs = self.learn[0].pair is not None
        return fit(
            WordStates(self.words.table.clone(), settings),
            MeanClassifier(2 * settings.width, len(task.labels), pairs=pairs),
            task,
            self.features["train"],
            self.features["dev"],
            self.check,
            name=VECTORS,
            epochs=settings.vector_epochs,
            batch_size=settings.batch_size,
            learning_rate=settings.vector_learning_rate,
            seed=seed,
        )

    def _finetune(
        self, start: str | Path, way: str, seed: int, epochs: int, learning_rate: float
    ) -> dict[str, float]:
        scores = finetune(
            "classify",
            start,
            **self._files,
            out=self.out / way.replace(" ", "-") / f"seed-{seed}",
            settings=Finetune(
                epochs=epochs,
                batch_size=self.settings.batch_size,
                learning_rate=learning_rate,
                seed=seed,
                length=self.length,
                precision=self.settings.precision,
            ),
        )
        return {name: value for name, value in scores.items() if name != "epoch"}


class _Words:
    """The words of some examples that have a vector, and their vectors, scaled to mean square 1.

    Shapes: table (1 + V, D); row 0 is zero, and stands for all other words.
    """

    def __init__(self, index: dict[str, int], table: Tensor) -> None:
        self.index, self.table = index, table

    @staticmethod
    def of(vectors: Vectors, examples: Sequence[Example]) -> _Words:
        words = sorted({w for e in examples for text in _texts(e) for w in tokens(text)})
        rows = {word: row for word in words if (row := vectors.row(word)) is not None}
        chosen = vectors.table[list(rows.values())]
        # files differ tenfold in scale, and one learning rate is to serve all
        chosen = chosen / max(float(np.sqrt(np.square(chosen).mean())), 1e-6) if rows else chosen
        table = np.concatenate([np.zeros((1, vectors.table.shape[1]), np.float32), chosen])
        return _Words({word: at for at, word in enumerate(rows, 1)}, torch.from_numpy(table))

    def coverage(self, examples: Sequence[Example]) -> float:
        """The share of the examples' words, each as often as it stands there, with a vector."""
        words = [w in self.index for e in examples for text in _texts(e) for w in tokens(text)]
        return sum(words) / max(len(words), 1)

    def features(
        self, task: Classify, examples: Sequence[Example], length: int, *, labelled: bool
    ) -> list[Feature]:
        """At most `length` words of each text; a text without any is one unknown word."""
        features = []
        for place, example in enumerate(examples):
            texts = [tokens(text) for text in _texts(example)]
            parts = [[self.index.get(w, 0) for w in text[:length]] or [0] for text in texts]
            ids = np.array([word for part in parts for word in part])
            encoding = Encoding(
                ids=ids,
                types=np.repeat(np.arange(len(parts)), [len(part) for part in parts]),
                offsets=np.zeros((len(ids), 2), np.int64),
                words=[None] * len(ids),
                sequence=[0] * len(ids),
                truncated=any(len(text) > length for text in texts),
            )
            target = task.target(example) if labelled else None
            features.append(Feature(encoding, place, target=target))
        return features


def _texts(example: Example) -> list[str]:
    return [example.text] if example.pair is None else [example.text, example.pair]


def _write_page(out: Path, result: dict[str, Any], chart: Markup) -> None:
    names, rows = score_table(result["scores"], result["metric"], result["settings"]["seeds"])
    settings = {"model": result["model"], "vectors": result["vectors"]["file"]}
    settings |= {key: str(value) for key, value in result["settings"].items()}
    write_report(
        out / "compare.html",
        "compare.html",
        **result
        | {
            "chart": chart,
            "table": Table("Scores", rows, ("way", *names)),
            "settings": Table("Settings", list(settings.items())),
        },
    )
