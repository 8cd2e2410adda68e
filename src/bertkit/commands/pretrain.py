"""Commands of pretraining."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from bertkit.config import decode, override, read_toml
from bertkit.console import print_json, say
from bertkit.data.corpus import Corpus
from bertkit.data.masking import Masking
from bertkit.data.segments import Sampling
from bertkit.errors import ConfigError
from bertkit.recipes.adapt import adapt as adapting
from bertkit.recipes.demo import STEPS
from bertkit.recipes.demo import demo as demonstrating
from bertkit.recipes.inspect import draw, rates, readable, statistics
from bertkit.recipes.pretrain import pretrain as pretraining
from bertkit.recipes.run_file import read_config
from bertkit.recipes.variants import CONFIGS, variants


def inspect(
    corpus: Path,
    /,
    *,
    count: int = 3,
    config: Path | None = None,
    seed: int = 0,
    length: int = 128,
    pairs: Literal["nsp", "sop", "none"] = "nsp",
) -> None:
    """Print samples of a corpus as a person reads them, and statistics.

    Parameters
    ----------
    corpus
        A prepared corpus.
    count
        Samples to print.
    config
        A run file whose sampling and masking to use, instead of length and pairs.
    seed
        Which samples.
    length
        Tokens of a sample.
    pairs
        Next sentence, sentence order, or none.
    """
    if seed < 0:
        raise ConfigError(f"seed: {seed}; a number from 0 up")
    opened = Corpus.open(corpus)
    tokenizer = opened.tokenizer()
    sampling = decode(Sampling, {"pairs": pairs, "length": length}, "sampling")
    masking = Masking()
    if config is not None:
        settings = read_config(read_toml(_config(config)), tokenizer)
        sampling, masking = settings.sampling, settings.masking
    samples, drawn = draw(opened, tokenizer, sampling, masking, seed=seed, count=max(count, 1000))
    for sample in drawn[:count]:
        print("\n".join(readable(samples, sample)), end="\n\n")
    for name, value in statistics(opened).items():
        print(f"{name:32} {value:,}")
    print(f"{'samples an epoch':32} {len(samples):,}")
    for name, value in rates(samples, drawn).items():
        print(f"{name:32} {value:.3f}")


def pretrain(
    config: Path,
    /,
    *settings: Annotated[str, Parameter(show=False)],
    corpus: Path,
    out: Path,
    resume: bool = False,
) -> None:
    """Pretrain a model. Any setting of the file can be replaced: --train.learning_rate 3e-4.

    Parameters
    ----------
    config
        The run file: a path, or the name of one that comes with bertkit: see bertkit families.
    corpus
        A prepared corpus.
    out
        The run's folder; it is a model folder from the start.
    resume
        Go on after the newest complete checkpoint.
    """
    data = override(read_toml(_config(config)), _overrides(settings))
    scores = pretraining(data, corpus=corpus, out=out, resume=resume)
    say(f"{out}: done  " + "  ".join(f"{k} {v:.3f}" for k, v in scores.items()))


def adapt(
    model: str,
    /,
    *settings: Annotated[str, Parameter(show=False)],
    corpus: Path,
    out: Path,
    resume: bool = False,
) -> None:
    """Go on pretraining a model on text of your own field; prints held-out losses as JSON.

    Any setting of a run file can be given: --train.steps 5000.

    Parameters
    ----------
    model
        A model folder or hub id.
    corpus
        A corpus prepared with the model's vocabulary.
    out
        The run's folder; it is a model folder from the start.
    resume
        Go on after the newest complete checkpoint.
    """
    found = adapting(model, corpus=corpus, out=out, settings=_overrides(settings), resume=resume)
    print_json(found)


def families(*, json: bool = False) -> None:
    """The run files that come with bertkit, side by side: parameters, shape, method, data.

    Parameters
    ----------
    json
        Print JSON.
    """
    found = variants()
    if json:
        print_json(found)
        return

    table = Table("run file", "family", "parameters", "layers/hidden/heads", "method", "data")
    for v in found:
        shape = f"{v.layers}/{v.hidden}/{v.heads}"
        shape += f", {v.weights} set of weights" if v.weights < v.layers else ""
        shape += f", embedding {v.embedding}" if v.embedding != v.hidden else ""
        table.add_row(v.name, v.family, f"{v.parameters / 1e6:.1f} M", shape, v.method, v.data)
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def demo(*, out: Path = Path("demo"), text: list[Path] | None = None, steps: int = STEPS) -> None:
    """The whole life of a BERT on this machine, from text to a report, in minutes.

    Parameters
    ----------
    out
        The folder for everything, report.html included.
    text
        Files or folders of your own; by default the English on this machine: the Python
        reference and the docstrings of installed packages.
    steps
        How long to pretrain, however fast the machine is.
    """
    print(demonstrating(out, text=text, steps=steps))


def _overrides(settings: Iterable[str]) -> list[tuple[str, str]]:
    found = []
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or "." not in key:
            raise ConfigError(f"{setting!r}: not a setting; write --group.name value")
        found.append((key, value))
    return found


def _config(path: Path) -> Path:
    """A run file, or one of those in the package by its bare name."""
    inside = CONFIGS / f"{path.name.removesuffix('.toml')}.toml"
    return inside if not path.exists() and path.parent == Path() and inside.exists() else path
