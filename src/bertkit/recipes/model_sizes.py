"""Comparison of bertkit's run files: size, shape, method and data."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from rich.console import Console
from rich.table import Table

from bertkit.config import read_toml
from bertkit.families import FAMILIES
from bertkit.models.model import empty
from bertkit.recipes.pretrain_config import PretrainConfig, complete
from bertkit.recipes.run_file import CONFIGS
from bertkit.registry import Registry


class Variant(msgspec.Struct, frozen=True):
    """Description of a run file."""

    name: str
    family: str
    parameters: int
    """Number of parameters, with the vocabulary size of the published model. The heads of an
    encoder are not counted, except the pooler."""
    layers: int
    decoder: int
    """Number of layers of the decoder of an encoder-decoder model, else 0."""
    hidden: int
    heads: int
    embedding: int
    """Size of the token embedding."""
    weights: int
    """Number of layers with their own weights. It is below `layers` if layers share weights."""
    method: str
    """Training objective and masking."""
    data: str
    """Amount of training data."""


class Pretraining(NamedTuple):
    """Pretraining of a model that is not a Transformer."""

    run: Callable[..., dict[str, float]]
    """Function that pretrains a model. It has the arguments of `bertkit.pretrain`."""
    variant: Callable[[str, Mapping[str, Any]], Variant]
    """Function that describes a run file, given the name and the settings of the file."""


PRETRAININGS: Mapping[str, Pretraining] = Registry("pretrainings", {})
"""Pretraining for each value of `family` in a run file, if it is not a Transformer."""


def print_variants(rows: Sequence[Variant]) -> None:
    """Print one table row per run file."""
    table = Table("run file", "family", "parameters", "layers/hidden/heads", "method", "data")
    for v in rows:
        layers = f"{v.layers} + {v.decoder}" if v.decoder else str(v.layers)
        shape = f"{layers}/{v.hidden}/{v.heads}"
        shape += f", {v.weights} set of weights" if v.weights < v.layers else ""
        shape += f", embedding {v.embedding}" if v.embedding != v.hidden else ""
        table.add_row(v.name, v.family, f"{v.parameters / 1e6:.1f} M", shape, v.method, v.data)
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def variants() -> list[Variant]:
    """Describe the run files of bertkit, sorted by family and size."""
    rows = []
    for path in CONFIGS.glob("*.toml"):
        data = read_toml(path)
        if other := PRETRAININGS.get(str(data.get("family"))):
            rows.append(other.variant(path.stem, data))
            continue
        family = FAMILIES[data.get("family", "bert")]
        config = complete(data, vocab=family.vocab, pad=family.defaults.get("pad_id", 0))
        model = config.model
        heads = ("pooler",) if config.objective == "masked" else config.heads
        network = empty(model, heads, decoder=config.decoder)
        rows.append(
            Variant(
                name=path.stem,
                family=family.name,
                parameters=sum(p.numel() for p in network.parameters()),
                layers=model.layers,
                decoder=0 if config.decoder is None else config.decoder.layers,
                hidden=model.hidden,
                heads=model.heads,
                embedding=model.width,
                weights=max(model.depths) + 1,
                method=config.method,
                data=_data(config),
            )
        )
    order = [*FAMILIES, *PRETRAININGS]
    return sorted(rows, key=lambda variant: (order.index(variant.family), variant.parameters))


def _data(config: PretrainConfig) -> str:
    train = config.train
    return f"{train.steps:,} × {train.batch_size:,} samples of {config.sampling.length} tokens"
