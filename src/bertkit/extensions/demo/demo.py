"""The command `demo`, which trains a vocabulary, prepares a corpus, pretrains, and fine-tunes."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.config import override
from bertkit.console import quietly, say
from bertkit.data import local_text
from bertkit.data.corpus import Corpus
from bertkit.data.document_readers import documents as read_documents
from bertkit.data.paths import files
from bertkit.data.sentences import split
from bertkit.data.shuffling import Permutation
from bertkit.errors import ConfigError, DataError
from bertkit.pipelines import pipeline
from bertkit.recipes.experiment import experiment
from bertkit.recipes.prepare import prepare
from bertkit.recipes.pretrain import pretrain
from bertkit.recipes.run_file import read_run_file
from bertkit.recipes.vocabulary import train_vocabulary
from bertkit.storage import check_unused, write_text
from bertkit.tasks.labeled_text import LabelExample
from bertkit.text.tokenizer import Tokenizer

VOCAB = 8192
SEEDS = (0, 1, 2)
PER_LABEL = {"train": 100, "dev": 100}
PASSAGE_SENTENCES = 3
"""Number of sentences in each labeled passage."""

MASKED_SENTENCES = 4
"""Number of sentences for which the demo shows the prediction of a masked word."""

MAX_LABELS = 6
"""Maximum number of labels. The fine-tuning task is to predict the source of a passage, so each
label is a source."""

UNTRAINED_FRACTION = 0.9
"""If the MLM loss is above this fraction of the loss from token frequencies alone, the model counts
as barely trained."""

FINETUNE: dict[str, Any] = {"epochs": 8, "batch_size": 32, "learning_rate": 1e-3}

PRETRAINING_STEPS = 900
"""Default number of pretraining steps. There is no time limit, because it would allow too few steps
on a busy machine."""

CONFIG = {
    "train.batch_size": "64",
    "train.learning_rate": "2e-3",
    # Dropout is not needed, because the model sees the text only about once and cannot overfit.
    "model.dropout": "0.0",
    "model.attention_dropout": "0.0",
    "model.max_positions": "128",
    "train.evaluate_samples": "512",
}


def demo(
    out: Path = Path("demo"), *, text: Sequence[Path] | None = None, steps: int = PRETRAINING_STEPS
) -> Path:
    """Run all steps from text to a fine-tuned BERT.

    Args:
        out: Output directory. It must not exist.
        text: Files or directories of text. Default: English text on this machine, which is taken
            from the Python reference and the docstrings of installed packages.
        steps: Number of pretraining steps.

    Returns:
        The path of an HTML page that compares fine-tuning from pretrained weights and from random
        weights.

    Raises:
        ConfigError: If `out` exists or `steps` is less than 1.
        DataError: If there is too little text.
    """
    check_unused(out)
    if steps < 1:
        raise ConfigError(
            f"steps must be at least 1, got {steps}; use {PRETRAINING_STEPS} for a useful model"
        )

    say("1/6 text")
    collected = _collect(text)
    # Check that there is enough text before any file is written.
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

    say("5/6 masked token predictions")
    _show_predictions(collected, tokenizer, out)

    say("6/6 fine-tuning: which source is a passage from?")
    accuracy = _accuracy(out, train, dev)
    say(f"    {_verdict(accuracy, scores['mlm_loss'], _frequency_loss(corpus), steps)}")
    return out / "finetuned" / "experiment.html"


def _verdict(
    accuracy: Mapping[str, Sequence[float]], mlm_loss: float, frequency_loss: float, steps: int
) -> str:
    """Describe whether pretraining improved the accuracy and, if not, a possible reason.

    Args:
        accuracy: Accuracies with each seed, for each start: `random weights` and `pretrained`.
        mlm_loss: MLM loss of the pretrained model on held-out text.
        frequency_loss: MLM loss of a model that predicts each token by its frequency, ignoring
            context.
        steps: Number of pretraining steps.
    """
    before, after = accuracy["random weights"], accuracy["pretrained"]
    message = f"accuracy {np.mean(after):.3f} with pretraining, {np.mean(before):.3f} without"
    if min(after) > max(before):
        return f"{message}: the worst seed with pretraining is better than the best without"
    message += f"; the run shows no benefit of pretraining: its MLM loss is {mlm_loss:.2f}, "
    message += f"compared with {frequency_loss:.2f} from token frequencies; "
    if mlm_loss > UNTRAINED_FRACTION * frequency_loss:
        return f"{message}use more than {steps:,} --steps, or more --text"
    return f"{message}the sources may be too easy or too hard to distinguish; use other --text"


def _settings(steps: int) -> dict[str, Any]:
    """Return the settings of pretraining."""
    return override(
        read_run_file("bert-tiny"),
        [
            *CONFIG.items(),
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
    """Fine-tune from random and from pretrained weights, and return the accuracy with each seed."""
    settings = {"task": "classify", "train": train, "dev": dev, "seed": SEEDS[0], **FINETUNE}
    settings["model"] = str(out / "model")
    variants = {"random weights": {"random_weights": True}, "pretrained": {}}
    plan = {"settings": settings, "variants": variants, "seeds": len(SEEDS)}
    with quietly():
        scores = experiment(plan, out=out / "finetuned")
    accuracy = {name: scores[name]["accuracy"]["each"] for name in variants}
    for name, values in accuracy.items():
        for seed, score in zip(SEEDS, values, strict=True):
            say(f"    {name}, seed {seed}: accuracy {score:.3f}")
    return accuracy


def _collect(text: Sequence[Path] | None) -> list[tuple[str, str]]:
    """Return the source and text of each document.

    If the user passed text, the source of a document is the name of its directory. If all files are
    in the same directory, it is the name of the file.
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
    """Compute the loss of a model that predicts each token by its frequency, ignoring context."""
    counts = np.zeros(corpus.manifest.vocab_size)
    for first, last in pairwise(corpus.document_starts.tolist()):
        counts += np.bincount(corpus.slice(first, last), minlength=len(counts))
    frequencies = counts[counts > 0] / counts.sum()
    return float(-(frequencies * np.log(frequencies)).sum())


def _sentences(collected: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield each plain sentence of 8 to 25 words, together with its source."""
    plain = re.compile(r"[A-Z][A-Za-z0-9 ,;:'()\-]+[.]")
    for source, text in collected:
        for sentence in split(text):
            if 8 <= sentence.count(" ") + 1 <= 25 and plain.fullmatch(sentence):
                yield source, sentence


def _show_predictions(
    collected: Sequence[tuple[str, str]], tokenizer: Tokenizer, out: Path
) -> None:
    """Log the model's predictions for sentences in which a frequent word is masked."""
    sentences = list(dict.fromkeys(s for _, s in _sentences(collected)))
    counts = Counter(word for s in sentences for word in re.findall(r"\b[a-z]{4,}\b", s))
    common = {word for word, _ in counts.most_common(150) if len(tokenizer.ids([word])[0]) == 1}
    order = Permutation(len(sentences), 7, 0)(np.arange(min(len(sentences), 2000)))
    mask = tokenizer.pieces([tokenizer.mask])[0]
    masked: dict[str, str] = {}
    for sentence in (sentences[int(index)] for index in order):
        words = common.intersection(re.findall(r"\b[a-z]{4,}\b", sentence)) - masked.keys()
        if words and len(masked) < MASKED_SENTENCES:
            word = min(words)
            masked[word] = re.sub(rf"\b{word}\b", mask, sentence, count=1)
    predict = pipeline("fill-mask", out / "model")
    for word, text in masked.items():
        tokens = predict(text, top_k=3)
        shown = ", ".join(f"{t['token_str'].strip()} {t['score']:.2f}" for t in tokens)
        say(f"    {text}  ({word}): {shown}")


def _labeled_passages(
    collected: Sequence[tuple[str, str]],
) -> tuple[list[LabelExample], list[LabelExample]]:
    """Return passages for train and dev, labeled with their source.

    All sources have the same number of passages.

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
            f"the text must have at least two sources (files or directories) with {count} "
            f"passages of {PASSAGE_SENTENCES} plain sentences each, but it has {len(labels)}; add "
            "text"
        )
    train, dev = [], []
    for label in labels:
        examples = enough[label]
        order = Permutation(len(examples), 11, 0)(np.arange(count))
        rows = [LabelExample(examples[int(i)], None, label) for i in order]
        train += rows[: PER_LABEL["train"]]
        dev += rows[PER_LABEL["train"] :]
    return train, dev
