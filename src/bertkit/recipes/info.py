"""Describe a model, a corpus, a run, or the run files of bertkit."""

from __future__ import annotations

from json import dumps
from pathlib import Path

from bertkit.checkpoint.formats import format_of, open_format
from bertkit.errors import ConfigError
from bertkit.recipes.inspect_corpus import SampleSettings, print_samples
from bertkit.recipes.model_sizes import Variant, print_variants, variants
from bertkit.recipes.runs import runs
from bertkit.view.runs import contains_runs


def info(
    path: str | None = None, /, *, samples: SampleSettings | None = None, json: bool = False
) -> list[Variant] | None:
    """Describe a model, a corpus, a run, or the run files of bertkit.

    For a model, the shape, the number of parameters, the heads and the labels are printed as JSON.
    For a corpus, statistics and some samples with their masks are printed. If the directory
    contains runs but no model, a table of the runs is printed.

    Args:
        path: Directory of a model, corpus or run, or hub id of a model. By default, the run files
            of bertkit are compared by size, shape, method and data.
        samples: Settings for the samples of a corpus that are printed.
        json: Whether to print the list of run files as JSON.

    Returns:
        The run files if `json` is set, else None.

    Raises:
        ConfigError: If an option does not apply to the directory.
    """
    detected = None if path is None else format_of(Path(path))
    is_corpus = path is not None and detected is None and Path(path, "manifest.json").exists()
    if samples is not None and not is_corpus:
        raise ConfigError(f"{path or 'info'}: not a corpus; remove the options for samples")
    if json and path is not None:
        raise ConfigError(f"{path}: --json is only supported for the list of run files; omit it")
    if json:
        return variants()
    if path is None:
        print_variants(variants())
    elif is_corpus:
        print_samples(Path(path), samples or SampleSettings())
    elif detected in (None, "run") and contains_runs(Path(path)):
        print(runs([path]))
    else:
        print(dumps(open_format(path).info(), indent=2))
    return None
