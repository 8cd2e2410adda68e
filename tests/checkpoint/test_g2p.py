"""g2p-en's model: the numbers and the phonemes of its own code, and what is no such file."""

from __future__ import annotations

import importlib.util
import random
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import bertkit
from bertkit import cli
from bertkit.checkpoint.folder import save
from bertkit.checkpoint.g2p import LETTERS, NAMES, PHONEMES
from bertkit.errors import CheckpointError, ConfigError
from bertkit.models.decoding import Decoding

Arrays = dict[str, NDArray[Any]]
END, MOST = 3, 20
"""Of its phonemes; and how many it writes at most."""


def arrays_of(width: int = 6) -> Arrays:
    """Random weights, so large that words differ."""
    draws = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {"fc_w": (len(PHONEMES), width), "fc_b": (len(PHONEMES),)}
    for side, rows in (("enc", len(LETTERS)), ("dec", len(PHONEMES))):
        shapes[f"{side}_emb"] = (rows, width)
        shapes |= {f"{side}_w_{way}": (3 * width, width) for way in ("ih", "hh")}
        shapes |= {f"{side}_b_{way}": (3 * width,) for way in ("ih", "hh")}
    return {name: draws.normal(size=shapes[name]).astype(np.float32) for name in NAMES}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    np.savez(tmp_path / "a.npz", **arrays_of())
    return tmp_path / "a.npz"


@pytest.fixture(scope="module")
def published() -> Path:
    """Its package is found and not run: it fetches data when it is imported."""
    spec = importlib.util.find_spec("g2p_en")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("g2p-en is not installed: pip install --no-deps g2p-en==2.1.0")
    return Path(spec.submodule_search_locations[0], "checkpoint20.npz")


# ---- its `G2p.predict`, in numbers: one word, one token at a time


def cell(w: Mapping[str, NDArray[Any]], side: str, x: NDArray[Any], h: NDArray[Any]) -> Any:
    given = w[f"{side}_w_ih"] @ x + w[f"{side}_b_ih"]
    kept = w[f"{side}_w_hh"] @ h + w[f"{side}_b_hh"]
    (reset, update, new), (reset_h, update_h, new_h) = np.split(given, 3), np.split(kept, 3)
    update = 1 / (1 + np.exp(-(update + update_h)))
    new = np.tanh(new + new_h / (1 + np.exp(-(reset + reset_h))))
    return (1 - update) * new + update * h


def predict(w: Mapping[str, NDArray[Any]], word: str) -> tuple[str, NDArray[Any]]:
    """The phonemes, and the logits of each."""
    known = {letter: number for number, letter in enumerate(LETTERS)}
    h = np.zeros(w["enc_emb"].shape[1])
    for number in [*(known.get(letter, 1) for letter in word), 2]:
        h = cell(w, "enc", w["enc_emb"][number], h)
    token, written, logits = 2, [], []
    for _ in range(MOST):
        h = cell(w, "dec", w["dec_emb"][token], h)
        logits.append(w["fc_w"] @ h + w["fc_b"])
        token = int(logits[-1].argmax())
        if token == END:
            break
        written.append(token)
    return " ".join(PHONEMES[token] for token in written if token > END), np.stack(logits)


def words(count: int) -> list[str]:
    draws = random.Random(0)
    return [
        "".join(draws.choices(string.ascii_lowercase, k=draws.randint(1, 14))) for _ in range(count)
    ]


def check(path: Path, texts: list[str]) -> None:
    loaded = bertkit.load(path)
    writer = bertkit.pipeline("generate", loaded)
    with np.load(path, allow_pickle=False) as arrays:
        theirs = {name: arrays[name].astype(np.float64) for name in NAMES}
    swapped = theirs | {
        "dec_w_hh": np.concatenate([theirs["dec_w_hh"][p] for p in _parts(theirs, (1, 0, 2))])
    }
    wrong = 0
    for text, (answer, *_) in zip(texts, writer(texts, Decoding(max_tokens=MOST)), strict=True):
        wanted, logits = predict(theirs, text)
        assert answer.text == wanted
        (request,) = writer.requests([text])
        ids = [int(row.argmax()) for row in logits][: len(logits) - 1]
        ours = writer.stepper.read(request, ids)[: len(logits)].numpy()
        np.testing.assert_allclose(ours, logits, rtol=1e-4, atol=1e-4)
        wrong += predict(swapped, text)[0] != answer.text
    assert wrong > len(texts) / 2  # the control: its gates in another order


def _parts(arrays: Arrays, order: tuple[int, ...]) -> list[slice]:
    width = arrays["dec_w_hh"].shape[1]
    return [slice(part * width, (part + 1) * width) for part in order]


def test_the_published_model_writes_what_its_own_code_does(published: Path) -> None:
    check(published, ["hello", "attention", "transformer", "ünknown", *words(60)])
    loaded = bertkit.load(published)
    assert sum(weight.numel() for weight in loaded.model.parameters()) == 834_890
    writer = bertkit.pipeline("generate", loaded)
    assert writer(["Hello"])[0][0].text == "HH EH1 L OW0"


def test_any_model_of_this_kind_does(file: Path) -> None:
    check(file, words(40))


def test_the_commands_take_the_file(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "words.txt").write_text("abc\n\nzz\n", encoding="utf-8")
    assert cli.run(["translate", str(file), str(tmp_path / "words.txt")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert cli.run(["align", str(file), "abc"]) == 2
    assert "its decoder has no attention" in capsys.readouterr().err
    assert cli.run(["translate", str(file), str(file)]) == 2
    loaded = bertkit.load(file)
    with pytest.raises(ConfigError):  # no folder of bertkit says such a shape
        save(tmp_path / "out", loaded.model, loaded.tokenizer, loaded.family)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fc_w": np.zeros((3, 6), np.float32)}, r"fc_w is float32 \(3, 6\)"),
        ({"enc_emb": np.zeros((29, 6), np.int64)}, "enc_emb is int64"),
        ({"enc_emb": np.array(0.5)}, "enc_emb is float64"),
        ({"fc_b": np.zeros((0,))}, r"fc_b is float64 \(0,\), where floats \(74,\) belong"),
        ({"enc_emb": np.array([{}])}, "Object arrays cannot be loaded"),
        ({"dec_emb": None}, "has no array 'dec_emb'"),
    ],
)
def test_another_model_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    arrays = {k: v for k, v in {**arrays_of(), **changes}.items() if v is not None}
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(CheckpointError, match=message):
        bertkit.load(tmp_path / "a.npz")


def test_a_damaged_file_is_refused(file: Path) -> None:
    whole = file.read_bytes()
    for content in (b"", b"PK", whole[: len(whole) // 2], whole[:2000] + b"x" * 50 + whole[2050:]):
        file.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"take checkpoint20\.npz of g2p-en"):
            bertkit.load(file)
