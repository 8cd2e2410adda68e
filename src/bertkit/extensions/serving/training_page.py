"""Web page that shows the curves of training runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from bertkit.data.corpus import Corpus
from bertkit.data.samples import Samples
from bertkit.errors import BertkitError
from bertkit.extensions.serving.forms import respond
from bertkit.extensions.serving.run_figures import run_figures, samples_figure
from bertkit.recipes.inspect_corpus import readable
from bertkit.recipes.pretrain_config import read_config
from bertkit.storage import distinct_names
from bertkit.view.figures import Figure
from bertkit.view.runs import RunView, find_runs, read_run
from bertkit.web import invalid

REFRESH_SECONDS = 5
"""Time in seconds after which the page reloads if a run is not finished."""

SAMPLES, SAMPLED = 3, 4
"""Number of training samples to show per run, and number of runs for which samples are shown."""

LINKS = {
    "yes": ("/training?live=no", "Stop reloading"),
    "no": ("/training", "Reload automatically"),
}
"""Link to show if the page reloads automatically (yes), and if it does not (no)."""


class TrainingPage:
    """The web page of training curves.

    Args:
        folders: Directories of training runs.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = folders
        self.samples: dict[Path, list[str]] = {}

    async def show(self, request: Request, page: Callable[..., str]) -> Response:
        """Render the page for a request.

        Args:
            request: The request.
            page: Function that renders a page from values for its template.

        Raises:
            RequestError: If the parameter `live` is neither yes nor no.
        """
        live = request.query_params.get("live", "yes")
        if live not in LINKS:
            raise invalid("expected yes or no", "live")

        shown = partial(
            page,
            title="Runs",
            lead="Compare training runs by their loss on training data and on held-out data. As "
            "long as a run is not finished, the page reloads every few seconds.",
            computed_by=[read_run, readable],
        )

        async def render() -> str:
            try:
                read, figures, alerts = await asyncio.to_thread(self.read_runs)
            except BertkitError as error:
                raise invalid(str(error), "run") from None
            if not any(run.learns for run in read):
                return shown(figures=figures, alerts=alerts)
            link = LINKS[live]
            refresh = REFRESH_SECONDS if live == "yes" else None
            return shown(figures=figures, alerts=alerts, link=link, refresh=refresh)

        return await respond(shown, render())

    def read_runs(self) -> tuple[list[RunView], list[Figure], list[str]]:
        """Return the runs, their figures, and messages about damaged files."""
        folders = find_runs(self.folders)
        names = distinct_names(folders)
        read = [read_run(folder, name) for folder, name in zip(folders, names, strict=True)]
        alerts = [message for run in read for message in run.damaged]
        figures = run_figures(read)
        sampled = list(zip(folders, read, strict=True))[:SAMPLED]
        for folder, run in sampled:
            # Read the samples only once, because they do not change during a run.
            if folder not in self.samples:
                try:
                    self.samples[folder] = _samples_of_run(run.record, SAMPLES)
                except BertkitError as error:
                    alerts.append(f"{folder}: cannot show training samples ({error})")
            if self.samples.get(folder):
                figures.append(samples_figure(run, self.samples[folder]))
        return read, figures, alerts


def _samples_of_run(record: Mapping[str, Any], count: int) -> list[str]:
    """Return the first samples of a run as text.

    Args:
        record: Content of `run.json`.
        count: Number of samples.

    Returns:
        The samples, or an empty list if the corpus no longer exists.
    """
    corpus = Path(record.get("corpus_folder", ""))
    if not record.get("corpus_folder") or "config" not in record or not corpus.is_dir():
        return []
    loaded = Corpus.open(corpus).first_volume
    tokenizer = loaded.tokenizer()
    config = read_config(record["config"], tokenizer)
    seed = config.train.seed
    samples = Samples(loaded, tokenizer, config.sampling, config.masking, seed=seed)
    return ["\n".join(readable(samples, sample)) for sample in samples.batch(0, count)]
