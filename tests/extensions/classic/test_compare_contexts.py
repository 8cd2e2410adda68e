"""One word in several texts: what each kind of model can know of its text, and no more."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.factories import tiny_elmo, tiny_folder

from bertkit import cli
from bertkit.batch import Batch, Packed
from bertkit.checkpoint.directory import load
from bertkit.errors import BertkitError, ConfigError, DataError
from bertkit.extensions.classic.compare_contexts import contexts
from bertkit.extensions.classic.families.lstm import LSTM_LM
from bertkit.extensions.classic.word_vectors import Vectors
from bertkit.extensions.generation.families.gpt2 import GPT2
from bertkit.nn.attention import Trace
from bertkit.text.vocabulary_training import train as train_tokenizer

TEXTS = [
    "The class has one name.",
    "The class is a statement, or a loop!",
    "A loop of statements in the class",
]
"""The first two have the same words to the left of `class`, the third ends with the same word."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, english: list[str]) -> dict[str, Path]:
    """Word vectors, an ELMo, a GPT and a BERT, all of random weights."""
    place = tmp_path_factory.mktemp("models")
    Vectors(["class", "loop"], np.float32([[1, 2], [3, 0]])).save(place / "vectors.txt")
    pieces = train_tokenizer(english[:5], kind="wordpiece", size=300)
    writes = train_tokenizer(english[:5], kind="bpe", size=400, use="write")
    shape: dict[str, Any] = {"layers": 2, "hidden": 32, "spread": 0.2, "length": 48}
    return {
        "vectors": place / "vectors.txt",
        "elmo": tiny_elmo(place / "elmo"),
        "gpt": tiny_folder(place / "gpt", writes, "lm", family=GPT2, **shape),
        "bert": tiny_folder(place / "bert", pieces, "mlm", **shape),
    }


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    return path


def test_each_model_knows_what_it_sees(
    models: dict[str, Path], texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    asked = [word for model in models.values() for word in ("--model", str(model))]
    assert cli.run(["view", "contexts", "class", str(texts), *asked, "--out", str(out)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert json.loads((out / "contexts.json").read_text(encoding="utf-8")) == found
    assert [text[a:b] for text, (a, b) in zip(found["texts"], found["ranges"], strict=True)] == [
        "class"
    ] * 3
    cosines = {
        name: np.array(one["cosines"]) for name, one in zip(models, found["models"], strict=True)
    }
    assert {name: table.shape for name, table in cosines.items()} == {
        "vectors": (1, 3, 3), "elmo": (3, 3, 3), "gpt": (3, 3, 3), "bert": (3, 3, 3),
    }  # fmt: skip
    np.testing.assert_allclose(cosines["vectors"], 1.0, atol=1e-6)
    np.testing.assert_allclose(cosines["elmo"][0], 1.0, atol=1e-6)
    assert cosines["elmo"][1, 0, 1] < 1 - 1e-5
    np.testing.assert_allclose(cosines["gpt"][:, 0, 1], 1.0, atol=1e-5)  # the same to the left
    assert cosines["gpt"][2, 0, 2] < 1 - 1e-3
    assert cosines["bert"][2, 0, 1] < 1 - 1e-3  # it sees what follows, too
    page = html.unescape((out / "contexts.html").read_text(encoding="utf-8"))
    for one in found["models"]:
        assert f"{one['model']}: the word’s state depends on {one['sees']}." in page
    svg = (out / "contexts.svg").read_text(encoding="utf-8")
    assert svg.count('class="cell s') == 4 * 9
    assert "4. bert" in svg


def test_a_causal_model_reads_a_word_as_within_a_text(
    models: dict[str, Path], tmp_path: Path
) -> None:
    """Behind the end of a text and a space: the states are those of these very tokens."""
    path = tmp_path / "two.txt"
    path.write_text("class\nthe class is it\n", encoding="utf-8")
    found = contexts("class", path, models=[str(models["gpt"])], out=tmp_path / "out")
    loaded, states = load(models["gpt"]), []
    for text, word in ((" class", " class"), (" the class", " class")):
        ids, own = loaded.tokenizer.ids([text, word])
        row = torch.tensor([loaded.tokenizer.eos, *ids.tolist()])
        trace = Trace(weights=False)
        with torch.no_grad():
            loaded.model.encoder(Batch(row, torch.zeros_like(row), Packed.of([len(row)])), trace)
        states.append(torch.stack(trace.states)[:, -len(own) :].mean(1))
    wanted = torch.cosine_similarity(states[0], states[1], -1)
    np.testing.assert_allclose(np.array(found["models"][0]["cosines"])[:, 0, 1], wanted, atol=1e-5)


def test_refusals_leave_nothing_behind(
    models: dict[str, Path], texts: Path, tmp_path: Path, english: list[str]
) -> None:
    out = tmp_path / "out"
    writes = train_tokenizer(english[:5], kind="bpe", size=300, use="write")
    lstm = tiny_folder(tmp_path / "lstm", writes, "lm", family=LSTM_LM)

    def refused(error: type[BertkitError], said: str, **other: Any) -> None:
        given = {"word": "class", "file": texts, "models": [str(models["bert"])], **other}
        with pytest.raises(error, match=said):
            contexts(given.pop("word"), given.pop("file"), out=out, **given)
        assert not out.exists()

    refused(DataError, r"texts\.txt:1: 'zebra' is not in the text", word="zebra")
    one = tmp_path / "one.txt"
    one.write_text("the class", encoding="utf-8")
    refused(DataError, r"one\.txt must contain 2 to 32 texts, one per line, got 1", file=one)
    refused(ConfigError, "layer must be from 0 to 2 for .*, got 3", layer=3)
    refused(ConfigError, "RecurrentEncoder is not a Transformer", models=[str(lstm)])
    unknown = tmp_path / "others.txt"
    Vectors(["et", "alia"], np.ones((2, 3), np.float32)).save(unknown)
    refused(DataError, "others.txt has no vector of 'class'", models=[str(unknown)])
    out.mkdir()
    (out / "mine").touch()
    with pytest.raises(ConfigError, match="already exists"):
        contexts("class", texts, models=[str(models["bert"])], out=out)
