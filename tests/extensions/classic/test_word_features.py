"""Fine-tuning on frozen word features: ELMo states and word vectors."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.factories import edit_config, tiny_elmo

import bertkit
from bertkit.batch import Batch, Packed
from bertkit.errors import CheckpointError, ConfigError, DataError
from bertkit.extensions.classic.families.lstm import WORD_FEATURES
from bertkit.extensions.classic.word_features import (
    LayerMix,
    TextClassifier,
    WordFeatureEncoder,
    WordFeatures,
    WordTokenizer,
)
from bertkit.extensions.classic.word_vectors import Vectors
from bertkit.recipes.evaluate import evaluate
from bertkit.recipes.info import info
from bertkit.tasks.task import Feature

pytest.importorskip("h5py", reason="pip install 'bertkit[classic]'")

SETTINGS = {"epochs": 8, "batch_size": 8, "learning_rate": 2e-2, "precision": "fp32"}
SHAPE = {"hidden_size": 32, "dropout": 0.0}
FOODS = ("bread", "cheese", "soup")


def conll(path: Path, count: int) -> Path:
    """Write sentences whose entities are foods."""
    random = np.random.default_rng(count)
    lines = []
    for _ in range(count):
        for word in random.choice([*FOODS, "we", "eat", "the"], random.integers(2, 6)):
            lines.append(f"{word} {'B-FOOD' if word in FOODS else 'O'}")
        lines.append("")
    path.write_text("\n".join(lines))
    return path


def reviews(path: Path, count: int) -> Path:
    """Write texts whose label depends on one word."""
    random = np.random.default_rng(count)
    labels = random.integers(0, 2, count)
    rows = [
        f"a {('bad', 'fine')[label]} film {n}\t{('no', 'yes')[label]}"
        for n, label in enumerate(labels)
    ]
    path.write_text("\n".join(["text\tlabel", *rows]) + "\n")
    return path


def shaped(folder: Path, **shape: Any) -> Path:
    """Set the shape of the BiLSTM that is trained on a directory's features."""
    settings = {"model_type": "word-features", **SHAPE, **shape}
    (folder / "config.json").write_text(json.dumps(settings))
    return folder


def food_vectors(path: Path, seed: int = 0) -> Path:
    """Write vectors of all words except "the"."""
    table = np.random.default_rng(seed).standard_normal((5, 7)).astype(np.float32)
    Vectors([*FOODS, "we", "eat"], table).save(path)
    return path


@pytest.fixture(scope="module", params=[False, True], ids=["softmax", "crf"])
def tagger(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tagger")
    shaped(tiny_elmo(directory / "elmo"))
    conll(directory / "test.conll", 21)
    train(directory, directory / "elmo", "out", crf=request.param, test=directory / "test.conll")
    return directory


def train(directory: Path, model: Path, out: str, **options: Any) -> dict[str, float]:
    rows = {"train": 60, "dev": 20}
    files = {part: conll(directory / f"{part}.conll", count) for part, count in rows.items()}
    return bertkit.finetune("tag", model, **files, out=directory / out, **{**SETTINGS, **options})


def test_evaluation_matches_the_scores_of_training(tagger: Path) -> None:
    found = json.loads((tagger / "out" / "scores.json").read_text())["dev"]
    assert found["f1"] > 0.9
    assert evaluate(str(tagger / "out"), tagger / "dev.conll")["f1"] == found["f1"]
    test = json.loads((tagger / "out" / "test.json").read_text())
    assert evaluate(str(tagger / "out"), tagger / "test.conll")["f1"] == test["scores"]["f1"]


def test_prediction_is_independent_of_the_batch(tagger: Path) -> None:
    answer = bertkit.pipeline("tag", tagger / "out")
    single = answer("we eat the bread")
    assert [(e.text, e.type, e.start, e.end) for e in single.entities] == [
        ("bread", "FOOD", 11, 16)
    ]
    in_batch = answer(["soup", "we eat the bread"])[1]
    assert in_batch.tags == single.tags
    assert in_batch.entities[0].score == pytest.approx(single.entities[0].score, abs=1e-3)


def test_long_text_is_tagged_in_windows(tagger: Path) -> None:
    answer = bertkit.pipeline("tag", tagger / "out")("we eat soup " * 200)
    assert len(answer.words) == 600
    assert len(answer.entities) > 100


def test_resumed_run_ends_with_the_same_weights(tagger: Path, tmp_path: Path) -> None:
    class Stop(Exception): ...

    def stop(epoch: int, scores: Mapping[str, float]) -> None:
        if epoch == 3:
            raise Stop

    options = {"train": tagger / "train.conll", "dev": tagger / "dev.conll", **SETTINGS}
    options |= {"crf": "crf" in bertkit.load(tagger / "out").model.heads, "save_minutes": 0.0}
    with pytest.raises(Stop):
        bertkit.finetune("tag", tagger / "elmo", out=tmp_path / "out", on_epoch=stop, **options)
    bertkit.finetune("tag", tagger / "elmo", out=tmp_path / "out", resume=True, **options)
    expected, found = (path / "out" / "model.safetensors" for path in (tagger, tmp_path))
    assert found.read_bytes() == expected.read_bytes()


def test_info_shows_task_and_layer_weights(
    tagger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    info(str(tagger / "out"))
    found = json.loads(capsys.readouterr().out)
    assert (found["task"], found["shape"]["hidden"]) == ("tag", 32)
    mixture = dict(found["mixture"])
    assert mixture.pop("scale") != 1.0
    assert sum(mixture.values()) == pytest.approx(1)
    assert len(set(mixture.values())) == 3


def test_directory_contains_the_same_elmo(tagger: Path) -> None:
    for name, start in (("options.json", "options.json"), ("weights.hdf5", "lm_weights.hdf5")):
        assert (tagger / "out" / name).read_bytes() == (tagger / "elmo" / start).read_bytes()


def test_finetuned_model_is_the_start_of_another(tagger: Path, tmp_path: Path) -> None:
    files = {"train": reviews(tmp_path / "a.tsv", 60), "dev": reviews(tmp_path / "b.tsv", 20)}
    out = tmp_path / "out"
    settings = {**SETTINGS, "epochs": 1, "learning_rate": 1e-9}
    bertkit.finetune("classify", tagger / "out", **files, out=out, **settings)
    before, after = (bertkit.load(path).model.encoder for path in (tagger / "out", out))
    for name, weight in before.state_dict().items():
        torch.testing.assert_close(after.state_dict()[name], weight, atol=1e-6, rtol=0)


def test_loaded_model_is_trained_on_other_labels(tagger: Path, tmp_path: Path) -> None:
    files = {"train": reviews(tmp_path / "a.tsv", 60), "dev": reviews(tmp_path / "b.tsv", 20)}
    loaded, out = bertkit.load(tagger / "out"), tmp_path / "out"
    found = bertkit.finetune("classify", loaded, **files, out=out, **{**SETTINGS, "epochs": 1})
    assert evaluate(str(out), files["dev"])["accuracy"] == found["accuracy"]


def test_dev_set_is_computed_twice_for_equal_scores(
    tagger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One pass computes the scores; another computes the loss that breaks ties."""
    counts: list[int] = []
    compute = WordFeatureEncoder.precompute

    def count_features(self: WordFeatureEncoder, features: Any) -> Any:
        counts.append(len(features))
        return compute(self, features)

    monkeypatch.setattr(WordFeatureEncoder, "precompute", count_features)
    train(tmp_path, tagger / "out", "out", epochs=3, learning_rate=1e-9)
    assert counts == [60, 20, 20]


def test_missing_weights_of_a_trained_model_are_rejected(tagger: Path, tmp_path: Path) -> None:
    damaged = shutil.copytree(tagger / "out", tmp_path / "damaged")
    (damaged / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        train(tmp_path, damaged, "out")
    assert not (tmp_path / "out").exists()


def test_card_contains_no_other_library(tagger: Path) -> None:
    card = (tagger / "out" / "README.md").read_text()
    assert "library_name: bertkit" in card
    assert "No other library loads this directory." in card
    assert "transformers" not in card


def test_distillation_of_word_features_is_rejected(tagger: Path, tmp_path: Path) -> None:
    files = {"train": tagger / "train.conll", "dev": tagger / "dev.conll"}
    for options in ({"layers": 1}, {"student": tagger / "out"}):
        with pytest.raises(ConfigError, match="WordFeatureEncoder is not a Transformer"):
            bertkit.distill(tagger / "out", **files, out=tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_damaged_directory_is_rejected(tagger: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(tagger / "out", damaged)
    edit_config(damaged, hidden_size=34)
    with pytest.raises(CheckpointError, match=r"model\.safetensors: .* expected"):
        bertkit.load(damaged, heads=["tag"], labels=["O", "B-FOOD", "I-FOOD"])
    (damaged / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="has no model_type"):
        bertkit.pipeline("tag", damaged)


def test_classifier_is_trained_on_an_elmo(tmp_path: Path) -> None:
    files = {"train": reviews(tmp_path / "a.tsv", 60), "dev": reviews(tmp_path / "b.tsv", 20)}
    elmo, out = shaped(tiny_elmo(tmp_path / "elmo")), tmp_path / "out"
    found = bertkit.finetune("classify", elmo, **files, out=out, **SETTINGS)
    assert found["accuracy"] > 0.9
    assert evaluate(str(out), files["dev"])["accuracy"] == found["accuracy"]
    answer = bertkit.pipeline("classify", bertkit.load(out))("a fine film")
    assert (answer.label, set(answer.scores)) == ("yes", {"no", "yes"})
    with pytest.raises(CheckpointError, match="fine-tuned for classify, not for tag"):
        bertkit.pipeline("tag", out)


def test_tagger_is_trained_on_word_vectors(tmp_path: Path) -> None:
    file, out = food_vectors(tmp_path / "own.vec.gz"), tmp_path / "out"
    found = train(tmp_path, file, "out")
    file.unlink()
    assert found["f1"] > 0.9
    assert (out / "vectors.txt.gz").exists()
    assert evaluate(str(out), tmp_path / "dev.conll")["f1"] == found["f1"]
    assert bertkit.pipeline("tag", out)("the bread").tags == ["O", "B-FOOD"]


def test_elmo_directory_with_word_vectors_uses_both(tmp_path: Path) -> None:
    elmo = shaped(tiny_elmo(tmp_path / "elmo"))
    food_vectors(elmo / "vectors.txt")
    train(tmp_path, elmo, "out")
    encoder = bertkit.load(tmp_path / "out").model.encoder
    assert isinstance(encoder, WordFeatureEncoder)
    assert encoder.lstm.input_size == 12 + 7
    (tmp_path / "out" / "vectors.txt").unlink()
    with pytest.raises(CheckpointError, match=r"encoder\.lstm\.weight_ih_l0"):
        bertkit.pipeline("tag", tmp_path / "out")


def test_other_heads_are_rejected(tmp_path: Path) -> None:
    rows, elmo = reviews(tmp_path / "a.tsv", 8), tiny_elmo(tmp_path / "elmo")
    with pytest.raises(ConfigError, match=r"vector is not supported .* use classify or tag"):
        bertkit.finetune(
            "classify", elmo, train=rows, dev=rows, out=tmp_path / "out", contrastive=True
        )
    with pytest.raises(CheckpointError, match="expected a Transformer, got an ELMo"):
        bertkit.load(elmo)


def test_other_tasks_are_rejected(tmp_path: Path) -> None:
    vectors, rows = food_vectors(tmp_path / "vectors.txt"), tmp_path / "pairs.tsv"
    rows.write_text("text\tother\nbread\tcheese\nsoup\twe eat\n")
    with pytest.raises(ConfigError, match="similarity is not supported with frozen features; use"):
        bertkit.finetune("similarity", vectors, train=rows, dev=rows, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


# ---- Parts


def encoder_of(features: WordFeatures, **settings: Any) -> WordFeatureEncoder:
    shape = {"vocab": 3, "layers": 1, "hidden": 8, "dropout": 0.3, **settings}
    return WordFeatureEncoder(WORD_FEATURES.config(shape), features).eval()


def test_texts_of_a_pair_are_read_separately(tmp_path: Path) -> None:
    features = WordFeatures.load(tiny_elmo(tmp_path / "elmo"))
    encoder, tokenizer = encoder_of(features), WordTokenizer(features)
    texts, pairs = ["the loop", "a class"], ["a name", "another class, or two"]
    encodings = tokenizer.encode_batch(texts, pairs)
    encoder.precompute([Feature(encoding, 0) for encoding in encodings])
    together = encoder(Batch.of(encodings)).split(
        [size for n in range(2) for size in (4, len(encodings[n]) - 4)]
    )
    for found, text in zip(together, [texts[0], pairs[0], texts[1], pairs[1]], strict=True):
        alone = encoder(Batch.of([tokenizer.encode(text)]))
        torch.testing.assert_close(found, alone, atol=1e-3, rtol=1e-3)


def test_precomputed_features_match_features_of_ids(tmp_path: Path) -> None:
    features = WordFeatures.load(tiny_elmo(tmp_path / "elmo"))
    encoder, encodings = encoder_of(features), WordTokenizer(features).encode_batch(["a b", "c"])
    read = [Feature(encoding, n) for n, encoding in enumerate(encodings)]
    precomputed = encoder.precompute(read)
    assert precomputed[0].encoding.ids.dtype == np.float16
    for before, after in zip(read, precomputed, strict=True):
        assert replace(after, encoding=before.encoding) == before
        expected, found = (encoder(Batch.of([feature.encoding])) for feature in (before, after))
        torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)


def test_word_tokenizer_returns_characters_and_rows(tmp_path: Path) -> None:
    elmo = tiny_elmo(tmp_path / "elmo")
    food_vectors(elmo / "vectors.txt")
    tokenizer = WordTokenizer(WordFeatures.load(elmo))
    pair = tokenizer.encode("The bread, <S>", "Soup")
    expected = bertkit.pipeline("words", elmo).ids(["The", "bread", ",", "<", "S", ">"])
    np.testing.assert_array_equal(pair.ids[:8, :-1], expected)
    assert pair.ids[:, -1].tolist() == [0, 0, 1, 0, 0, 0, 0, 0, 0, 3, 0]
    assert pair.types.tolist() == [0] * 8 + [1] * 3
    assert pair.words[:3] == [None, 0, 1]
    assert pair.offsets[2].tolist() == [4, 9]
    assert len(tokenizer.encode("", "")) == 4
    few = tokenizer.encode("the bread we eat", max_length=4, truncate="longest")
    assert few.ids[:, -1].tolist() == [0, 0, 1, 0]


def test_layers_are_standardized() -> None:
    random = np.random.default_rng(0)
    texts = [5 + 3 * random.standard_normal((n, 12)).astype(np.float16) for n in (3, 9)]
    embedding = LayerMix(3, 4)
    with torch.no_grad():
        embedding.fit(texts)
        found = embedding(torch.from_numpy(np.concatenate(texts)))
    all_rows = np.concatenate(texts).astype(np.float32)
    expected = ((all_rows - all_rows.mean(0)) / all_rows.std(0)).reshape(12, 3, 4).mean(1)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-3)


def test_classifier_compares_the_texts_of_a_pair() -> None:
    config = WORD_FEATURES.config({"vocab": 3, "hidden": 4, "layers": 1, "dropout": 0.0})
    head, states = TextClassifier(config, 3), torch.randn(7, 4)
    types = torch.tensor([0, 0, 0, 0, 0, 0, 1])
    found = head(states, Batch(torch.zeros(7), types, Packed.of([3, 4])))
    u, v, single = states[3:6].mean(0), states[6], states[:3].mean(0)
    torch.testing.assert_close(found[1], head.out(torch.cat([u, v, (u - v).abs(), u * v])))
    zero = torch.zeros(4)
    torch.testing.assert_close(found[0], head.out(torch.cat([single, zero, single.abs(), zero])))


def test_states_are_standardized_before_they_are_rounded(tmp_path: Path) -> None:
    features = WordFeatures.load(tiny_elmo(tmp_path / "elmo"))
    encoder = encoder_of(features)
    assert encoder.embedding is not None
    ids = 100 + 0.25 * torch.randn(20, (features.num_layers + 1) * features.hidden)
    with torch.no_grad():
        encoder.embedding.fit([ids.half().numpy()])
        encoder.embedding.mean.fill_(100.0)
    found = []
    encoder.lstm.register_forward_pre_hook(lambda _, inputs: found.append(inputs[0].data.float()))
    batch = Batch(ids.half(), torch.zeros(20, dtype=torch.int64), Packed.of([20]))
    encoder(batch)
    encoder.bfloat16()(batch)
    torch.testing.assert_close(found[1], found[0], atol=0.02, rtol=0.02)


def test_first_file_of_word_vectors_is_used(tmp_path: Path) -> None:
    food_vectors(tmp_path / "vectors.txt")
    (tmp_path / "vectors.txt.gz").write_bytes(b"damaged")
    assert [*WordFeatures.load(tmp_path).files] == ["vectors.txt"]


def test_fraction_of_words_with_a_vector_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vectors = food_vectors(tmp_path / "vectors.txt")
    rows = [{"text": "eat the bread the day", "label": label} for label in "ab" * 4]
    data: dict[str, Any] = {"train": rows, "dev": rows, "epochs": 1}
    bertkit.finetune("classify", vectors, **data, out=tmp_path / "out")
    assert "word vectors: 40.0% of the words have a vector" in capsys.readouterr().err
    rows[:] = [{"text": "et alia", "label": label} for label in "ab" * 4]
    with pytest.raises(DataError, match="no word in the examples has a word vector"):
        bertkit.finetune("classify", vectors, **data, out=tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_fingerprint_depends_on_the_features(tmp_path: Path) -> None:
    tokenizers = []
    for seed in range(2):
        file = food_vectors(tmp_path / f"{seed}.txt", seed)
        tokenizers += [WordTokenizer(WordFeatures.load(file)) for _ in range(2)]
    first, again, other, _ = (tokenizer.fingerprint for tokenizer in tokenizers)
    assert first == again != other
