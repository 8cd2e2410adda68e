"""Report of the demo: one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from markupsafe import Markup

from bertkit.pipelines import Candidate
from bertkit.view.figures import Share, Table
from bertkit.view.page import write_report

UNTRAINED_FRACTION = 0.9
"""Fraction of the loss from token frequencies above which a model counts as barely trained."""


@dataclass(frozen=True)
class MaskedWord:
    """A sentence with a masked word, and the predictions of two models."""

    text: str
    truth: str
    before: Sequence[Candidate]
    after: Sequence[Candidate]


@dataclass(frozen=True)
class DemoReport:
    """Results of the demo."""

    corpus: Mapping[str, int]
    pretraining: Mapping[str, float]
    frequency_loss: float
    """MLM loss of predicting each token by its frequency, without context."""
    curve: Markup
    """Chart of the pretraining loss."""
    words: Sequence[MaskedWord]
    labels: Sequence[str]
    rows: Mapping[str, int]
    accuracy: Mapping[str, Sequence[float]]
    """Accuracy of each seed, by model (`untrained`, `model`)."""
    seconds: float

    def verdict(self) -> str:
        """Return whether pretraining improved the accuracy, or else a possible reason."""
        before, after = (self.accuracy[name] for name in ("untrained", "model"))
        message = f"accuracy {np.mean(after):.3f} with pretraining, {np.mean(before):.3f} without"
        if min(after) > max(before):
            return f"{message}: the worst seed with pretraining is better than the best without"
        loss, steps = self.pretraining["mlm_loss"], self.pretraining["steps"]
        message += f"; the run shows no benefit of pretraining: its MLM loss is {loss:.2f}, "
        message += f"compared with {self.frequency_loss:.2f} from token frequencies; "
        if loss > UNTRAINED_FRACTION * self.frequency_loss:
            return f"{message}use more than {steps:,} --steps, or more --text"
        return f"{message}the sources may be too easy or too hard to distinguish; use other --text"


def write_demo(path: Path, report: DemoReport) -> Path:
    """Write the report page, and return its path."""
    corpus, scores = report.corpus, report.pretraining
    facts = [
        ("text", f"{corpus['documents']:,} documents, {corpus['characters']:,} characters"),
        ("vocabulary", f"{corpus['pieces']:,} tokens"),
        ("corpus", f"{corpus['tokens']:,} tokens"),
        ("pretraining", f"{scores['steps']:,} steps"),
        *(
            (name.replace("_", " ") + ", held out", f"{value:.3f}")
            for name, value in scores.items()
            if name != "steps"
        ),
        ("total time", f"{report.seconds / 60:.1f} minutes"),
    ]
    write_report(
        path,
        "demo.html",
        report=report,
        facts=Table("Run summary", facts),
        candidate_table=_candidates,
        accuracy=_accuracy(report.accuracy),
    )
    return path


def _candidates(name: str, word: MaskedWord, candidates: Sequence[Candidate]) -> Table:
    rows = [
        (candidate.token, Share(candidate.score, "hit" if candidate.token == word.truth else ""))
        for candidate in candidates
    ]
    return Table(f"Candidates {name} pretraining", rows, (name, "probability"))


def _accuracy(accuracy: Mapping[str, Sequence[float]]) -> Table:
    names = {"untrained": "random weights", "model": "pretrained"}
    rows = [
        (
            names[name],
            float(np.mean(values)),
            float(np.std(values)),
            ", ".join(f"{value:.3f}" for value in values),
        )
        for name, values in accuracy.items()
    ]
    return Table("Accuracy", rows, ("start", "accuracy, mean", "standard deviation", "each seed"))
