"""Comparison of a word's states in several texts, for each type of model."""

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
    """Create word vectors, an ELMo, a GPT and a BERT with random weights."""
    directory = tmp_path_factory.mktemp("models")
    Vectors(["class", "loop"], np.float32([[1, 2], [3, 0]])).save(directory / "vectors.txt")
    wordpiece = train_tokenizer(english[:5], kind="wordpiece", size=300)
    bpe = train_tokenizer(english[:5], kind="bpe", size=400, use="write")
    shape: dict[str, Any] = {"layers": 2, "hidden": 32, "spread": 0.2, "length": 48}
    return {
        "vectors": directory / "vectors.txt",
        "elmo": tiny_elmo(directory / "elmo"),
        "gpt": tiny_folder(directory / "gpt", bpe, "lm", family=GPT2, **shape),
        "bert": tiny_folder(directory / "bert", wordpiece, "mlm", **shape),
    }


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    return path


def test_states_depend_only_on_visible_context(
    models: dict[str, Path], texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    model_options = [word for model in models.values() for word in ("--model", str(model))]
    command = ["view", "contexts", "class", str(texts), *model_options, "--out", str(out)]
    assert cli.run(command) == 0
    report = json.loads(capsys.readouterr().out)
    assert json.loads((out / "contexts.json").read_text(encoding="utf-8")) == report
    words = [text[a:b] for text, (a, b) in zip(report["texts"], report["ranges"], strict=True)]
    assert words == ["class"] * 3
    cosines = {
        name: np.array(model_report["cosines"])
        for name, model_report in zip(models, report["models"], strict=True)
    }
    assert {name: table.shape for name, table in cosines.items()} == {
        "vectors": (1, 3, 3), "elmo": (3, 3, 3), "gpt": (3, 3, 3), "bert": (3, 3, 3),
    }  # fmt: skip
    np.testing.assert_allclose(cosines["vectors"], 1.0, atol=1e-6)
    np.testing.assert_allclose(cosines["elmo"][0], 1.0, atol=1e-6)
    assert cosines["elmo"][1, 0, 1] < 1 - 1e-5
    # The left contexts are equal.
    np.testing.assert_allclose(cosines["gpt"][:, 0, 1], 1.0, atol=1e-5)
    assert cosines["gpt"][2, 0, 2] < 1 - 1e-3
    assert cosines["bert"][2, 0, 1] < 1 - 1e-3  # BERT also attends to the right context.
    page = html.unescape((out / "contexts.html").read_text(encoding="utf-8"))
    for model_report in report["models"]:
        name, sees = model_report["model"], model_report["sees"]
        assert f"{name}: the word’s state depends on {sees}." in page
    svg = (out / "contexts.svg").read_text(encoding="utf-8")
    assert svg.count('class="cell s') == 4 * 9
    assert "4. bert" in svg


def test_causal_model_encodes_word_after_eos_and_space(
    models: dict[str, Path], tmp_path: Path
) -> None:
    """The states match a run on the EOS token and the tokens that follow a space."""
    path = tmp_path / "two.txt"
    path.write_text("class\nthe class is it\n", encoding="utf-8")
    report = contexts("class", path, models=[str(models["gpt"])], out=tmp_path / "out")
    loaded, states = load(models["gpt"]), []
    for text, word in ((" class", " class"), (" the class", " class")):
        ids, word_ids = loaded.tokenizer.ids([text, word])
        row = torch.tensor([loaded.tokenizer.eos, *ids.tolist()])
        trace = Trace(weights=False)
        with torch.no_grad():
            loaded.model.encoder(Batch(row, torch.zeros_like(row), Packed.of([len(row)])), trace)
        states.append(torch.stack(trace.states)[:, -len(word_ids) :].mean(1))
    expected = torch.cosine_similarity(states[0], states[1], -1)
    np.testing.assert_allclose(
        np.array(report["models"][0]["cosines"])[:, 0, 1], expected, atol=1e-5
    )


def test_rejected_request_leaves_no_files(
    models: dict[str, Path], texts: Path, tmp_path: Path, english: list[str]
) -> None:
    out = tmp_path / "out"
    bpe = train_tokenizer(english[:5], kind="bpe", size=300, use="write")
    lstm = tiny_folder(tmp_path / "lstm", bpe, "lm", family=LSTM_LM)

    def check_rejected(error: type[BertkitError], message: str, **changes: Any) -> None:
        options = {"word": "class", "file": texts, "models": [str(models["bert"])], **changes}
        with pytest.raises(error, match=message):
            contexts(options.pop("word"), options.pop("file"), out=out, **options)
        assert not out.exists()

    check_rejected(DataError, r"texts\.txt:1: the text does not contain 'zebra'", word="zebra")
    single = tmp_path / "one.txt"
    single.write_text("the class", encoding="utf-8")
    check_rejected(
        DataError, r"one\.txt must contain 2 to 32 texts, one per line, got 1", file=single
    )
    check_rejected(ConfigError, "layer must be from 0 to 2 for .*, got 3", layer=3)
    check_rejected(ConfigError, "RecurrentEncoder is not a Transformer", models=[str(lstm)])
    unknown = tmp_path / "others.txt"
    Vectors(["et", "alia"], np.ones((2, 3), np.float32)).save(unknown)
    check_rejected(DataError, "others.txt: no vector for 'class'", models=[str(unknown)])
    out.mkdir()
    (out / "mine").touch()
    with pytest.raises(ConfigError, match="already exists"):
        contexts("class", texts, models=[str(models["bert"])], out=out)
