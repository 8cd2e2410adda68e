"""The demo's report: one self-contained HTML file."""

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
"""A loss above this share of the one from counting pieces: the model knows little beyond them."""


@dataclass(frozen=True)
class MaskedWord:
    """A masked sentence, the word that stood there, and what two models put in its place."""

    text: str
    truth: str
    before: Sequence[Candidate]
    after: Sequence[Candidate]


@dataclass(frozen=True)
class DemoReport:
    """Everything the demo found."""

    corpus: Mapping[str, int]
    pretraining: Mapping[str, float]
    frequency_loss: float
    """What the loss of masked words is for who only knows how often each piece occurs."""
    curve: Markup
    """The loss of pretraining, a chart."""
    words: Sequence[MaskedWord]
    labels: Sequence[str]
    rows: Mapping[str, int]
    accuracy: Mapping[str, Sequence[float]]
    """By model (`untrained`, `model`), one number a seed."""
    seconds: float

    def verdict(self) -> str:
        """Whether the pretrained model is the better start, as the demo means to show; else why
        it may not be.
        """
        before, after = (self.accuracy[name] for name in ("untrained", "model"))
        said = f"accuracy {np.mean(after):.3f} with pretraining, {np.mean(before):.3f} without"
        if min(after) > max(before):
            return f"{said}: every seed is better with it than any without"
        said += "; this run does not show what pretraining is for: its loss of masked words is "
        loss, steps = self.pretraining["mlm_loss"], self.pretraining["steps"]
        said += f"{loss:.2f}, where counting pieces alone gives {self.frequency_loss:.2f}; "
        if loss > UNTRAINED_FRACTION * self.frequency_loss:
            return (
                f"{said}that is little yet, so give it more than {steps:,} --steps, or more --text"
            )
        return (
            f"{said}its sources may be too easy or too hard to tell apart, so give it other --text"
        )


UNTRAINED_FRACTION = 0.9
"""A loss above this share of the one from counting pieces: the model knows little beyond them."""


def write_demo(path: Path, report: DemoReport) -> Path:
    """Write the page and return its path."""
    corpus, scores = report.corpus, report.pretraining
    facts = [
        ("text", f"{corpus['documents']:,} documents, {corpus['characters']:,} characters"),
        ("vocabulary", f"{corpus['pieces']:,} word pieces"),
        ("corpus", f"{corpus['tokens']:,} tokens"),
        ("pretraining", f"{scores['steps']:,} steps"),
        *(
            (name.replace("_", " ") + ", held out", f"{value:.3f}")
            for name, value in scores.items()
            if name != "steps"
        ),
        ("time in all", f"{report.seconds / 60:.1f} minutes"),
    ]
    write_report(
        path,
        "demo.html",
        report=report,
        facts=Table("The run in numbers", facts),
        candidate_table=_candidates,
        accuracy=_accuracy(report.accuracy),
    )
    return path


def _candidates(name: str, word: MaskedWord, candidates: Sequence[Candidate]) -> Table:
    rows = [
        (one.token, Share(one.score, "hit" if one.token == word.truth else ""))
        for one in candidates
    ]
    return Table(f"Candidates {name} pretraining", rows, (name, "probability"))


def _accuracy(accuracy: Mapping[str, Sequence[float]]) -> Table:
    names = {"untrained": "random weights", "model": "pretrained"}
    rows = [
        (
            names[name],
            float(np.mean(each)),
            float(np.std(each)),
            ", ".join(f"{r:.3f}" for r in each),
        )
        for name, each in accuracy.items()
    ]
    return Table("Accuracy", rows, ("start", "accuracy, mean", "standard deviation", "each seed"))
