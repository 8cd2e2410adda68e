"""Demo of all steps: vocabulary, corpus, pretraining, fine-tuning, and a report."""

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
from bertkit.storage import check_unused, write_text
from bertkit.tasks.classify import LabelExample
from bertkit.text.tokenizer import Tokenizer
from bertkit.view.runs import loss_curve

VOCAB = 8192
SEEDS = (0, 1, 2)
PER_LABEL = {"train": 100, "dev": 100}
PASSAGE_SENTENCES = 3
"""Number of sentences per labeled passage."""

MAX_LABELS = 6
"""Maximum number of sources. The fine-tuning task is to predict the source of a passage."""

FINETUNE: dict[str, Any] = {"epochs": 8, "batch_size": 32, "learning_rate": 1e-3}

PRETRAINING_STEPS = 900
"""Default number of steps. A time limit instead would allow too few steps on a busy machine."""

CONFIG = {
    "train.batch_size": "64",
    "train.learning_rate": "2e-3",
    # The model does not overfit, because it processes the text about once.
    "model.dropout": "0.0",
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
    check_unused(out)
    if steps < 1:
        raise ConfigError(
            f"steps must be at least 1, got {steps}; use {PRETRAINING_STEPS} for a useful model"
        )
    start = time.perf_counter()

    say("1/6 text")
    collected = _collect(text)
    # Check that there is enough text before writing files.
    train, dev = _labeled_passages(collected)
    folder = out / "text"
    _write_documents(folder, collected)
    characters = sum(len(t) for _, t in collected)
    say(f"    {len(collected):,} documents, {characters / 1e6:.1f} million characters")

    say("2/6 vocabulary")
    with quietly():
        tokenizer = train_vocabulary([folder], size=VOCAB, out=out / "tokenizer")
    say(f"    {tokenizer.vocab_size:,} tokens")

    say("3/6 corpus")
    with quietly():
        corpus = prepare([folder], tokenizer=tokenizer, out=out / "corpus")
    say(f"    {corpus.tokens:,} tokens, {corpus.sentences:,} sentences")

    say(f"4/6 pretraining with MLM and NSP, {steps} steps")
    settings = _settings(steps)
    scores = pretrain(settings, corpus=out / "corpus", out=out / "model")
    _save_untrained(settings, tokenizer, out / "untrained")

    say("5/6 masked token predictions, before and after pretraining")
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
        seconds=time.perf_counter() - start,
    )
    path = write_demo(out / "report.html", report)
    say(f"    {report.verdict()}")
    say(f"    total time: {report.seconds / 60:.1f} minutes")
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
    """Fine-tune the untrained and the pretrained model, and return their accuracies by seed."""
    settings = {"task": "classify", "train": train, "dev": dev, "seed": SEEDS[0], **FINETUNE}
    variants = {name: {"model": str(out / name)} for name in ("untrained", "model")}
    plan = {"settings": settings, "variants": variants, "seeds": len(SEEDS)}
    with quietly():
        scores = experiment(plan, out=out / "finetuned")
    accuracy = {name: scores[name]["accuracy"]["each"] for name in variants}
    for name, values in accuracy.items():
        for seed, score in zip(SEEDS, values, strict=True):
            say(f"    {name}, seed {seed}: accuracy {score:.3f}")
    return accuracy


def _collect(text: Sequence[Path] | None) -> list[tuple[str, str]]:
    """Return the source and the text of each document.

    The source of user text is the name of its directory, or of its file if all files are in one
    directory.
    """
    if text is None:
        return list(local_text.documents())
    paths = files(text)
    by_folder = len({file.parent for file in paths}) > 1
    collected: list[tuple[str, list[str]]] = []
    for document in read_documents(text):
        source = document.file.parent.name if by_folder else document.file.name.split(".")[0]
        if document.continues:
            collected[-1][1].append(document.text)
        else:
            collected.append((source, [document.text]))
    return [(source, "\n\n".join(parts)) for source, parts in collected]


def _write_documents(folder: Path, collected: Sequence[tuple[str, str]]) -> None:
    rows_by_source: dict[str, list[str]] = {}
    for source, text in collected:
        rows_by_source.setdefault(source, []).append(json.dumps({"text": text}) + "\n")
    for source, rows in rows_by_source.items():
        write_text(folder / f"{source.replace(' ', '-')}.jsonl", "".join(rows))


def _frequency_loss(corpus: Corpus) -> float:
    """Compute the loss of predicting each token by its frequency, without context."""
    counts = np.zeros(corpus.manifest.vocab_size)
    for first, last in pairwise(corpus.document_starts.tolist()):
        counts += np.bincount(corpus.slice(first, last), minlength=len(counts))
    frequencies = counts[counts > 0] / counts.sum()
    return float(-(frequencies * np.log(frequencies)).sum())


def _save_untrained(settings: dict[str, Any], tokenizer: Tokenizer, folder: Path) -> None:
    config = read_config(settings, tokenizer)
    torch.manual_seed(config.train.seed)
    save(folder, build(config.model, ("mlm", "nsp")), tokenizer, BERT)


def _sentences(collected: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the source and each plain sentence of 8 to 25 words."""
    plain = re.compile(r"[A-Z][A-Za-z0-9 ,;:'()\-]+[.]")
    for source, text in collected:
        for sentence in split(text):
            if 8 <= sentence.count(" ") + 1 <= 25 and plain.fullmatch(sentence):
                yield source, sentence


def _masked_words(
    collected: Sequence[tuple[str, str]], tokenizer: Tokenizer, out: Path
) -> list[MaskedWord]:
    """Return the predictions of both models for eight sentences with a masked frequent word."""
    sentences = list(dict.fromkeys(s for _, s in _sentences(collected)))
    counts = Counter(word for s in sentences for word in re.findall(r"\b[a-z]{4,}\b", s))
    common = {word for word, _ in counts.most_common(150) if len(tokenizer.ids([word])[0]) == 1}
    order = Permutation(len(sentences), 7, 0)(np.arange(min(len(sentences), 2000)))
    chosen: dict[str, tuple[str, str]] = {}
    for index in order:
        sentence = sentences[int(index)]
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


def _labeled_passages(
    collected: Sequence[tuple[str, str]],
) -> tuple[list[LabelExample], list[LabelExample]]:
    """Return train and dev passages, labeled with their source, the same number per source.

    Raises:
        DataError: If fewer than two sources have enough passages.
    """
    unique: dict[str, str] = {}
    for source, sentence in _sentences(collected):
        unique.setdefault(sentence, source)
    sentences: dict[str, list[str]] = {}
    for sentence, source in unique.items():
        sentences.setdefault(source, []).append(sentence)
    by_source = {
        source: [
            " ".join(texts[i : i + PASSAGE_SENTENCES])
            for i in range(0, len(texts) - PASSAGE_SENTENCES + 1, PASSAGE_SENTENCES)
        ]
        for source, texts in sentences.items()
    }
    count = sum(PER_LABEL.values())
    enough = {s: examples for s, examples in by_source.items() if len(examples) >= count}
    labels = sorted(enough, key=lambda s: -len(enough[s]))[:MAX_LABELS]
    if len(labels) < 2:
        raise DataError(
            f"the text must have at least two sources (files or directories) with {count} passages "
            f"of {PASSAGE_SENTENCES} plain sentences, got {len(labels)}; add text"
        )
    train, dev = [], []
    for label in labels:
        examples = enough[label]
        order = Permutation(len(examples), 11, 0)(np.arange(count))
        rows = [LabelExample(examples[int(i)], None, label) for i in order]
        train += rows[: PER_LABEL["train"]]
        dev += rows[PER_LABEL["train"] :]
    return train, dev
