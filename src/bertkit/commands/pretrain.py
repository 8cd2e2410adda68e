"""Commands of pretraining: a run file, any setting of which can be replaced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from bertkit.config import override, read_toml
from bertkit.console import say
from bertkit.errors import ConfigError, did_you_mean
from bertkit.recipes.adapt import adapt as adapt_model
from bertkit.recipes.pretrain import pretrain as pretrain_model
from bertkit.recipes.pretrain_elmo import FAMILY, pretrain_elmo
from bertkit.recipes.variants import find_run_file
from bertkit.training.run import Resume

Word = Annotated[str, Parameter(allow_leading_hyphen=True, show=False)]


def pretrain(
    config: Path, /, *settings: Word, corpus: str, out: Path, resume: Resume = False
) -> None:
    """Pretrain a model from a run file.

    Args:
        config: The run file: a path, or the name of one that comes with bertkit: see `bertkit
            families`. Any setting of it can be replaced: --train.learning_rate 3e-4.
        corpus: A prepared corpus: its folder, or an address such as s3://bucket/corpus, of which
            shards are copied here when they are needed.
        out: The run's folder; it is a model folder from the start.
        resume: Go on after the newest complete checkpoint. `--resume auto` begins where there is
            none yet, so that the same command can always be given again.
    """
    data = override(read_toml(find_run_file(config)), list(_settings(settings)))
    learn = pretrain_elmo if data.get("family") == FAMILY else pretrain_model
    scores = learn(data, corpus=corpus, out=out, resume=resume)
    say(f"{out}: done  " + "  ".join(f"{k} {v:.3f}" for k, v in scores.items()))


def adapt(
    model: str, /, *settings: Word, corpus: str, out: Path, resume: bool = False
) -> dict[str, dict[str, float]]:
    """Go on pretraining a model on text of your own field.

    Returns: the losses on held-out text, before and after.

    Args:
        model: A model folder or hub id. Any setting of a run file can be given: --train.steps 5000.
        corpus: A corpus prepared with the model's vocabulary.
        out: The run's folder; it is a model folder from the start.
        resume: Go on after the newest complete checkpoint.
    """
    pairs = list(_settings(settings))
    return adapt_model(model, corpus=corpus, out=out, settings=pairs, resume=resume)


def _settings(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """`--train.steps 300` or `--train.steps=300` as name and value."""
    rest = iter(words)
    for word in rest:
        name, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") and "." in name and equals:  # train.steps=300
            yield name, value
            continue
        if not word.startswith("--") or "." not in name:
            near = did_you_mean(f"--{name}", ["--corpus", "--out", "--resume"])
            raise ConfigError(f"{word!r}: not a setting; write --group.name VALUE; {near}")
        if not equals:
            value = next(rest, "")
        if not value or (not equals and value.startswith("--")):
            raise ConfigError(f"--{name}: a value is missing; write --{name} VALUE")
        yield name, value
