"""Commands of pretraining: a run file, any setting of which can be replaced."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from bertkit.checkpoint.run_directory import RUN
from bertkit.config import override, parse_changes, without_none
from bertkit.console import say
from bertkit.errors import ConfigError
from bertkit.recipes.adapt import adapt as adapt_model
from bertkit.recipes.model_sizes import PRETRAININGS
from bertkit.recipes.pretrain import pretrain as pretrain_model
from bertkit.recipes.run_file import read_run_file
from bertkit.storage import read_json
from bertkit.training.run import Resume

DEFAULT_RUN_FILE = "bertkit-mini"
"""The run file where none is named."""

Word = Annotated[str, Parameter(allow_leading_hyphen=True, show=False)]


def pretrain(
    config: Annotated[Path | None, Parameter(allow_leading_hyphen=True)] = None,
    /,
    *settings: Word,
    corpus: str | None = None,
    out: Path,
    resume: Resume = False,
) -> None:
    """Pretrain a model from a run file.

    Args:
        config: The run file: a path, or the name of one that comes with bertkit: see `bertkit
            families`; by default bertkit-mini. Any setting of it can be replaced:
            --train.learning_rate 3e-4. A run that goes on has its own, where none is named.
        corpus: A prepared corpus: its folder, or an address such as s3://bucket/corpus, of which
            shards are copied here when they are needed. A run that goes on knows its own.
        out: The run's folder; it is a model folder from the start.
        resume: Go on after the newest complete checkpoint. `--resume auto` begins where there is
            none yet, so that the same command can always be given again.
    """
    if config is not None and str(config).startswith("--"):  # a setting, and no run file
        config, settings = None, (str(config), *settings)
    data, before = _begun(out) if resume and (config is None or corpus is None) else ({}, None)
    pairs = list(parse_changes(settings))  # what is no setting is named first
    if config is not None:
        data = read_run_file(config)
    elif not data:
        say(f"using the run file {DEFAULT_RUN_FILE}; `bertkit info` lists the others")
        data = read_run_file(DEFAULT_RUN_FILE)
    if (corpus := corpus or before) is None:
        raise ConfigError("--corpus is missing; `bertkit prepare` makes one from text")
    data = override(data, pairs)
    other = PRETRAININGS.get(str(data.get("family")))
    run = pretrain_model if other is None else other.run
    scores = run(data, corpus=corpus, out=out, resume=resume)
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
    pairs = list(parse_changes(settings))
    return adapt_model(model, corpus=corpus, out=out, settings=pairs, resume=resume)


def _begun(out: Path) -> tuple[dict[str, Any], str | None]:
    """The settings and the corpus of a run that has begun; nothing where none has."""
    try:
        record = read_json(out / RUN, ConfigError, "start over in another --out")
    except FileNotFoundError:
        return {}, None
    match record:
        case {"config": {**config}, "corpus_folder": str(corpus)}:
            return without_none({str(name): value for name, value in config.items()}), corpus
    raise ConfigError(f"{out / RUN}: damaged (not the record of a pretraining); name the run file")
