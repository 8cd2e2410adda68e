"""The demo's report: one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np

from bertkit.pipelines import Candidate
from bertkit.recipes.page import table, write_page


@dataclass(frozen=True)
class Word:
    """A masked sentence, the word that stood there, and what two models put in its place."""

    text: str
    truth: str
    before: Sequence[Candidate]
    after: Sequence[Candidate]


@dataclass(frozen=True)
class Report:
    """Everything the demo found."""

    corpus: Mapping[str, int]
    pretraining: Mapping[str, float]
    frequency_loss: float
    """What the loss of masked words is for who only knows how often each piece occurs."""
    curve: str
    """The loss curve as SVG."""
    words: Sequence[Word]
    labels: Sequence[str]
    rows: Mapping[str, int]
    accuracy: Mapping[str, Sequence[float]]
    """By model (`untrained`, `model`), one number a seed."""
    seconds: float

    def verdict(self) -> str:
        """Whether the pretrained model is the better start, as the demo means to show; else why
        it may not be."""
        before, after = (self.accuracy[name] for name in ("untrained", "model"))
        said = f"accuracy {np.mean(after):.3f} with pretraining, {np.mean(before):.3f} without"
        if min(after) > max(before):
            return f"{said}: every seed is better with it than any without"
        said += "; this run does not show what pretraining is for: its loss of masked words is "
        loss, steps = self.pretraining["mlm_loss"], self.pretraining["steps"]
        said += f"{loss:.2f}, where counting pieces alone gives {self.frequency_loss:.2f}; "
        if loss > LITTLE * self.frequency_loss:
            return (
                f"{said}that is little yet, so give it more than {steps:,} --steps, or more --text"
            )
        return (
            f"{said}its sources may be too easy or too hard to tell apart, so give it other --text"
        )


LITTLE = 0.9
"""A loss above this share of the one from counting pieces: the model knows little beyond them."""

STYLE = """
.word { display: grid; grid-template-columns: 1fr 1fr; gap: 0 2rem; margin: 1.2rem 0;
  border-top: 1px solid #8884; padding-top: .6rem; } .word p { grid-column: 1 / -1; margin: 0; }
.bar { display: grid; grid-template-columns: 7rem 1fr 3.5rem; gap: .5rem; align-items: center; }
.bar i { height: .8rem; background: #8fb3e8; border-radius: 2px; } .hit i { background: #3aa76d; }
.hit span { font-weight: 600; } h3 { font-size: .9rem; margin: .4rem 0; color: #666; }
"""


def write_report(path: Path, report: Report) -> Path:
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
    body = [
        "<h1>A BERT is born</h1>",
        "<p>From raw text to a fine-tuned model, on this machine alone.</p>",
        table(facts),
        "<h2>Pretraining: masked words and next sentence</h2>",
        "<p>The loss is the sum of both tasks. The dots are text that training never saw.</p>",
        report.curve[report.curve.index("<svg") :],
        "<h2>Masked words, before and after</h2>",
        "<p>The five likeliest pieces for the place; the word that stood there in green.</p>",
        *(_word(word) for word in report.words),
        "<h2>Fine-tuning: which source is a passage from?</h2>",
        f"<p>{report.rows['train']:,} labelled passages to learn from, {report.rows['dev']:,} "
        f"others to score on, {len(report.labels)} labels: {escape(', '.join(report.labels))}. "
        "The same network, the same rows, the same settings; only the start differs.</p>",
        _accuracy(report.accuracy),
        f"<p>{escape(report.verdict())}.</p>",
    ]
    write_page(path, "bertkit demo", body, style=STYLE)
    return path


def _word(word: Word) -> str:
    bars = "".join(
        f"<div><h3>{title}</h3>{''.join(_bar(f, word.truth) for f in candidates)}</div>"
        for title, candidates in (("before", word.before), ("after", word.after))
    )
    return f'<div class="word"><p>{escape(word.text)}</p>{bars}</div>'


def _bar(candidate: Candidate, truth: str) -> str:
    hit = " hit" if candidate.token == truth else ""
    width = max(0.5, 100 * candidate.score)
    return (
        f'<div class="bar{hit}"><span>{escape(candidate.token)}</span>'
        f'<i style="width:{width:.1f}%"></i>{candidate.score:.1%}</div>'
    )


def _accuracy(accuracy: Mapping[str, Sequence[float]]) -> str:
    names = {"untrained": "random weights", "model": "pretrained"}
    lines = [
        (
            names[name],
            float(np.mean(runs)),
            float(np.std(runs)),
            ", ".join(f"{r:.3f}" for r in runs),
        )
        for name, runs in accuracy.items()
    ]
    return table(lines, head=("start", "accuracy, mean", "standard deviation", "each seed"))
