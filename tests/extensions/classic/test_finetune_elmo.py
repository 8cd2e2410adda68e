"""Tags and labels learned on a frozen ELMo: kept, shown, and answered from again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.factories import tiny_elmo, tiny_folder, tiny_tokenizer

import bertkit
from bertkit.batch import Batch, Packed
from bertkit.errors import CheckpointError, ConfigError, DataError
from bertkit.extensions.classic.elmo_task import ElmoAnswer, Network, new_network
from bertkit.extensions.classic.feature_classifier import Features
from bertkit.extensions.classic.finetune_elmo import Learning, finetune_elmo
from bertkit.pipelines.answering import answering
from bertkit.recipes.evaluate import evaluate
from bertkit.recipes.info import info
from bertkit.tasks.tag import Tag
from bertkit.text.word_vectors import Vectors

pytest.importorskip("h5py", reason="pip install 'bertkit[classic]'")

SETTINGS = Learning(epochs=20, batch_size=8, learning_rate=1e-2)
NETWORK = Network(width=16, dropout=0.0)
FOODS = ("bread", "cheese", "soup")


def conll(path: Path, count: int) -> Path:
    """Foods are entities."""
    random = np.random.default_rng(count)
    lines = []
    for _ in range(count):
        for word in random.choice([*FOODS, "we", "eat", "the"], random.integers(2, 6)):
            lines.append(f"{word} {'B-FOOD' if word in FOODS else 'O'}")
        lines.append("")
    path.write_text("\n".join(lines))
    return path


def reviews(path: Path, count: int) -> Path:
    random = np.random.default_rng(count)
    labels = random.integers(0, 2, count)
    rows = [
        f"a {('bad', 'fine')[one]} film {n}\t{('no', 'yes')[one]}" for n, one in enumerate(labels)
    ]
    path.write_text("\n".join(["text\tlabel", *rows]) + "\n")
    return path


@pytest.fixture(scope="module", params=[False, True], ids=["softmax", "crf"])
def tagger(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("tagger")
    elmo = tiny_elmo(place / "elmo")
    files = {"train": conll(place / "train.conll", 60), "dev": conll(place / "dev.conll", 20)}
    settings = {"settings": SETTINGS, "network": NETWORK, "crf": request.param}
    test = conll(place / "test.conll", 21)
    found = finetune_elmo(elmo, **files, test=test, out=place / "out", **settings)
    assert found["scores"]["f1"] > 0.9
    assert found["test_f1"] == evaluate(str(place / "out"), test)["f1"]
    assert json.loads((place / "out" / "test.json").read_text())["rows"] == 21
    again = finetune_elmo(elmo, **files, out=place / "again", **settings)
    assert again["scores"] == found["scores"]
    assert again["mixture"] == found["mixture"]
    return place


def test_it_answers_as_it_was_scored(tagger: Path) -> None:
    found = json.loads((tagger / "out" / "scores.json").read_text())
    scores = evaluate(str(tagger / "out"), tagger / "dev.conll")
    assert scores["f1"] == pytest.approx(found["scores"]["f1"])
    answer = bertkit.pipeline("tag", tagger / "out")
    assert isinstance(answer, ElmoAnswer)
    one = answer("we eat the bread")
    assert [(e.text, e.type, e.start, e.end) for e in one.entities] == [("bread", "FOOD", 11, 16)]
    other = answer(["soup", "we eat the bread"])[1]  # in any company
    assert other.tags == one.tags
    assert other.entities[0].score == pytest.approx(one.entities[0].score, abs=1e-5)


def test_the_weights_of_layers_are_kept_and_shown(
    tagger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = json.loads((tagger / "out" / "scores.json").read_text())
    info(str(tagger / "out"))
    held = json.loads(capsys.readouterr().out)
    assert held["task"] == "tag"
    assert held["mixture"] == found["mixture"]
    mixture = dict(held["mixture"])
    assert mixture.pop("scale") != 1.0
    assert sum(mixture.values()) == pytest.approx(1)
    assert len(set(mixture.values())) == 3
    answer = answering(tagger / "out")
    assert isinstance(answer, ElmoAnswer)
    assert isinstance(answer.features, Features)
    assert answer.features.mixture([0, 1, 2]) == held["mixture"]


def test_the_elmo_in_it_is_the_one_it_learned_on(tagger: Path) -> None:
    for name, theirs in (("options.json", "options.json"), ("weights.hdf5", "lm_weights.hdf5")):
        assert (tagger / "out" / name).read_bytes() == (tagger / "elmo" / theirs).read_bytes()


def test_layers_are_standardized_by_the_words_of_train_alone() -> None:
    states = 5 + 3 * torch.randn(3, 20, 4, generator=torch.Generator().manual_seed(0))
    task = Tag(["O", "B-FOOD", "I-FOOD"])
    features, _ = new_network(task, states, Network(), 12)
    assert features.mean is not None
    assert features.spread is not None
    own = (states[:, :12] - features.mean) / features.spread
    torch.testing.assert_close(own.mean(1), torch.zeros(3, 4), atol=1e-5, rtol=0)
    torch.testing.assert_close(own.std(1), torch.ones(3, 4))
    others, _ = new_network(task, torch.cat([states[:, :12], 9 * states[:, 12:]], 1), Network(), 12)
    assert torch.equal(others.mean, features.mean)  # type: ignore[arg-type]
    assert {"mean", "spread"} <= features.state_dict().keys()


def test_word_vectors_stand_beside_the_layers_as_they_are() -> None:
    random = torch.Generator().manual_seed(0)
    states, vectors = torch.randn(3, 9, 4, generator=random), torch.randn(9, 5, generator=random)
    task = Tag(["O", "B-FOOD", "I-FOOD"])
    features, _ = new_network(task, states, Network(dropout=0.0), 9, beside=vectors)
    ids = torch.tensor([2, 7, 1])
    batch = Batch(ids, torch.zeros_like(ids), Packed.of([3]))
    assert features.mix is not None
    assert features.mean is not None
    own = features.mix((states[:, ids] - features.mean) / features.spread)
    wanted = features.lstm(torch.cat([vectors[ids], own], 1), [3])
    torch.testing.assert_close(features(batch), wanted)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_word_vectors_are_read_again_when_it_answers(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"own.txt{suffix}"
    table = np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32)
    Vectors([*FOODS, "we", "eat"], table).save(file)  # "the" has none
    files = {"train": conll(tmp_path / "a.conll", 60), "dev": conll(tmp_path / "b.conll", 20)}
    elmo, out = tiny_elmo(tmp_path / "elmo"), tmp_path / "out"
    shape = {"settings": SETTINGS, "network": NETWORK}
    found = finetune_elmo(elmo, **files, out=out, vectors=file, **shape)
    file.unlink()
    assert found["scores"]["f1"] > 0.9
    assert evaluate(str(out), files["dev"])["f1"] == pytest.approx(found["scores"]["f1"])
    answer = bertkit.pipeline("tag", out)
    assert answer("the bread").tags == ["O", "B-FOOD"]
    (out / f"vectors.txt{suffix}").rename(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match=r"task.safetensors: does not fit task.json"):
        bertkit.pipeline("tag", out)


def test_labels_of_texts(tmp_path: Path) -> None:
    files = {"train": reviews(tmp_path / "a.tsv", 60), "dev": reviews(tmp_path / "b.tsv", 20)}
    elmo, out = tiny_elmo(tmp_path / "elmo"), tmp_path / "out"
    shape = {"settings": SETTINGS, "network": NETWORK}
    found = finetune_elmo(elmo, task="classify", **files, out=out, **shape)
    assert found["scores"]["accuracy"] > 0.9
    assert evaluate(str(out), files["dev"])["accuracy"] == found["scores"]["accuracy"]
    answer = bertkit.pipeline("classify", out)("a fine film")
    assert (answer.label, set(answer.scores)) == ("yes", {"no", "yes"})
    with pytest.raises(CheckpointError, match="fine-tuned for classify, not for tag"):
        answering(out, "tag")
    with pytest.raises(DataError, match="a pair"):
        bertkit.pipeline("classify", out)(("a fine film", "another"))
    with pytest.raises(ConfigError, match="trained on an ELMo has fp32 only"):
        answering(out, precision="bf16")


def test_what_does_not_fit_is_refused(tagger: Path, tmp_path: Path) -> None:
    files = {"train": tagger / "train.conll", "dev": tagger / "dev.conll"}
    bert = tiny_folder(tmp_path / "bert", tiny_tokenizer(FOODS), "mlm")
    with pytest.raises(CheckpointError, match="got a Transformer; fine-tune it with `bertkit"):
        finetune_elmo(bert, **files, out=tmp_path / "out")
    with pytest.raises(ConfigError, match="crf: classify has none"):
        finetune_elmo(tagger / "elmo", task="classify", **files, out=tmp_path / "out", crf=True)
    assert not (tmp_path / "out").exists()
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for path in (tagger / "out").iterdir():
        (damaged / path.name).write_bytes(path.read_bytes())
    record = json.loads((damaged / "task.json").read_text())
    record["network"]["width"] = 17
    (damaged / "task.json").write_text(json.dumps(record))
    with pytest.raises(CheckpointError, match=r"task\.safetensors: does not fit"):
        answering(damaged)
    (damaged / "task.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"task\.json: damaged"):
        answering(damaged)
