"""A frozen encoder as a source of features: which layers know what tagging words needs?

Devlin et al. 2019, section 5.3 and table 7.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from markupsafe import Markup
from numpy.typing import NDArray
from torch import Tensor

from bertkit.checkpoint.formats import LoadSettings, open_format
from bertkit.config import Count, Positive, Rate, Seed, Settings, plain
from bertkit.console import say
from bertkit.errors import ConfigError
from bertkit.extensions.classic.feature_classifier import (
    Features,
    How,
    WordHead,
    compute_states,
    fit,
)
from bertkit.nn.precision import Precision
from bertkit.pipelines.frozen_words import Frozen, places_of
from bertkit.recipes.study import study
from bertkit.storage import new_folder, refuse_used, write_json
from bertkit.tasks.examples import read_examples
from bertkit.tasks.tag import Tag, TagOptions
from bertkit.tasks.task import Feature, Reading, group
from bertkit.text.encoding import Encoding
from bertkit.view.chart import score_bars, write_svg
from bertkit.view.figures import Table, score_table
from bertkit.view.page import write_report

COMBINATIONS = {
    "embeddings": "embeddings",
    "-2": "second-to-last layer",
    "-1": "last layer",
    "sum:-4": "sum of the last four",
    "mix:-4": "weighted sum of the last four",
    "concat:-4": "concatenation of the last four",
    "mix:all": "weighted sum of all layers",
}
"""The rows of the paper's table 7, in its order; the plain sum is from its first version."""

ELMO = {
    "embeddings": "embeddings",
    "-2": "second-to-last layer",
    "-1": "last layer",
    "mix:0": "weighted sum of the embeddings and all layers",
}
"""Those of an ELMo; the last is equation 1 of Peters et al. 2018."""

PAPER = {
    "embeddings": 91.0,
    "-2": 95.6,
    "-1": 94.9,
    "mix:-4": 95.9,
    "concat:-4": 96.1,
    "mix:all": 95.5,
}
"""Dev F1 of CoNLL-2003 with BERT-base, in percent: Devlin et al. 2019, table 7."""


class Probe(Settings, frozen=True):
    """The tagger on top is the same for every combination of layers."""

    epochs: Count = 10
    batch_size: Count = 32
    """Sentences a step."""
    learning_rate: Positive = 1e-3
    """Learning rate of Adam."""
    width: Count = 256
    """Hidden size of the BiLSTM in each direction; 768 in the paper."""
    layers: Count = 2
    """Number of layers of the BiLSTM."""
    dropout: Rate = 0.5
    """Before, within and after the BiLSTM."""
    seeds: Count = 1
    """Taggers trained for each combination, from `seed` on."""
    seed: Seed = 0
    limit: Count | None = None
    """Sentences of either file that are read, from its start; all by default."""
    precision: Precision = "fp32"
    """Precision of the frozen encoder."""
    device: str = "auto"
    """Device of the frozen encoder; auto is a GPU if PyTorch finds one."""


@dataclass(frozen=True)
class Combination:
    """Layers of an encoder, 0 the embeddings, and what becomes of them."""

    name: str
    how: How
    layers: tuple[int, ...]

    @staticmethod
    def of(name: str, layers: int) -> Combination:
        """What a name means in a model with this many layers.

        "embeddings"; "3" is layer 3, "-1" the last; "sum:-4", "mix:-4" and "concat:-4" are the sum
        of the last four, one with learned weights, and all side by side; "sum:all" is without the
        embeddings, and "sum:0" with them.
        Raises: ConfigError for another name, or a layer that the model has not.
        """
        if name == "embeddings":
            return Combination(name, "one", (0,))
        match = re.fullmatch(r"(-?[1-9][0-9]{0,3})|(sum|mix|concat):(all|0|-[1-9][0-9]{0,3})", name)
        if match is None:
            raise ConfigError(
                f"combination: {name!r} is none; write embeddings, a layer (3, or -1 for the "
                "last), or sum:, mix: or concat: before -4 (the last four), all, or 0 "
                "(all and the embeddings)"
            )
        one, how, last = match.groups()
        if last == "0":
            chosen = tuple(range(layers + 1))
            return Combination(name, cast(How, how), chosen)
        count = layers if last == "all" else abs(int(one or last))
        if count > layers:
            raise ConfigError(f"combination: {name!r}; the model has {layers} layers, name fewer")
        if one:
            return Combination(name, "one", (range(1, layers + 1)[int(one) - (int(one) > 0)],))
        chosen = tuple(range(layers + 1 - count, layers + 1))
        return Combination(name, cast(How, how), chosen)


def features_of(
    states: Tensor, stored: Sequence[int], chosen: Combination, settings: Probe
) -> Features:
    """The network on a combination; `stored` are the layers that `states` (J, W, D) has."""
    return Features(
        states,
        [stored.index(layer) for layer in chosen.layers],
        chosen.how,
        width=settings.width,
        layers=settings.layers,
        dropout=settings.dropout,
    )


def probe(
    model: str | Path,
    *,
    train: Path | str,
    dev: Path | str,
    out: Path | str,
    combinations: Sequence[str] | None = None,
    settings: Probe | None = None,
    reading: Reading | None = None,
) -> dict[str, Any]:
    """Compare the layers of a frozen model for tagging.

    The encoder reads both files once; then a tagger is trained for each combination and seed, and
    scored at its best epoch on dev; what weighted sums learned is told, too. `combinations` are
    names as in `Combination.of`; those of the paper by default, as far as the model has the layers.
    `out` gets probe.json, .svg and .html.
    The same settings give the same scores. Returns: what probe.json holds.
    Raises: ConfigError for a combination the model has not or when `out` exists, DataError naming
    file and line; before any work.

    Args:
        model: A model folder or hub id, or the folder of an ELMo.
        train: Labelled examples to learn from.
        dev: Examples that select the best epoch and are scored.
        out: The folder of what is made; it must not exist yet.
        combinations: embeddings, a layer (3, or -1 for the last), or sum:, mix: or concat: before
            -4 (the last four), all, or 0 (all, and the embeddings); once for each. By default those
            of the model's paper, BERT's or ELMo's.
    """
    settings, out = settings or Probe(), Path(out)
    refuse_used(out)
    learn, check = (read_examples(Tag, file, reading)[: settings.limit] for file in (train, dev))
    task = Tag.from_examples(learn, TagOptions())
    task.check(check)
    frozen = open_format(model).load_frozen(LoadSettings(settings.precision, settings.device))
    chosen = _chosen(combinations, frozen)
    parts = [
        task.features(rows, frozen.tokenizer, frozen.length, long="window", labelled=rows is learn)
        for rows in (learn, check)
    ]
    stored = sorted({layer for combination in chosen for layer in combination.layers})
    states = compute_states(frozen, [*parts[0], *parts[1]], stored)
    learned, checked = _sequences(parts)

    def tagger(combination: Combination, seed: int) -> dict[str, float]:
        """Scores of a tagger on these layers, and the mixture that it learned."""
        torch.manual_seed(seed)
        features = features_of(states, stored, combination, settings)
        scores = fit(
            features,
            WordHead(2 * settings.width, len(task.labels)),
            task,
            learned,
            checked,
            check,
            name=_title(combination.name),
            epochs=settings.epochs,
            batch_size=settings.batch_size,
            learning_rate=settings.learning_rate,
            seed=seed,
        )
        return {task.metric: scores[task.metric], **features.mixture(combination.layers)}

    seeds = range(settings.seed, settings.seed + settings.seeds)
    table = study({_title(c.name): partial(tagger, c) for c in chosen}, seeds, task.metric)
    result = {
        "model": str(model),
        "train": {"file": str(train), "sentences": len(learn)},
        "dev": {"file": str(dev), "sentences": len(check)},
        "settings": plain(settings),
        "metric": task.metric,
        "scores": {c.name: table[_title(c.name)].pop(task.metric) for c in chosen},
        "mixtures": {c.name: table[_title(c.name)] for c in chosen if c.how == "mix"},
    }
    with new_folder(out) as folder:
        _write(folder, result)
    return result


def _chosen(names: Sequence[str] | None, frozen: Frozen) -> list[Combination]:
    layers = frozen.layers
    if names is not None:
        if not names:
            raise ConfigError("combination: none is named; leave it out for those of the paper")
        return [Combination.of(name, layers) for name in dict.fromkeys(names)]
    chosen = []
    for name in ELMO if frozen.whole_words else COMBINATIONS:
        try:
            chosen.append(Combination.of(name, layers))
        except ConfigError:
            say(f"{_title(name)}: left out; the model has {layers} layers")
    return chosen


def _sequences(parts: Sequence[Sequence[Feature]]) -> list[list[Feature]]:
    """The words of each example as one sequence; ids are the rows `encode` gives them."""
    sequences: list[list[Feature]] = []
    row = 0
    for features in parts:
        sequences.append([])
        for windows in filter(None, group(features)):
            words = [
                w.encoding.words[place]
                for w in windows
                for place in cast(NDArray[np.int64], w.token_indices).tolist()
            ]
            count = sum(len(places_of(window)) for window in windows)
            encoding = Encoding(
                ids=np.arange(row, row + count),
                types=np.zeros(count, np.int64),
                offsets=np.zeros((count, 2), np.int64),
                words=words or [None],
                sequence=[0] * count,
                truncated=False,
            )
            learns = windows[0].target is not None
            target = np.concatenate([window.target for window in windows]) if learns else None
            places = np.arange(len(words))
            sequences[-1].append(Feature(encoding, windows[0].example, places, target))
            row += count
    return sequences


def _title(name: str) -> str:
    return (COMBINATIONS | ELMO).get(name, name)


def _write(folder: Path, result: Mapping[str, Any]) -> None:
    write_json(folder / "probe.json", result)
    titled = {_title(name): scores for name, scores in result["scores"].items()}
    chart = score_bars(titled, result["metric"])
    write_svg(folder / "probe.svg", chart)
    _write_page(folder, result, chart)


def _write_page(folder: Path, result: Mapping[str, Any], chart: Markup) -> None:
    scores, metric = result["scores"], f"{result['metric']} on dev"
    each = {name: {metric: score} for name, score in scores.items()}
    names, rows = score_table(each, metric, result["settings"]["seeds"])
    papers = (f"{PAPER[name]:.1f} %" if name in PAPER else "" for name in scores)
    full = [(_title(row[0]), *row, paper) for row, paper in zip(rows, papers, strict=True)]
    settings = [(key, str(value)) for key, value in result["settings"].items()]
    write_report(
        folder / "probe.html",
        "probe.html",
        **dict(result)
        | {
            "chart": chart,
            "table": Table("Scores", full, ("layers", "name", *names, "the paper's")),
            "mixtures": _mixtures(result["mixtures"]),
            "settings": Table("Settings", settings),
        },
    )


def _mixtures(learned: Mapping[str, Mapping[str, Any]]) -> Table:
    """A row for each weighted sum, a column for each layer; empty where it has not that layer."""
    layers = {name for mixture in learned.values() for name in mixture} - {"embeddings", "scale"}
    columns = ["scale", "embeddings", *sorted(layers, key=int)]
    rows = [
        (_title(name), *(mixture[c]["mean"] if c in mixture else "" for c in columns))
        for name, mixture in learned.items()
    ]
    return Table("Weights of layers", rows, ("layers", *columns))
