"""What attention is worth: an LSTM without it, one with it, and a Transformer at one budget.

`bertkit compare translation` trains the three on German captions and their English (Multi30k), on
captions of which one to three are joined, and on letters to be written backwards, of which up to
twice as many are scored as were learned from. The gap is BLEU with attention less that without, of
captions of at most 10 words and of more than 16. What comes out is kept, also where it is not what
the lesson says. Where joeynmt is installed (`benchmarks/joey.py` says how), its LSTM with attention
learns beside ours: the same shape and the same pairs in the same pieces (--only training). What was
trained stays in runs/history and is not trained again; a run that was stopped goes on. The three
comparisons take about 40 minutes on two idle cores. Needs BERTKIT_DATA.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import kept, marian
from benchmarks.harness import Options, apart
from benchmarks.joey import LANGUAGES, Joey, installed
from benchmarks.translate import lines, prepared, unpack
from bertkit.config import override
from bertkit.recipes.bleu import bleu
from bertkit.recipes.compare_translation import (
    ATTENTION,
    LSTM,
    RECORD,
    TRANSFORMER,
    CompareTranslation,
    compare_translation,
)
from bertkit.recipes.run_file import read_config, read_run_file

RUNS = Path("runs", "history")
GAIN, RATIO, SPEED = 8.0, 2.0, 3.0
"""BLEU that attention has to bring; how many times as much above `LONG` words as up to `SHORT`; and
training, beside joeynmt's."""

SHORT, LONG = 10, 16
LETTERS = 15
"""Of the longest sequence that is learned from."""

CAPTIONS: dict[str, Any] = {"vocab_size": 4000, "layers": 1, "lstm_learning_rate": 4e-3}
BUDGETS = {
    "captions": CompareTranslation(**CAPTIONS, steps=1800, batch_size=64),
    "joined captions": CompareTranslation(**CAPTIONS, steps=2200, batch_size=32, join=3),
    "reversed letters": CompareTranslation(steps=2000, batch_size=64, layers=1, hidden=128),
}
"""As many tokens a step of captions, joined or not. The rate of LSTMs was chosen by the loss on the
part of train that a run holds out."""

SHORTER = f"the gap up to {SHORT} words"
LEARNED = "up to the trained length"
TRAINING = "training, target tokens, LSTM + attention"
JOEYNMT = "joeynmt, its LSTM"


def main(options: Options) -> None:
    data = os.environ.get("BERTKIT_DATA")
    if data is None:
        sys.exit("BERTKIT_DATA: names no folder of data sets, and Multi30k is among them")
    book = options.book("history")
    with ExitStack() as stack:
        folder = RUNS
        if options.quick:
            folder = Path(stack.enter_context(TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        unpack(Path(data, "multi30k"), folder, quick=options.quick)
        for name in BUDGETS:
            rows = reversed_rows if name == "reversed letters" else caption_rows
            if not options.late and any(book.wanted(*key) for key in keys(name)):
                book.add(*rows(name, compared(name, folder, quick=options.quick)))
        if not installed():
            book.leave_out("joeynmt: not measured, benchmarks/joey.py says how to install it")
        elif not options.late and book.wanted(TRAINING, JOEYNMT):
            book.add(training(folder, quick=options.quick))
    book.close()


def gained(name: str) -> str:
    return f"{name}, BLEU that attention brings"


def longer(name: str) -> str:
    return f"{name}, what it brings above {LONG} words"


def right(model: str) -> str:
    return f"letters in place near twice the trained length, {model}"


def keys(name: str) -> list[tuple[str, str]]:
    """The rows of a comparison."""
    if name == "reversed letters":
        return [(right(model), LEARNED) for model in (LSTM, ATTENTION, TRANSFORMER)]
    return [(gained(name), kept.LIMIT), (longer(name), SHORTER)]


def compared(name: str, folder: Path, *, quick: bool) -> Path:
    """The folder of a comparison, where it is not there yet made, or gone on with."""
    out, settings = folder / name.replace(" ", "-"), BUDGETS[name]
    if (out / "compare.json").exists():
        return out
    given: dict[str, Any] = {"reverse": LETTERS}
    if name != "reversed letters":
        given = {
            "source": folder / "train.de.txt",
            "target": folder / "train.en.txt",
            "dev_source": folder / "val.de.txt",
            "dev_target": folder / "val.en.txt",
        }
    if quick:
        settings = CompareTranslation(
            steps=20, batch_size=8, vocab_size=4000, layers=1, hidden=32, join=settings.join
        )
    resume = (out / RECORD).exists()
    compare_translation(**given, out=out, settings=settings, resume=resume)
    return out


def caption_rows(name: str, out: Path) -> Iterator[kept.Row]:
    """What attention brings, and how much more for long captions than for short ones."""
    result = json.loads((out / "compare.json").read_text(encoding="utf-8"))
    source, target = (lines(out / "text" / f"dev.{side}.txt") for side in ("source", "target"))
    written = {
        model: lines(out / about["folder"] / "seed-0.txt")
        for model, about in result["models"].items()
    }

    def scores(keep: Callable[[int], bool]) -> dict[str, float]:
        places = [n for n, text in enumerate(source) if keep(len(text.split()))]
        where = [target[n] for n in places]
        return {model: bleu([texts[n] for n in places], where) for model, texts in written.items()}

    whole, short, long = (
        scores(keep) for keep in (lambda n: True, lambda n: n <= SHORT, lambda n: n > LONG)
    )
    yield kept.row(
        gained(name), whole[ATTENTION] - whole[LSTM], GAIN, peer_name=kept.LIMIT,
        unit="BLEU", target=1.0, better="higher",
        how=(kept.How(f"{told(whole)}; {costs(result)}"), kept.How()),
    )  # fmt: skip
    yield kept.row(
        longer(name), long[ATTENTION] - long[LSTM], max(short[ATTENTION] - short[LSTM], 0.1),
        peer_name=SHORTER, unit="BLEU", target=RATIO, better="higher",
        how=(kept.How(told(long)), kept.How(told(short))),
    )  # fmt: skip


def reversed_rows(name: str, out: Path) -> Iterator[kept.Row]:
    """The share of letters in their place in the longest sequences, beside those of a length that
    was learned from. Nothing is aimed at: it is reported."""
    result = json.loads((out / "compare.json").read_text(encoding="utf-8"))
    groups = result["groups"]
    last = groups[-1]
    known = max((group for group in groups if group["high"] <= LETTERS), key=lambda g: g["high"])
    for model, scores in result["scores"].items():
        near, far = (scores[group["score"]]["mean"] for group in (known, last))
        yield kept.row(
            right(model), far, max(near, 1e-3), peer_name=LEARNED, unit="share", target=0.0,
            better="higher",
            how=(
                kept.How(f"{last['low']} to {last['high']} letters; {costs(result, model)}"),
                kept.How(f"{known['low']} to {known['high']} letters"),
            ),
        )  # fmt: skip


def told(scores: dict[str, float]) -> str:
    return ", ".join(f"{model} {score:.1f}" for model, score in scores.items())


def costs(result: dict[str, Any], *models: str) -> str:
    """Of some models, by default of all."""
    return ", ".join(
        f"{result['models'][model]['parameters'] / 1e6:.1f} M weights in "
        f"{result['scores'][model]['seconds']['mean']:,.0f} s"
        for model in models or result["models"]
    )


def training(folder: Path, *, quick: bool) -> kept.Row:
    """Target tokens/s of `lstm-small` with Luong's attention, in turn, medians."""
    warm, counted, rounds = (2, 5, 1) if quick else (20, 100, 3)
    pairs, _ = prepared(folder)
    settings = override(
        read_run_file("lstm-small"),
        [("model.recurrent.attention", "luong"), ("model.recurrent.direction", "both")],
    )
    joey = Joey(folder / "joey", pairs.tokenizer(), read_config(settings, pairs.tokenizer()))
    for part in ("train", "val"):
        joey.write(part, [lines(folder / f"{part}.{side}.txt") for side in LANGUAGES])
    sides: dict[str, Callable[[], Any]] = {
        "ours": partial(apart, marian.ours, settings, pairs.folder, warm, counted),
        JOEYNMT: partial(joey.learn, warm=warm, steps=counted),
    }
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, call in sides.items():
            answer = call()
            rates[name].append(answer[0] if isinstance(answer, tuple) else answer)
    step = f"fp32, {joey.config.train.batch_size} pairs a step"
    return kept.row(
        TRAINING, median(rates["ours"]), median(rates[JOEYNMT]), peer_name=JOEYNMT,
        unit="tokens/s", target=SPEED, better="higher",
        how=(kept.How(step, 1.0), kept.How(f"{step}, no input feeding")),
    )  # fmt: skip
