"""The whole life of a BERT in minutes: vocabulary, corpus, pretraining, fine-tuning, a report."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertkit.checkpoint.directory import save
from bertkit.config import override
from bertkit.console import quietly, say
from bertkit.data import local_text
from bertkit.data.corpus import Corpus
from bertkit.data.document_readers import documents as read_documents
from bertkit.data.paths import files
from bertkit.data.sentences import split
from bertkit.data.shuffling import Permutation
from bertkit.errors import ConfigError, DataError
from bertkit.extensions.demo.demo_report import DemoReport, MaskedWord, write_demo
from bertkit.families import BERT
from bertkit.models.model import build
from bertkit.pipelines import MaskAnswer, pipeline
from bertkit.recipes.experiment import experiment
from bertkit.recipes.prepare import prepare
from bertkit.recipes.pretrain import pretrain
from bertkit.recipes.pretrain_config import read_config
from bertkit.recipes.run_file import read_run_file
from bertkit.recipes.vocabulary import train_vocabulary
from bertkit.storage import refuse_used, write_text
from bertkit.tasks.classify import LabelExample
from bertkit.text.tokenizer import Tokenizer
from bertkit.view.runs import loss_curve

VOCAB = 8192
SEEDS = (0, 1, 2)
PER_LABEL = {"train": 100, "dev": 100}
PASSAGE_SENTENCES = 3
"""Sentences of a labelled passage."""

MAX_LABELS = 6
"""The sources with most passages; telling them apart is the labelled task."""

FINETUNE: dict[str, Any] = {"epochs": 8, "batch_size": 32, "learning_rate": 1e-3}

PRETRAINING_STEPS = 900
"""The same on every machine, busy or not: a demo that pretrains too little shows the contrary."""

CONFIG = {
    "train.batch_size": "64",
    "train.learning_rate": "2e-3",
    "model.dropout": "0.0",  # one look at little text: there is nothing to overfit yet
    "model.attention_dropout": "0.0",
    "model.max_positions": "128",
    "train.evaluate_samples": "512",
}


def demo(
    out: Path = Path("demo"), *, text: Sequence[Path] | None = None, steps: int = PRETRAINING_STEPS
) -> Path:
    """Run all steps from text to a fine-tuned BERT, with a report.

    Args:
        out: Output directory. It must not exist.
        text: Files or directories of text. Default: the English on this machine, from the Python
            reference and the docstrings of installed packages.
        steps: Number of pretraining steps.

    Returns:
        The path of the report.

    Raises:
        ConfigError: If `out` exists or `steps` is less than 1.
        DataError: If there is too little text.
    """
    refuse_used(out)
    if steps < 1:
        raise ConfigError(
            f"steps: {steps}; pretraining takes one at least, {PRETRAINING_STEPS} to learn much"
        )
    began = time.perf_counter()

    say("1/6 text")
    collected = _collect(text)
    train, dev = _labelled(collected)  # Before anything is written: there may be too little text.
    folder = out / "text"
    _write_documents(folder, collected)
    characters = sum(len(t) for _, t in collected)
    say(f"    {len(collected):,} documents, {characters / 1e6:.1f} million characters")

    say("2/6 vocabulary")
    with quietly():
        tokenizer = train_vocabulary([folder], size=VOCAB, out=out / "tokenizer")
    say(f"    {tokenizer.vocab_size:,} pieces")

    say("3/6 corpus")
    with quietly():
        corpus = prepare([folder], tokenizer=tokenizer, out=out / "corpus")
    say(f"    {corpus.tokens:,} tokens, {corpus.sentences:,} sentences")

    say(f"4/6 pretraining with masked words and next sentence, {steps} steps")
    settings = _settings(steps)
    scores = pretrain(settings, corpus=out / "corpus", out=out / "model")
    _save_untrained(settings, tokenizer, out / "untrained")

    say("5/6 masked words, before and after")
    words = _masked_words(collected, tokenizer, out)

    say("6/6 fine-tuning: which source is a passage from?")
    report = DemoReport(
        corpus={
            "documents": len(collected),
            "characters": characters,
            "tokens": corpus.tokens,
            "pieces": tokenizer.vocab_size,
        },
        pretraining={**scores, "steps": steps},
        frequency_loss=_frequency_loss(corpus),
        curve=loss_curve(out / "model"),
        words=words,
        labels=sorted({str(example.label) for example in train}),
        rows={"train": len(train), "dev": len(dev)},
        accuracy=_accuracy(out, train, dev),
        seconds=time.perf_counter() - began,
    )
    path = write_demo(out / "report.html", report)
    say(f"    {report.verdict()}")
    say(f"    {report.seconds / 60:.1f} minutes in all")
    return path


def _settings(steps: int) -> dict[str, Any]:
    """Return the settings of pretraining."""
    settings = override(read_run_file("bert-tiny"), list(CONFIG.items()))
    return override(
        settings,
        [
            ("train.steps", str(steps)),
            ("train.warmup_steps", str(steps // 10)),
            ("train.evaluate_every", str(max(1, steps // 6))),
            ("train.save_every", str(max(1, steps // 2))),
            ("train.log_every", str(max(1, steps // 60))),
        ],
    )


def _accuracy(
    out: Path, train: Sequence[LabelExample], dev: Sequence[LabelExample]
) -> dict[str, list[float]]:
    """Fine-tune the untrained and the pretrained model, and return the accuracy of each seed."""
    settings = {"task": "classify", "train": train, "dev": dev, "seed": SEEDS[0], **FINETUNE}
    variants = {name: {"model": str(out / name)} for name in ("untrained", "model")}
    plan = {"settings": settings, "variants": variants, "seeds": len(SEEDS)}
    with quietly():
        scores = experiment(plan, out=out / "finetuned")
    accuracy = {name: scores[name]["accuracy"]["each"] for name in variants}
    for name, each in accuracy.items():
        for seed, score in zip(SEEDS, each, strict=True):
            say(f"    {name}, seed {seed}: accuracy {score:.3f}")
    return accuracy


def _collect(text: Sequence[Path] | None) -> list[tuple[str, str]]:
    """(source, text) of every document; of a user's own text the folder or file is the source."""
    if text is None:
        return list(local_text.documents())
    paths = files(text)
    by_folder = len({file.parent for file in paths}) > 1
    joined: list[tuple[str, list[str]]] = []
    for document in read_documents(text):
        source = document.file.parent.name if by_folder else document.file.name.split(".")[0]
        if document.continues:
            joined[-1][1].append(document.text)
        else:
            joined.append((source, [document.text]))
    return [(source, "\n\n".join(parts)) for source, parts in joined]


def _write_documents(folder: Path, collected: Sequence[tuple[str, str]]) -> None:
    rows_of: dict[str, list[str]] = {}
    for source, text in collected:
        rows_of.setdefault(source, []).append(json.dumps({"text": text}) + "\n")
    for source, rows in rows_of.items():
        write_text(folder / f"{source.replace(' ', '-')}.jsonl", "".join(rows))


def _frequency_loss(corpus: Corpus) -> float:
    """The loss of who knows how often each piece occurs, and nothing of its neighbors."""
    counts = np.zeros(corpus.manifest.vocab_size)
    for first, last in pairwise(corpus.document_starts.tolist()):
        counts += np.bincount(corpus.slice(first, last), minlength=len(counts))
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def _save_untrained(settings: dict[str, Any], tokenizer: Tokenizer, folder: Path) -> None:
    config = read_config(settings, tokenizer)
    torch.manual_seed(config.train.seed)
    save(folder, build(config.model, ("mlm", "nsp")), tokenizer, BERT)


def _sentences(collected: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """(source, sentence) of plain prose of 8 to 25 words."""
    plain = re.compile(r"[A-Z][A-Za-z0-9 ,;:'()\-]+[.]")
    for source, text in collected:
        for sentence in split(text):
            if 8 <= sentence.count(" ") + 1 <= 25 and plain.fullmatch(sentence):
                yield source, sentence


def _masked_words(
    collected: Sequence[tuple[str, str]], tokenizer: Tokenizer, out: Path
) -> list[MaskedWord]:
    """Eight sentences with a common word masked, and what either model makes of it."""
    sentences = list(dict.fromkeys(s for _, s in _sentences(collected)))
    counts = Counter(word for s in sentences for word in re.findall(r"\b[a-z]{4,}\b", s))
    common = {word for word, _ in counts.most_common(150) if len(tokenizer.ids([word])[0]) == 1}
    order = Permutation(len(sentences), 7, 0)(np.arange(min(len(sentences), 2000)))
    chosen: dict[str, tuple[str, str]] = {}
    for place in order:
        sentence = sentences[int(place)]
        for word in re.findall(r"\b[a-z]{4,}\b", sentence):
            if word in common and word not in chosen and sentence.count(word) == 1:
                mask = tokenizer.pieces([tokenizer.mask])[0]
                chosen[word] = (sentence, re.sub(rf"\b{word}\b", mask, sentence))
                break
        if len(chosen) == 8:
            break
    masked = [text for _, text in chosen.values()]
    answers: list[list[list[MaskAnswer]]] = [
        pipeline("fill-mask", out / name)(masked, top=5) if masked else []
        for name in ("untrained", "model")
    ]
    return [
        MaskedWord(text=text, truth=word, before=before[0].candidates, after=after[0].candidates)
        for (word, (_, text)), before, after in zip(chosen.items(), *answers, strict=True)
    ]


def _labelled(
    collected: Sequence[tuple[str, str]],
) -> tuple[list[LabelExample], list[LabelExample]]:
    """Passages labelled with their source, equally many of each, train and dev apart.

    Raises: DataError when fewer than two sources have enough of them.
    """
    unique: dict[str, str] = {}
    for source, sentence in _sentences(collected):
        unique.setdefault(sentence, source)
    sentences: dict[str, list[str]] = {}
    for sentence, source in unique.items():
        sentences.setdefault(source, []).append(sentence)
    by_source = {
        source: [
            " ".join(own[i : i + PASSAGE_SENTENCES])
            for i in range(0, len(own) - PASSAGE_SENTENCES + 1, PASSAGE_SENTENCES)
        ]
        for source, own in sentences.items()
    }
    wanted = sum(PER_LABEL.values())
    enough = {s: examples for s, examples in by_source.items() if len(examples) >= wanted}
    labels = sorted(enough, key=lambda s: -len(enough[s]))[:MAX_LABELS]
    if len(labels) < 2:
        raise DataError(
            f"the text has only {len(labels)} sources (files or folders) with {wanted} passages of "
            f"{PASSAGE_SENTENCES} plain sentences; the labelled task needs two"
        )
    train, dev = [], []
    for label in labels:
        examples = enough[label]
        order = Permutation(len(examples), 11, 0)(np.arange(wanted))
        rows = [LabelExample(examples[int(i)], None, label) for i in order]
        train += rows[: PER_LABEL["train"]]
        dev += rows[PER_LABEL["train"] :]
    return train, dev
