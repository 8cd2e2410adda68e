"""BiLSTM on frozen hidden states of a Transformer (`finetune --features`)."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.factories import edit_config, tiny_elmo, tiny_folder
from torch import Tensor

import bertkit
from bertkit.batch import Batch
from bertkit.errors import BertkitError, CheckpointError, ConfigError
from bertkit.extensions.classic.frozen_features import LayerChoice, TransformerFeatures
from bertkit.extensions.classic.word_features import WordFeatureEncoder
from bertkit.extensions.classic.word_vectors import Vectors
from bertkit.recipes.evaluate import evaluate
from bertkit.recipes.info import info
from bertkit.text.vocabulary_training import train as train_tokenizer

SETTINGS = {"epochs": 6, "batch_size": 8, "learning_rate": 2e-2, "precision": "fp32"}
LOCATIONS, PEOPLE, OTHERS = ("class", "loop"), ("module", "name"), ("the", "is", "in", "not", "of")


def conll(path: Path, count: int, *, is_random: bool = False) -> Path:
    """Write sentences in which two words are locations and two are people."""
    chance, lines = random.Random(path.name), []
    for _ in range(count):
        for word in chance.choices(LOCATIONS + PEOPLE + OTHERS, k=6):
            tag = "B-LOC" if word in LOCATIONS else "B-PER" if word in PEOPLE else "O"
            if is_random:
                tag = chance.choice(("B-LOC", "B-PER", "O"))
            lines.append(f"{word} {tag}\n")
        lines.append("\n")
    path.write_text("".join(lines), encoding="utf-8")
    return path


def pairs(path: Path, count: int) -> Path:
    """Write pairs of texts, labeled by whether both contain a location."""
    chance, lines = random.Random(path.name), ["text\tpair\tlabel"]
    for _ in range(count):
        first, second = (chance.choice(("the class", "in the module")) for _ in range(2))
        same = "yes" if first == second == "the class" else "no"
        lines.append(f"{first}\t{second}\t{same}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def train(directory: Path, model: str | Path, out: str, **options: Any) -> dict[str, float]:
    rows = {"train": 60, "dev": 20}
    files = {part: conll(directory / f"{part}.conll", count) for part, count in rows.items()}
    # Exceeds the maximum length of the model.
    with (directory / "dev.conll").open("a", encoding="utf-8") as file:
        file.write("".join("the O\n" for _ in range(60)))
    return bertkit.finetune("tag", model, **files, out=directory / out, **{**SETTINGS, **options})


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, english: list[str]) -> Path:
    tokenizer = train_tokenizer(english[:5], kind="wordpiece", size=300)
    folder = tmp_path_factory.mktemp("base") / "model"
    settings = {"hidden": 32, "layers": 3, "intermediate": 64, "max_positions": 32}
    return tiny_folder(folder, tokenizer, "mlm", **settings)


@pytest.fixture(scope="module")
def tagger(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a tagger in `out`, whose base model was deleted."""
    directory = tmp_path_factory.mktemp("tagger")
    start = shutil.copytree(base, directory / "start")
    train(directory, start, "out", features="mix:-2")
    shutil.rmtree(start)
    return directory


def encoder_of(model: Path) -> WordFeatureEncoder:
    encoder = bertkit.load(model).model.encoder
    assert isinstance(encoder, WordFeatureEncoder)
    return encoder


# ---- The setting


@pytest.mark.parametrize(
    ("text", "method", "layers"),
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
def test_setting_chooses_layers(text: str, method: str, layers: tuple[int, ...]) -> None:
    assert LayerChoice.parse(text, 6) == LayerChoice(method, layers)  # type: ignore[arg-type]


MISSING, UNKNOWN = "requires 7 layers, but the model has 6", "unknown value .* use embeddings"


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (("7", "-7", "concat:-7"), MISSING),
        (("0", "all", "sum:4", "mean:-4", "", "-", "mix:-\u0664"), UNKNOWN),
    ],
)
def test_setting_rejects_missing_layers_and_unknown_values(
    texts: tuple[str, ...], message: str
) -> None:
    for text in texts:
        with pytest.raises(ConfigError, match=f"features: .*{message}"):
            LayerChoice.parse(text, 6)


@given(st.text(max_size=8), st.integers(1, 24))
def test_layers_of_any_setting_are_in_the_model(text: str, num_layers: int) -> None:
    try:
        choice = LayerChoice.parse(text, num_layers)
    except ConfigError:
        return
    assert all(0 <= layer <= num_layers for layer in choice.layers)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("embeddings", lambda s: s[0]),
        ("2", lambda s: s[2]),
        ("sum:-2", lambda s: s[1] + s[2]),
        ("mix:all", lambda s: torch.cat([s[1], s[2]], 1)),
        ("concat:-2", lambda s: torch.cat([s[1], s[2]], 1)),
    ],
)
def test_selected_states_match_their_formulas(
    text: str, expected: Callable[[Tensor], Tensor]
) -> None:
    states, choice = torch.randn(3, 9, 4), LayerChoice.parse(text, 2)
    found = choice.select(states)
    torch.testing.assert_close(found, expected(states))
    assert found.shape[1] == 4 * choice.parts


@pytest.mark.parametrize(
    "other",
    [
        {"frozen_layers": 1},
        {"gradual_unfreezing": True},
        {"layer_decay": 0.9},
        {"random_weights": True},
        {"lora": {"rank": 2}},
        {"features": "concat:-4"},
        {"features": "last"},
        {"lm_weight": 0.5},
    ],
)
def test_invalid_settings_are_rejected_before_work(
    base: Path, tmp_path: Path, other: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match=next(iter(other))):
        train(tmp_path, base, "out", **{"features": "-1", **other})
    assert not (tmp_path / "out").exists()


def test_loaded_models_and_teachers_are_rejected(base: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"train": [], "dev": [], "out": tmp_path / "out", "features": "-1"}
    with pytest.raises(ConfigError, match="features requires a model directory or hub id"):
        bertkit.finetune("tag", bertkit.load(base), **options)


def test_features_of_word_vectors_are_rejected(tmp_path: Path) -> None:
    Vectors(["the"], torch.ones(1, 4).numpy()).save(tmp_path / "vectors.txt")
    with pytest.raises(ConfigError, match=r"features: .*vectors.txt contains only word vectors"):
        train(tmp_path, tmp_path / "vectors.txt", "out", features="-1")


def test_adapters_are_rejected(base: Path, tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    config = {"base_model_name_or_path": str(base), "peft_type": "LORA"}
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="use a model directory with all of its weights"):
        train(tmp_path, adapter, "out", features="-1")


# ---- Hidden states


@pytest.mark.parametrize("features", ["embeddings", "concat:all", "sum:0"])
def test_features_match_token_embeddings(base: Path, features: str) -> None:
    loaded = bertkit.load(base, heads=())
    texts = ["the class is in the loop", "name"]
    batch = Batch.of([loaded.tokenizer.encode(text) for text in reversed(texts)])
    choice = LayerChoice.parse(features, 3)
    found = TransformerFeatures(loaded).compute(batch, choice, torch.device("cpu"))
    assert found.dtype == torch.float16
    tokens = bertkit.pipeline("token-embeddings", loaded)(texts, layer=[0, 1, 2, 3])
    states = [torch.from_numpy(text_tokens.embeddings) for text_tokens in reversed(tokens)]
    expected = choice.select(torch.cat(states, 1))
    torch.testing.assert_close(found.float(), expected, atol=4e-3, rtol=4e-3)


# ---- Training


def test_evaluation_matches_the_scores_of_training(tagger: Path) -> None:
    found = json.loads((tagger / "out" / "scores.json").read_text())["dev"]
    assert found["f1"] > 0.9
    assert evaluate(str(tagger / "out"), tagger / "dev.conll")["f1"] == found["f1"]


def test_predictions_match_the_scores_of_training(tagger: Path) -> None:
    sentences = (tagger / "dev.conll").read_text().strip().split("\n\n")
    rows = [[line.split() for line in sentence.splitlines()] for sentence in sentences]
    answers = bertkit.pipeline("tag", tagger / "out")([" ".join(w for w, _ in r) for r in rows])
    right = sum(
        tag == expected
        for answer, row in zip(answers, rows, strict=True)
        for tag, (_, expected) in zip(answer.tags, row, strict=True)
    )
    accuracy = json.loads((tagger / "out" / "scores.json").read_text())["dev"]["accuracy"]
    assert right / sum(map(len, rows)) == pytest.approx(accuracy)


def test_weights_of_layers_are_trained(tagger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    info(str(tagger / "out"))
    mixture = dict(json.loads(capsys.readouterr().out)["mixture"])
    assert list(mixture) == ["2", "3", "scale"]
    assert mixture["scale"] != 1.0
    assert mixture["2"] != mixture["3"]
    assert mixture["2"] + mixture["3"] == pytest.approx(1)


def test_model_contains_its_base(base: Path, tagger: Path) -> None:
    out = tagger / "out"
    for file in ("model.safetensors", "tokenizer.json"):
        assert (out / "base" / file).read_bytes() == (base / file).read_bytes()
    assert {path.name for path in out.glob("*.json")} == {"config.json", "run.json", "scores.json"}


def test_resumed_run_ends_with_the_same_weights(base: Path, tagger: Path, tmp_path: Path) -> None:
    class Stop(Exception): ...

    def stop(epoch: int, scores: Mapping[str, float]) -> None:
        if epoch == 3:
            raise Stop

    options = {"features": "mix:-2", "save_minutes": 0.0}
    with pytest.raises(Stop):
        train(tmp_path, base, "out", on_epoch=stop, **options)
    record = tmp_path / "out" / "run.json"
    model = json.loads((tagger / "out" / "run.json").read_text())["model"]
    record.write_text(json.dumps({**json.loads(record.read_text()), "model": model}))
    shutil.copytree(base, model)
    train(tmp_path, model, "out", resume=True, **options)
    shutil.rmtree(model)
    expected, found = (path / "out" / "model.safetensors" for path in (tagger, tmp_path))
    assert found.read_bytes() == expected.read_bytes()


def test_random_tags_are_not_learned(base: Path, tmp_path: Path) -> None:
    rows = conll(tmp_path / "random.conll", 40, is_random=True)
    dev = conll(tmp_path / "dev.conll", 40)
    options = {**SETTINGS, "epochs": 2, "features": "-1"}
    found = bertkit.finetune("tag", base, train=rows, dev=dev, out=tmp_path / "out", **options)
    assert found["f1"] < 0.6


@pytest.mark.parametrize("features", ["concat:all", "sum:all", "embeddings"])
def test_other_layers_are_trained(base: Path, tmp_path: Path, features: str) -> None:
    found = train(tmp_path, base, "out", features=features)
    assert found["f1"] > 0.9
    assert evaluate(str(tmp_path / "out"), tmp_path / "dev.conll")["f1"] == found["f1"]
    assert encoder_of(tmp_path / "out").mixture() == {}


def test_pairs_are_classified(base: Path, tmp_path: Path) -> None:
    files = {"train": pairs(tmp_path / "a.tsv", 60), "dev": pairs(tmp_path / "b.tsv", 20)}
    out = tmp_path / "out"
    settings = {**SETTINGS, "features": "sum:-2", "pair_column": "pair"}
    found = bertkit.finetune("classify", base, **files, out=out, **settings)
    assert found["accuracy"] > 0.9
    assert evaluate(str(out), files["dev"])["accuracy"] == found["accuracy"]


def test_layers_of_an_elmo_are_chosen(tmp_path: Path) -> None:
    elmo = tiny_elmo(tmp_path / "elmo")
    train(tmp_path, elmo, "out", features="concat:0", epochs=1)
    encoder = encoder_of(tmp_path / "out")
    assert encoder.choice == LayerChoice("concat", (0, 1, 2))
    assert encoder.lstm.input_size == 3 * 12


def test_directory_without_weights_sets_the_shape(base: Path, tmp_path: Path) -> None:
    start = tmp_path / "start"
    shutil.copytree(base, start / "base")
    shape = {"model_type": "word-features", "hidden_size": 32, "num_layers": 2}
    (start / "config.json").write_text(json.dumps({**shape, "features": "-2"}))
    train(tmp_path, start, "out", epochs=1)
    encoder = encoder_of(tmp_path / "out")
    assert (encoder.lstm.hidden_size, encoder.lstm.num_layers) == (16, 2)
    assert encoder.choice.layers == (2,)


def test_trained_model_is_the_start_of_another(tagger: Path, tmp_path: Path) -> None:
    train(tmp_path, tagger / "out", "out", epochs=1, learning_rate=1e-9)
    before, after = (encoder_of(path / "out") for path in (tagger, tmp_path))
    torch.testing.assert_close(after.lstm.weight_ih_l0, before.lstm.weight_ih_l0)
    loaded = bertkit.load(tagger / "out")
    files = {"train": pairs(tmp_path / "a.tsv", 20), "dev": pairs(tmp_path / "b.tsv", 20)}
    options = {**SETTINGS, "epochs": 1, "pair_column": "pair"}
    found = bertkit.finetune("classify", loaded, **files, out=tmp_path / "other", **options)
    assert evaluate(str(tmp_path / "other"), files["dev"])["accuracy"] == found["accuracy"]


def test_experiment_runs_the_layers_of_the_model(base: Path, tmp_path: Path) -> None:
    rows, out = conll(tmp_path / "rows.conll", 16), tmp_path / "out"
    settings = {"model": base, "train": rows, "dev": rows, "epochs": 1}
    changes = (f"settings.{name}={value}" for name, value in settings.items())
    found = bertkit.experiment("layers", *changes, out=out)
    finished = {name for name, result in found.items() if "failed" not in result}
    layers = {"embeddings", "second-to-last layer", "last layer", "weighted sum of all layers"}
    assert finished == layers
    errors = found["sum of the last four"]["failed"].values()
    assert "'sum:-4' requires 4 layers" in next(iter(errors))


def test_weights_of_rejected_settings_are_deleted(base: Path, tmp_path: Path) -> None:
    rows, out = conll(tmp_path / "rows.conll", 16), tmp_path / "out"
    settings = {"task": "tag", "model": str(base), "train": rows, "dev": rows, "epochs": 1}
    grid = {"features": ["-1", "embeddings"]}
    best = bertkit.experiment({"settings": settings, "grid": grid}, out=out)[""]["best"]
    found = {path.relative_to(out).parts[0] for path in out.rglob("*.safetensors")}
    assert found == {best}
    assert (base / "model.safetensors").exists()


# ---- Damaged directories


@pytest.mark.parametrize("change", [{"features": "mix:-9"}, {"features": 3}, {"features": "x"}])
def test_other_features_in_config_are_rejected(
    tagger: Path, tmp_path: Path, change: dict[str, Any]
) -> None:
    damaged = shutil.copytree(tagger / "out", tmp_path / "damaged")
    edit_config(damaged, **change)
    with pytest.raises(BertkitError, match="features"):
        bertkit.load(damaged)


def test_base_that_contains_itself_is_rejected(tagger: Path, tmp_path: Path) -> None:
    damaged = shutil.copytree(tagger / "out", tmp_path / "damaged")
    shutil.rmtree(damaged / "base")
    os.symlink(".", damaged / "base")
    with pytest.raises(CheckpointError, match="contains no Transformer"):
        bertkit.load(damaged)


def test_missing_base_is_rejected(tagger: Path, tmp_path: Path) -> None:
    damaged = shutil.copytree(tagger / "out", tmp_path / "damaged")
    shutil.rmtree(damaged / "base")
    with pytest.raises(CheckpointError, match="contains no Transformer"):
        bertkit.pipeline("tag", damaged)
