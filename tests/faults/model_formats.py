"""Tiny generative models, adapters, tokenizers, and word vectors, and how to open them."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from pydoc_data import topics
from typing import Any

import numpy as np
import torch
from tests.factories import ELMO_OPTIONS, SPECIALS, tiny_elmo, tiny_model

from bertkit.checkpoint.adapter import write_adapter
from bertkit.checkpoint.directory import load, save
from bertkit.config import paths
from bertkit.extensions.classic.elmo_files import Softmax
from bertkit.extensions.classic.word_vectors import Vectors
from bertkit.families import BERT, FAMILIES
from bertkit.models.lora import LoRA, add_lora
from bertkit.models.model import build
from bertkit.pipelines import pipeline
from bertkit.pipelines.answering import answering
from bertkit.recipes.vocabulary import train_vocabulary
from bertkit.tasks import find
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.vocabulary_training import train

ENGLISH = [text.strip() for _, text in sorted(topics.topics.items())][:2]


@cache
def vocabulary(kind: Any, use: Any = "encode") -> Tokenizer:
    return train(ENGLISH, kind=kind, size=600, max_length=32, use=use)


# ---- Models


def make_adapter(folder: Path) -> None:
    model = tiny_model(vocabulary("wordpiece"), "classify", labels=("no", "yes"))
    settings = {"bertkit": {"task": {"name": "classify", "options": {}}}}
    base = folder.parent / "adapter-base"
    if not base.exists():
        save(base, model, vocabulary("wordpiece"), BERT, labels=("no", "yes"), settings=settings)
    sizes = lambda name, rows: BERT.sizes(name, rows, config=model.config)  # noqa: E731
    add_lora(model, LoRA(rank=2), sizes, frozen_layers=0)
    write_adapter(folder, model, BERT, base=str(base))


def use_classifier(folder: Path) -> None:
    answering(folder)("a good one")


def sides(folder: Path) -> Tokenizer:
    """Train a vocabulary of two sides, as SentencePiece models."""
    folder.mkdir()
    text, out = folder / "text.txt", folder / "v"
    text.write_text("a b c d e f\n" * 20, encoding="utf-8")
    train_vocabulary([text], out=out, kind="unigram", use="translate", size=11)
    tokenizer = Tokenizer.load(out)
    shutil.rmtree(out)
    text.unlink()
    return tokenizer


def make_generator(folder: Path, family: str) -> None:
    """Write a decoder-only model with a chat template."""
    from tests.extensions.generation.test_chat_format import vocabulary as chat_vocabulary

    tokenizer = chat_vocabulary("chatml")
    save(
        folder,
        tiny_model(tokenizer, "lm", family=FAMILIES[family]),
        tokenizer,
        FAMILIES[family],
        generation={"num_beams": 2, "max_new_tokens": 3, "eos_token_id": tokenizer.eos},
    )


def make_encoder_decoder(folder: Path, family: str) -> None:
    if family in ("marian", "lstm"):
        tokenizer = sides(folder)
    else:
        tokenizer = vocabulary("bpe", "spans" if family == "t5" else "encode")
    kind = FAMILIES[family]
    assert kind.decoder is not None
    size = {"vocab": tokenizer.vocab_size, "hidden": 16, "layers": 1, "heads": 2}
    size |= {"intermediate": 32, "pad_id": tokenizer.pad, "max_positions": 32}
    encoder, decoder = (
        part.config({n: size[n] for n in size.keys() & paths(part.config_type) - part.fixed.keys()})
        for part in (kind, kind.decoder)
    )
    save(folder, build(encoder, ("lm",), decoder=decoder), tokenizer, kind)


def use_generator(folder: Path, name: str = "") -> None:
    pipeline("generate", load(folder / name))(["a the"], {"max_tokens": 3})


def make_gguf(folder: Path) -> None:
    from tests.extensions.generation.test_gguf import write

    folder.mkdir()
    write(folder / "model.gguf")


def make_elmo(folder: Path) -> None:
    tiny_elmo(folder)
    weight = torch.zeros(4, ELMO_OPTIONS["lstm"]["projection_dim"])  # type: ignore[index]
    Softmax(["<S>", "</S>", "<UNK>", "a"], weight, torch.zeros(4)).save(folder)


def use_elmo(folder: Path) -> None:
    pipeline("words", folder)(["a bc"])
    pipeline("fill-gap", folder)(["a ___ bc"])


def make_frozen_features(folder: Path) -> None:
    start = folder.with_name(f"start-of-{folder.name}")
    tokenizer = vocabulary("wordpiece")
    save(start / "base", tiny_model(tokenizer), tokenizer, BERT)
    save_features(folder, start)


def make_word_features(folder: Path, elmo: bool = True) -> None:
    start = folder.with_name(f"start-of-{folder.name}")
    if elmo:
        tiny_elmo(start)
    else:
        start.mkdir()
    Vectors(["a", "good"], np.ones((2, 3), np.float32)).save(start / "vectors.txt")
    save_features(folder, start)


def save_features(folder: Path, start: Path) -> None:
    """Save a classifier on the frozen features of a directory."""
    (start / "config.json").write_text('{"model_type": "word-features", "hidden_size": 8}')
    task = find("classify").restore(["no", "yes"], {})
    loaded = load(start, heads={"classify": task.build_head}, labels=task.labels)
    save(
        folder, loaded.model, loaded.tokenizer, loaded.family,
        labels=task.labels, settings=task.settings(),
    )  # fmt: skip


# ---- Tokenizers and word vectors


def make_tokenizer(folder: Path, kind: str) -> None:
    folder.mkdir()
    match kind:
        case "vocab.txt":
            tokens = [*SPECIALS, *"abcdefgh"]
            (folder / kind).write_text("\n".join(tokens), encoding="utf-8")
        case "merges.txt":
            model = json.loads(vocabulary("bpe").core.to_str())["model"]
            merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
            (folder / kind).write_text("\n".join(merges), encoding="utf-8")
            (folder / "vocab.json").write_text(json.dumps(model["vocab"]), encoding="utf-8")
        case _:
            vocabulary(kind).save(folder)


def use_tokenizer(folder: Path) -> None:
    Tokenizer.load(folder).encode("a we bc")


def make_vectors(folder: Path) -> None:
    folder.mkdir()
    vectors = Vectors(["a", "b", "c d"], np.eye(3, 4, dtype=np.float32))
    vectors.save(folder / "vectors.txt")
    vectors.save(folder / "vectors.txt.gz")
    (folder / "glove.txt").write_text("a 1 2 3\nb 0.5 1e-3 -1\n", encoding="utf-8")


def use_vectors(folder: Path) -> None:
    for name in ("vectors.txt", "vectors.txt.gz", "glove.txt"):
        Vectors.load(folder / name).nearest("a")
