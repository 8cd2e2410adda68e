"""Factories of tiny models, tokenizers, and model directories."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertkit.checkpoint.directory import save
from bertkit.config import paths
from bertkit.families import BERT, FAMILIES
from bertkit.families.family import Family
from bertkit.models.config import EncoderConfig
from bertkit.models.model import Model, build
from bertkit.recipes.prepare import prepare
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.vocabulary_training import train

ENCODERS = {name: family for name, family in FAMILIES.items() if "mlm" in family.heads}
"""Families of encoder models. Families of generative models have separate parity tests."""

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def write_vocab(folder: Path, words: Iterable[str], *, pad: int = 0) -> Path:
    """Write a WordPiece vocabulary: BERT's special tokens, with `[PAD]` at `pad`, then `words`."""
    path, specials = folder / "vocab.txt", list(SPECIALS[1:])
    specials.insert(pad, SPECIALS[0])
    path.write_text("\n".join([*specials, *words]), encoding="utf-8")
    return path


def tiny_tokenizer(words: Iterable[str], *, family: Family = BERT) -> Tokenizer:
    """Return a WordPiece tokenizer with the padding id that the family requires."""
    with tempfile.TemporaryDirectory() as folder:
        return Tokenizer.load(write_vocab(Path(folder), words, pad=family.fixed.get("pad_id", 0)))


def tiny_config(
    vocab: int | Tokenizer,
    *,
    family: Family = BERT,
    hidden: int = 16,
    layers: int = 1,
    heads: int = 2,
    intermediate: int = 32,
    length: int = 32,
    dropout: float | None = None,
    **others: Any,
) -> EncoderConfig:
    """Return the family's settings at a tiny size.

    `dropout` applies to states and attention; `others` are settings by path.
    """
    size = {"hidden": hidden, "layers": layers, "heads": heads}
    size |= {"intermediate": intermediate, "max_positions": length}
    if isinstance(vocab, Tokenizer):
        size |= {"vocab": vocab.vocab_size}
        size |= {"pad_id": vocab.pad} if "pad" in family.roles else {}
    else:
        size |= {"vocab": vocab}
    rates = {} if dropout is None else {"dropout": dropout, "attention_dropout": dropout}
    known = paths(family.config_type).keys() - family.fixed
    free = {name: value for name, value in {**size, **rates}.items() if name in known}
    return family.config({**free, **others})


def tiny_model(
    vocab: int | Tokenizer,
    *heads: str,
    labels: Sequence[str] = (),
    seed: int = 0,
    spread: float = 0.0,
    **settings: Any,
) -> Model:
    """Return a model with these heads and random weights that depend only on `seed`.

    `spread` is the standard deviation of noise that is added to each weight, so that differences
    between outputs are visible. `settings` are those of `tiny_config`.
    """
    config = tiny_config(vocab, **settings)
    # The random state of the test is unchanged.
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        model = build(config, heads, labels=labels)
        if spread:
            with torch.no_grad():
                for weight in model.parameters():
                    weight.add_(torch.randn_like(weight) * spread)
    return model


def tiny_folder(
    folder: Path,
    tokenizer: Tokenizer,
    *heads: str,
    labels: Sequence[str] = (),
    family: Family = BERT,
    task: str | None = None,
    **settings: Any,
) -> Path:
    """Save a `tiny_model`. `task` is the task name in `config.json`."""
    model = tiny_model(tokenizer, *heads, labels=labels, family=family, **settings)
    keys = {"bertkit": {"task": {"name": task, "options": {}}}} if task else {}
    save(folder, model, tokenizer, family, labels=labels, settings=keys)
    return folder


def hf_folder(folder: Path, kind: str, tokenizer: Tokenizer, **settings: Any) -> Any:
    """Save a small BERT of transformers, such as `BertForMultipleChoice`, and return it.

    It has no dropout, and larger random weights than a new model, so that mistakes show.
    """
    transformers = pytest.importorskip("transformers", reason="pip install 'bertkit[dev]'")
    settings |= {"hidden_size": 32, "intermediate_size": 64, "max_position_embeddings": 64}
    settings |= {"num_hidden_layers": 2, "num_attention_heads": 4}
    settings |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    torch.manual_seed(1)
    config = transformers.BertConfig(vocab_size=tokenizer.vocab_size, **settings)
    model = getattr(transformers, kind)(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    model.save_pretrained(folder)
    tokenizer.save(folder)
    return model


def tiny_corpus(folder: Path, texts: Sequence[str], **vocabulary: Any) -> Path:
    """Return a corpus with a document per text, in a new directory of `folder`.

    `vocabulary` is the kind, the size, and the use of the vocabulary that is trained on the texts.
    """
    files = [folder / f"{number:02}.txt" for number in range(len(texts))]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text, encoding="utf-8")
    tokenizer = train(texts, **vocabulary)
    return prepare(files, tokenizer=tokenizer, out=folder / "corpus", processes=1).folder


ELMO_OPTIONS = {
    "lstm": {"dim": 12, "projection_dim": 6, "n_layers": 2, "cell_clip": 0.5, "proj_clip": 0.3,
             "use_skip_connections": True},
    "char_cnn": {"embedding": {"dim": 4}, "filters": [[1, 3], [2, 4], [5, 5]], "n_highway": 2,
                 "n_characters": 262, "max_characters_per_token": 50, "activation": "relu"},
    "n_tokens_vocab": 793471,
}  # fmt: skip
"""Small sizes and clip values, so that all limits apply."""


def elmo_weights(options: dict[str, Any], seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """Return random weights with the names and shapes of a TensorFlow ELMo."""
    cnn, lstm = options["char_cnn"], options["lstm"]
    width, total = cnn["embedding"]["dim"], sum(count for _, count in cnn["filters"])
    outputs, cells = lstm["projection_dim"], lstm["dim"]
    shapes: dict[str, tuple[int, ...]] = {"char_embed": (261, width)}
    for index, (size, count) in enumerate(cnn["filters"]):
        shapes[f"CNN/W_cnn_{index}"] = (1, size, width, count)
        shapes[f"CNN/b_cnn_{index}"] = (count,)
    for index in range(cnn["n_highway"]):
        for kind in ("carry", "transform"):
            shapes[f"CNN_high_{index}/W_{kind}"] = (total, total)
            shapes[f"CNN_high_{index}/b_{kind}"] = (total,)
    shapes |= {"CNN_proj/W_proj": (total, outputs), "CNN_proj/b_proj": (outputs,)}
    for side in range(2):
        for layer in range(lstm["n_layers"]):
            where = f"RNN_{side}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            shapes[f"{where}/W_0"] = (2 * outputs, 4 * cells)
            shapes[f"{where}/B"] = (4 * cells,)
            shapes[f"{where}/W_P_0"] = (cells, outputs)
    random = np.random.default_rng(seed)
    return {
        name: random.normal(size=shape).astype(np.float32) * 0.6 for name, shape in shapes.items()
    }


def tiny_elmo(
    folder: Path,
    options: dict[str, Any] | None = None,
    weights: dict[str, np.ndarray[Any, Any]] | None = None,
) -> Path:
    """Save a small ELMo with random weights in the published format."""
    h5py = pytest.importorskip("h5py", reason="pip install 'bertkit[classic]'")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "options.json").write_text(json.dumps(options or ELMO_OPTIONS), encoding="utf-8")
    with h5py.File(folder / "lm_weights.hdf5", "w") as file:
        for name, weight in (weights or elmo_weights(options or ELMO_OPTIONS)).items():
            file[name] = weight
    return folder


def pdf(pages: Sequence[str], *, outline: Sequence[tuple[str, int]] = ()) -> bytes:
    """Return a PDF with these pages, one line of text per line.

    `outline` contains titles and page numbers from 0.
    """
    entries = [f"<< /Title ({title}) /Dest [{4 + 2 * page} 0 R /Fit]" for title, page in outline]
    first = 4 + 2 * len(pages)
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(pages)))
    objects = [
        f"<< /Type /Catalog /Pages 2 0 R{f' /Outlines {first} 0 R' if outline else ''} >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, page in enumerate(pages):
        lines = " T* ".join(f"({line}) Tj" for line in page.splitlines())
        stream = f"BT /F1 12 Tf 72 720 Td 14 TL {lines} ET"
        objects += [
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] "
            f"/Resources << /Font << /F1 3 0 R >> >> /Contents {5 + 2 * number} 0 R >>",
            f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream",
        ]
    if entries:
        last = first + len(entries)
        objects.append(f"<< /First {first + 1} 0 R /Last {last} 0 R /Count {len(entries)} >>")
        for number, entry in enumerate(entries, first + 1):
            after = f" /Next {number + 1} 0 R" if number < last else ""
            objects.append(f"{entry} /Parent {first} 0 R{after} >>")
    data, offsets = b"%PDF-1.4\n", []
    for number, content in enumerate(objects, 1):
        offsets.append(len(data))
        data += f"{number} 0 obj\n{content}\nendobj\n".encode("latin-1")
    table = "".join(f"{index:010} 00000 n \n" for index in offsets)
    size = len(objects) + 1
    end = f"xref\n0 {size}\n0000000000 65535 f \n{table}trailer\n<< /Size {size} /Root 1 0 R >>\n"
    return data + f"{end}startxref\n{len(data)}\n%%EOF\n".encode()


def edit_config(folder: Path, **changes: Any) -> None:
    """Change keys of config.json in a model directory. None removes a key."""
    path = folder / "config.json"
    config = {**json.loads(path.read_text(encoding="utf-8")), **changes}
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not None}), "utf-8")
