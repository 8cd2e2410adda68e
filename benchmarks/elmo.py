"""What an ELMo's features are worth to a tagger over static word vectors, on CoNLL-2003.

Both learn from the same raw text, novels and film reviews: an ELMo-tiny by next and previous words,
and static vectors of the same width by skip-gram. Neither learns any more under the tagger, which
is one and the same: a BiLSTM and a softmax. ELMo's layers stand beside the vectors, as in its paper
(Peters et al. 2018, section 3.3), and in their place. Every tenth sentence of train chooses the
epoch; valid is scored. What was learned is kept in runs/elmo: what is there is not run again. Needs
BERTKIT_DATA.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import torch

from benchmarks import kept
from benchmarks.harness import Options, once
from bertkit.config import override
from bertkit.data.tags import TaggedText
from bertkit.engine.engine import Engine
from bertkit.models.model import Model
from bertkit.pipelines.elmo_task import Network, new_network, stored
from bertkit.pipelines.words import whole_words
from bertkit.recipes.evaluate import evaluate
from bertkit.recipes.finetune_elmo import Learning, finetune_elmo
from bertkit.recipes.prepare import prepare
from bertkit.recipes.pretrain_elmo import pretrain_elmo
from bertkit.recipes.run_file import read_run_file
from bertkit.recipes.vectors import train_vectors
from bertkit.recipes.vocabulary import train_vocabulary
from bertkit.storage import write_json
from bertkit.tasks.tag import Options as TagOptions
from bertkit.tasks.tag import Tag
from bertkit.tasks.task import Feature, Reading, by_example, group
from bertkit.text.vectors import Vectors
from bertkit.training.fit import fit
from bertkit.training.skipgram import Skipgram

RUNS = Path("runs", "elmo")
WORDS, STEPS, WIDTH, SEED = 100_000, 1000, 256, 0
BESIDE = "CoNLL-2003, F1 of a BiLSTM on static vectors and ELMo's layers"
ALONE = "CoNLL-2003, F1 of a BiLSTM on ELMo's layers"
PEER = "on static vectors"
POINTS = 0.02
"""By so much the features are to raise F1."""

Parts = dict[str, list[TaggedText]]
"""Sentences to learn from, to choose the epoch by, and to score on."""


def main(options: Options) -> None:
    data = os.environ.get("BERTKIT_DATA")
    if data is None:
        sys.exit("BERTKIT_DATA: names no folder of data sets, and CoNLL-2003 is among them")
    quick = options.quick
    folder = RUNS.with_name("elmo-quick") if quick else RUNS
    texts = [Path(data) / name for name in ("prose_novels", "prose_reviews")]
    texts = [Path(data) / "wikitext2" / "valid.txt"] if quick else texts
    book = options.book("elmo")
    if not options.late and any(book.wanted(what, PEER) for what in (BESIDE, ALONE)):
        parts = conll(Path(data), 300 if quick else None)
        settings = Learning(epochs=10, seed=SEED)
        model = pretrained(folder, texts, quick=quick)
        vectors = static(folder, texts, quick=quick)
        theirs = of_vectors(folder, vectors, parts, settings)
        learned = f"{len(parts['train']):,} sentences, {settings.epochs} epochs, seed {SEED}"
        both = f"ELMo-tiny; {STEPS} steps of 128 sentences of prose; {learned}"
        for what, f1 in (
            (BESIDE, of_elmo(folder, model, parts, settings, vectors)),
            (ALONE, of_elmo(folder, model, parts, settings)),
        ):
            book.add(
                kept.row(
                    what, 100 * f1, 100 * max(theirs, 1e-6), peer_name=PEER, unit="F1",
                    target=1 + POINTS / max(theirs, 1e-6), better="higher",
                    how=(
                        kept.How(both),
                        kept.How(f"skip-gram, {WIDTH} wide, 3 epochs of the same prose; {learned}"),
                    ),
                )
            )  # fmt: skip
    book.close()


def pretrained(folder: Path, texts: list[Path], *, quick: bool) -> Path:
    """An ELMo that learned from the text."""
    vocabulary = once(
        folder / "vocabulary",
        lambda out: train_vocabulary(texts, out=out, kind="words", size=WORDS),
    )
    corpus = once(folder / "corpus", lambda out: prepare(texts, tokenizer=vocabulary, out=out))
    steps = 4 if quick else STEPS
    plan = {"train.steps": steps, "train.warmup_steps": steps // 10}
    plan |= {"train.evaluate_every": 100, "train.save_every": 100}
    changes = [(name, str(value)) for name, value in plan.items()]
    settings = override(read_run_file("elmo-tiny"), changes)
    return once(folder / "pretrained", lambda out: pretrain_elmo(settings, corpus=corpus, out=out))


def static(folder: Path, texts: list[Path], *, quick: bool) -> Path:
    """Word vectors that learned from the same text."""
    settings = Skipgram(width=WIDTH, epochs=1 if quick else 3)
    name = "vectors.txt"
    made = once(
        folder / "static", lambda out: train_vectors(texts, out=out / name, settings=settings)
    )
    return made / name


def of_elmo(
    folder: Path, model: Path, parts: Parts, settings: Learning, vectors: Path | None = None
) -> float:
    """F1 of the tagger on all layers of an ELMo, on sentences that chose nothing."""
    out = once(
        folder / ("on-elmo" if vectors is None else "on-both"),
        lambda place: finetune_elmo(
            model, train=parts["train"], dev=parts["choose"], out=place, settings=settings,
            vectors=vectors,
        ),
    )  # fmt: skip
    return float(evaluate(str(out), parts["score"])["f1"])


def of_vectors(folder: Path, vectors: Path, parts: Parts, settings: Learning) -> float:
    """The same on static vectors."""

    def make(place: Path) -> None:
        write_json(place / "scores.json", tagged(Vectors.load(vectors), parts, settings))

    out = once(folder / "on-vectors", make)
    score: float = json.loads((out / "scores.json").read_text(encoding="utf-8"))["f1"]
    return score


def tagged(vectors: Vectors, parts: Parts, settings: Learning) -> dict[str, float]:
    """The scores of a tagger that learned on static vectors."""
    task = Tag.from_examples(parts["train"], TagOptions())
    words = [word for part in parts.values() for one in part for word in one.words]
    states = torch.from_numpy(vectors.scaled(words))[None].half()
    features, first = {}, 0
    for name, examples in parts.items():
        read = [plain(task, example, place, name) for place, example in enumerate(examples)]
        features[name] = stored(task, read, first)
        first += sum(len(example.words) for example in examples)
    torch.manual_seed(settings.seed)
    learned = sum(len(example.words) for example in parts["train"])
    states_of, head = new_network(task, states, Network(), learned)
    fit(
        states_of, head, task, features["train"], features["choose"], parts["choose"],
        name="vectors", epochs=settings.epochs, batch_size=settings.batch_size,
        learning_rate=settings.learning_rate, seed=settings.seed,
    )  # fmt: skip
    engine = Engine(Model(states_of.eval(), {task.head: head.eval()}), precision=None)  # type: ignore[arg-type]
    scored = features["score"]
    outputs = by_example(parts["score"], group(scored), task.run(engine, scored))
    return task.score(task.answers(outputs, head), parts["score"])


def plain(task: Tag, example: TaggedText, place: int, part: str) -> Feature:
    """The words of a sentence, and their tags where they are learned from."""
    encoding = whole_words(np.zeros((len(example.words) + 2, 1), np.int64))
    target = task.word_targets(example, encoding) if part == "train" else None
    return Feature(encoding, place, np.arange(len(example.words)), target)


def conll(data: Path, rows: int | None) -> Parts:
    """Of train every tenth sentence chooses; valid is scored."""
    read = {
        name: Tag.read(data / "conll2003" / f"{name}.txt", Reading(), labelled=True)[0][:rows]
        for name in ("train", "valid")
    }
    learned = [one for place, one in enumerate(read["train"]) if place % 10]
    return {"train": learned, "choose": read["train"][::10], "score": read["valid"]}
