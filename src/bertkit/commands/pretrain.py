"""Command that pretrains a model. Options override the settings of a run file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from bertkit.checkpoint.run_directory import RUN
from bertkit.config import drop_null_values, override, parse_changes, plain
from bertkit.console import say
from bertkit.errors import ConfigError
from bertkit.recipes.model_sizes import PRETRAININGS
from bertkit.recipes.pretrain import pretrain as run_pretraining
from bertkit.recipes.pretrain_config import config_class, read_config
from bertkit.recipes.run_file import Train, read_run_file
from bertkit.recipes.start_model import load_start
from bertkit.storage import read_json
from bertkit.training.run import Resume

DEFAULT_RUN_FILE = "bertkit-mini"

OPTIONS = ("--corpus", "--out", "--start", "--resume")
"""Options that are not settings of a run file."""

Word = Annotated[str, Parameter(allow_leading_hyphen=True, show=False)]


def pretrain(
    config: Annotated[Path | None, Parameter(allow_leading_hyphen=True)] = None,
    /,
    *settings: Word,
    corpus: str | None = None,
    out: Path,
    start: str | None = None,
    resume: Resume = False,
    print_config: Annotated[bool, Parameter(negative="", show=False)] = False,
) -> dict[str, Any] | None:
    """Pretrain a new model, or continue the pretraining of a model.

    Args:
        config: Run file with the settings of a new model: a path, or the name of a run file in
            bertkit (`bertkit info` lists them). Options override its settings, as in
            --train.learning_rate 3e-4. Default: bertkit-mini.
        *settings: Settings of the run file to override, as pairs of --group.name and value.
        corpus: Corpus directory, or a URL such as s3://bucket/corpus, whose shards are downloaded
            when they are needed. A resumed run uses its own corpus by default.
        out: Run directory, which is also a model directory from the first step. Must not exist.
        start: Model directory or hub id of a model to continue pretraining, instead of a run file.
            The corpus must be prepared with the tokenizer of this model.
        resume: Whether to resume the run from its newest complete checkpoint, with the settings of
            the run. `--resume auto` starts a new run if there is no checkpoint.
        print_config: Whether to return the run file with the overridden settings and, except for
            ELMo, all defaults, instead of pretraining a model.

    Returns:
        The content of the run file, if `print_config` is true.

    Raises:
        ConfigError: If options cannot be combined, or a setting is invalid.
    """
    if config is not None and str(config).startswith("--"):
        # The first argument is a setting, not a run file.
        config, settings = None, (str(config), *settings)
    if start is not None and (config is not None or print_config):
        given = "--print-config" if config is None else f"{config}: a run file"
        raise ConfigError(f"{given} cannot be combined with --start; remove one")
    record = _record(out) if resume and (config is None or corpus is None) else {}
    names = (f"--train.{name}" for name in Train.__struct_fields__)
    changes = list(parse_changes(settings, [*OPTIONS, *names]))
    corpus = corpus or record.get("corpus_folder")
    if config is None:
        start = start or record.get("start")
    data = _settings(config, start, record)
    if corpus is None:
        raise ConfigError("--corpus is required; run `bertkit prepare` to create a corpus")
    model = None
    if start is None:
        data = override(data, changes)
    else:
        data, model = load_start(start, changes, data)
    if print_config:
        if data.get("family") in PRETRAININGS:
            return data
        return plain(read_config(data, config_class(data).open_text(corpus).tokenizer()))
    scores = run_pretraining(data, corpus=corpus, out=out, resume=resume, start_from=model)
    say(f"{out}: done  " + "  ".join(f"{k} {v:.3f}" for k, v in scores.items()))
    return None


def _settings(config: Path | None, start: str | None, record: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of the run file or the resumed run. A start model has no settings."""
    if config is not None:
        return read_run_file(config)
    if record:
        return drop_null_values(record["config"])
    if start is not None:
        return {}
    say(f"using the run file {DEFAULT_RUN_FILE}; `bertkit info` lists the others")
    return read_run_file(DEFAULT_RUN_FILE)


def _record(out: Path) -> dict[str, Any]:
    """Read the record that a run has written, or return an empty dict if there is no run."""
    try:
        record = read_json(out / RUN, ConfigError, "start a new run in another --out")
    except FileNotFoundError:
        return {}
    match record:
        case {"config": dict(), "corpus_folder": str()}:
            return dict(record)
    raise ConfigError(f"{out / RUN}: not the record of a pretraining run; pass the run file")
