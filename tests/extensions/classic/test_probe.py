"""Probing a frozen encoder: what combinations mean, states as they are, a tagger that learns."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.factories import tiny_elmo, tiny_folder
from torch import Tensor, nn

from bertkit.batch import Batch, Packed
from bertkit.checkpoint.directory import load
from bertkit.checkpoint.formats import LoadSettings, open_format
from bertkit.errors import ConfigError, DataError
from bertkit.extensions.classic.feature_classifier import compute_states
from bertkit.extensions.classic.probe import (
    COMBINATIONS,
    ELMO,
    PAPER,
    Combination,
    Probe,
    features_of,
    probe,
)
from bertkit.metrics import spread
from bertkit.nn.attention import Trace
from bertkit.tasks.tag import Tag, TagOptions
from bertkit.tasks.task import Reading
from bertkit.text.vocabulary_training import train as train_tokenizer

SETTINGS = Probe(epochs=8, batch_size=8, learning_rate=1e-2, width=16, layers=1, dropout=0.0)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, english: list[str]) -> Path:
    tokenizer = train_tokenizer(english[:5], kind="wordpiece", size=300)
    folder = tmp_path_factory.mktemp("base") / "model"
    return tiny_folder(folder, tokenizer, "mlm", hidden=32, layers=3, intermediate=64)


PLACES, PEOPLE, OTHERS = ("class", "loop"), ("module", "name"), ("the", "is", "in", "not", "of")


def conll(path: Path, count: int, *, shuffled: bool = False, words: int = 6) -> Path:
    """Sentences in which two words are places, and two are people."""
    chance = random.Random(str(path.name))
    lines = []
    for _ in range(count):
        for word in chance.choices(PLACES + PEOPLE + OTHERS, k=words):
            tag = "B-LOC" if word in PLACES else "B-PER" if word in PEOPLE else "O"
            if shuffled:
                tag = chance.choice(("B-LOC", "B-PER", "O"))
            lines.append(f"{word} {tag}\n")
        lines.append("\n")
    path.write_text("".join(lines), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "how", "layers"),
    [
        ("embeddings", "one", (0,)),
        ("3", "one", (3,)),
        ("1", "one", (1,)),
        ("-1", "one", (6,)),
        ("-2", "one", (5,)),
        ("-6", "one", (1,)),
        ("sum:-4", "sum", (3, 4, 5, 6)),
        ("mix:-2", "mix", (5, 6)),
        ("concat:-6", "concat", (1, 2, 3, 4, 5, 6)),
        ("mix:all", "mix", (1, 2, 3, 4, 5, 6)),
        ("mix:0", "mix", (0, 1, 2, 3, 4, 5, 6)),
    ],
)
def test_names_of_combinations(name: str, how: str, layers: tuple[int, ...]) -> None:
    assert Combination.of(name, 6) == Combination(name, how, layers)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("7", "has 6 layers"),
        ("-7", "has 6 layers"),
        ("concat:-7", "has 6 layers"),
        ("0", "is none; write embeddings"),
        ("all", "is none; write embeddings"),
        ("sum:4", "is none; write embeddings"),
        ("mean:-4", "is none; write embeddings"),
        ("", "is none; write embeddings"),
    ],
)
def test_what_is_no_combination_is_refused(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Combination.of(name, 6)


@given(st.text(max_size=8), st.integers(1, 24))
def test_any_name_gives_layers_of_the_model_or_is_refused(name: str, layers: int) -> None:
    try:
        found = Combination.of(name, layers)
    except ConfigError:
        return
    assert all(0 <= layer <= layers for layer in found.layers)


def test_the_papers_rows_are_among_ours_and_twelve_layers_have_all() -> None:
    assert PAPER.keys() < COMBINATIONS.keys()
    for name in COMBINATIONS:
        Combination.of(name, 12)


class Same(nn.Module):
    def forward(self, x: Tensor, lengths: tuple[int, ...]) -> Tensor:
        return x


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("embeddings", lambda s: s[0]),
        ("2", lambda s: s[2]),
        ("sum:-2", lambda s: s[1] + s[2]),
        ("mix:all", lambda s: (s[1] + s[2]) / 2),
        ("concat:-2", lambda s: torch.cat([s[1], s[2]], 1)),
    ],
)
def test_combinations_are_their_formulas(name: str, wanted: Callable[[Tensor], Tensor]) -> None:
    states = torch.randn(3, 9, 4).half()
    features = features_of(states, [0, 1, 2], Combination.of(name, 2), SETTINGS)
    inputs = features.lstm.lstm.input_size
    features.lstm = Same()  # type: ignore[assignment]
    ids = torch.tensor([3, 4, 0, 8])
    out = features(Batch(ids, torch.zeros_like(ids), Packed.of([2, 2])))
    torch.testing.assert_close(out, wanted(states.float())[ids])
    assert out.shape[1] == inputs


def test_stored_states_are_those_of_each_sentence_alone(base: Path, tmp_path: Path) -> None:
    loaded = load(base, heads=())
    path = tmp_path / "long.conll"
    conll(path, 3)
    more = "".join("the O\n" for _ in range(60))  # read in windows
    path.write_text(path.read_text() + more + "\n\u0007 O\n", encoding="utf-8")
    examples, _ = Tag.read(path, Reading(), labelled=True)
    task = Tag.from_examples(examples, TagOptions())
    read = task.features(examples, loaded.tokenizer, 32, long="window", labelled=False)
    assert len(read) > 5
    assert not len(read[-1].token_indices)  # type: ignore[arg-type]
    states = compute_states(open_format(loaded).load_frozen(LoadSettings()), read, [0, 3])
    row = 0
    for feature in read:
        assert feature.token_indices is not None
        trace = Trace()
        batch = Batch(
            torch.from_numpy(feature.encoding.ids),
            torch.from_numpy(feature.encoding.types),
            Packed.of([len(feature.encoding)]),
        )
        with torch.no_grad():
            loaded.model.encoder(batch, trace)
        places = feature.token_indices if len(feature.token_indices) else np.array([0])
        wanted = torch.stack([trace.states[0][places], trace.states[3][places]])
        found = states[:, row : row + len(places)].float()
        torch.testing.assert_close(found, wanted, atol=2e-3, rtol=2e-3)
        row += len(places)
    assert row == states.shape[1]


def test_it_learns_and_repeats_it_to_the_bit(base: Path, tmp_path: Path) -> None:
    train, dev = conll(tmp_path / "train.conll", 60), conll(tmp_path / "dev.conll", 20)
    with dev.open("a", encoding="utf-8") as file:  # words without a piece, and more than a window
        file.write("\u0007 O\n\n" + "".join("the O\n" for _ in range(60)))
    settings = Probe(
        epochs=4, batch_size=8, learning_rate=1e-2, width=16, layers=1, dropout=0.1, seeds=2
    )
    results = [
        probe(
            base,
            train=train,
            dev=dev,
            out=tmp_path / name,
            settings=settings,
            combinations=["embeddings", "mix:all"],
        )
        for name in ("one", "two")
    ]
    one, two = tmp_path / "one", tmp_path / "two"
    assert results[0] == results[1] == json.loads((one / "probe.json").read_bytes())
    for name in ("probe.json", "probe.svg", "probe.html"):
        assert (one / name).read_bytes() == (two / name).read_bytes()
    for found in results[0]["scores"].values():
        assert found == spread(found["each"])
        assert len(found["each"]) == 2
        assert found["mean"] > 0.9
    page = (one / "probe.html").read_text(encoding="utf-8")
    assert "91.0 %" in page
    assert "Devlin et al. 2019" in page
    assert page.count("<svg") == 1
    assert "weighted sum of all layers" in (one / "probe.svg").read_text(encoding="utf-8")


def test_control_tags_by_chance_are_not_learned(base: Path, tmp_path: Path) -> None:
    train = conll(tmp_path / "train.conll", 40, shuffled=True)
    dev = conll(tmp_path / "dev.conll", 40)
    found = probe(
        base,
        train=train,
        dev=dev,
        out=tmp_path / "out",
        settings=Probe(epochs=2, width=16, layers=1, learning_rate=1e-2),
        combinations=["-1"],
    )
    assert found["scores"]["-1"]["mean"] < 0.6


def test_combinations_of_the_paper_that_the_model_has(base: Path, tmp_path: Path) -> None:
    files = {"train": conll(tmp_path / "a.conll", 8), "dev": conll(tmp_path / "b.conll", 4)}
    settings = Probe(epochs=1, width=4, layers=2, limit=3)
    found = probe(base, **files, out=tmp_path / "out", settings=settings)
    assert list(found["scores"]) == ["embeddings", "-2", "-1", "mix:all"]  # of 3 layers
    assert found["train"]["sentences"] == found["dev"]["sentences"] == 3


def test_of_an_elmo_whole_words_are_read_and_its_paper_is_tried(tmp_path: Path) -> None:
    folder = tiny_elmo(tmp_path / "elmo")
    files = {"train": conll(tmp_path / "a.conll", 60), "dev": conll(tmp_path / "b.conll", 20)}
    settings = Probe(epochs=20, batch_size=8, learning_rate=1e-2, width=16, layers=1, dropout=0.0)
    found = probe(folder, **files, out=tmp_path / "out", settings=settings)
    assert list(found["scores"]) == list(ELMO)
    # layers of random weights, clipped all over, say little of a word
    assert min(found["scores"][name]["mean"] for name in ("embeddings", "mix:0")) > 0.9
    weights = {name: spread["mean"] for name, spread in found["mixtures"]["mix:0"].items()}
    assert list(weights) == ["embeddings", "1", "2", "scale"]
    assert sum(weights.values()) - weights["scale"] == pytest.approx(1, abs=1e-6)
    assert weights["embeddings"] > max(weights["1"], weights["2"])
    page = (tmp_path / "out" / "probe.html").read_text(encoding="utf-8")
    assert f"{weights['embeddings']:.3f}" in page
    assert "weighted sum of the embeddings and all layers" in page
    with pytest.raises(ConfigError, match="an ELMo has fp32 only"):
        probe(folder, **files, out=tmp_path / "bf16", settings=Probe(precision="bf16"))


def test_refusals_come_before_anything_is_written(base: Path, tmp_path: Path) -> None:
    train, dev = conll(tmp_path / "train.conll", 8), conll(tmp_path / "dev.conll", 4)
    out = tmp_path / "out"
    with pytest.raises(ConfigError, match="has 3 layers"):
        probe(base, train=train, dev=dev, out=out, combinations=["-1", "concat:-4"])
    with pytest.raises(ConfigError, match="none is named"):
        probe(base, train=train, dev=dev, out=out, combinations=[])
    dev.write_text("the B-FOOD\n")
    with pytest.raises(DataError, match=r"dev\.conll:1: entity type 'FOOD'"):
        probe(base, train=train, dev=dev, out=out)
    assert not out.exists()
    out.mkdir()
    (out / "mine").touch()
    with pytest.raises(ConfigError, match="exists already"):
        probe(base, train=train, dev=dev, out=out)
