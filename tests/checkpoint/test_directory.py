"""Published model directories: old weight names, headless encoders, shards, sentence-
transformers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.factories import edit_config, tiny_folder, tiny_model
from torch import Tensor

import bertkit
from bertkit.batch import Batch
from bertkit.checkpoint.directory import Loaded, load, save
from bertkit.checkpoint.weights import LoadReport
from bertkit.errors import CheckpointError
from bertkit.families import BERT, DISTILBERT, Family
from bertkit.models.model import build
from bertkit.nn.pooling import Pooling
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.vocabulary_training import train

FILE = "model.safetensors"
EMBEDDING = "bert.embeddings.word_embeddings.weight"


@pytest.fixture(scope="module")
def tokenizer(english: list[str]) -> Tokenizer:
    return train(english[:5], kind="wordpiece", size=200)


@pytest.fixture
def folder(tokenizer: Tokenizer, tmp_path: Path) -> Path:
    return saved(tokenizer, tmp_path / "model", ("mlm", "nsp"))


def saved(tokenizer: Tokenizer, directory: Path, heads: tuple[str, ...]) -> Path:
    labels = ("bad", "fair", "good") if "classify" in heads else ()
    return tiny_folder(directory, tokenizer, *heads, labels=labels, layers=2, length=64)


def weights(folder: Path) -> dict[str, Tensor]:
    return load(folder).model.state_dict()


def same(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def rewrite(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    save_file(dict(tensors), folder / FILE)


@pytest.mark.parametrize(
    "heads", [(), ("pooler",), ("mlm",), ("nsp",), ("mlm", "nsp"), ("mlm", "sop"), ("classify",)]
)
def test_load_save_load_is_bit_equal(
    heads: tuple[str, ...], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    first = load(saved(tokenizer, tmp_path / "a", heads))
    assert tuple(first.model.heads) == heads
    save(tmp_path / "b", first.model, first.tokenizer, first.family, labels=first.labels)
    second = load(tmp_path / "b")
    assert same(first.model.state_dict(), second.model.state_dict())
    assert first.labels == second.labels
    assert first.model.config == second.model.config
    assert first.tokenizer.fingerprint == second.tokenizer.fingerprint
    for name in (FILE, "config.json", "tokenizer.json", "vocab.txt", "tokenizer_config.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_load_reads_shards_with_index(folder: Path) -> None:
    before = weights(folder)
    tensors = load_file(folder / FILE)
    names = sorted(tensors)
    weight_map = {n: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, n in enumerate(names)}
    for file in set(weight_map.values()):
        save_file({n: tensors[n] for n in names if weight_map[n] == file}, folder / file)
    (folder / FILE).unlink()
    index = folder / f"{FILE}.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}), encoding="utf-8")
    assert same(weights(folder), before)
    (folder / weight_map[names[0]]).unlink()
    with pytest.raises(CheckpointError, match=r"-of-00002.safetensors: missing"):
        load(folder)


def test_load_accepts_old_names_of_norms(folder: Path) -> None:
    before = weights(folder)
    tensors = load_file(folder / FILE)
    old = {
        k.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): v
        for k, v in tensors.items()
    }
    assert old.keys() != tensors.keys()
    rewrite(folder, old)
    assert same(weights(folder), before)


def test_load_accepts_encoder_names_without_prefix(tokenizer: Tokenizer, tmp_path: Path) -> None:
    folder = saved(tokenizer, tmp_path / "model", ("pooler",))
    before = weights(folder)
    tensors = load_file(folder / FILE)
    rewrite(folder, {k.removeprefix("bert."): v for k, v in tensors.items()})
    edit_config(folder, bertkit=None)
    assert same(weights(folder), before)
    rewrite(folder, {k.removeprefix("bert."): v for k, v in tensors.items() if "pooler" not in k})
    assert tuple(load(folder).model.heads) == ()


def test_load_checks_copies_of_tied_weights(folder: Path) -> None:
    before = weights(folder)
    tensors = load_file(folder / FILE)
    copies = {
        "cls.predictions.decoder.weight": tensors[EMBEDDING].clone(),
        "cls.predictions.decoder.bias": tensors["cls.predictions.bias"].clone(),
        "bert.embeddings.position_ids": torch.arange(64)[None],
    }
    rewrite(folder, tensors | copies)
    assert same(weights(folder), before)
    copies["cls.predictions.decoder.weight"][3, 3] += 1e-3
    rewrite(folder, tensors | copies)
    with pytest.raises(CheckpointError, match=r"decoder\.weight differs from .*ties these weights"):
        load(folder)


def test_load_uses_copy_of_missing_tied_weight(folder: Path) -> None:
    before = weights(folder)
    tensors = load_file(folder / FILE)
    tensors["cls.predictions.decoder.bias"] = tensors.pop("cls.predictions.bias")
    rewrite(folder, tensors)
    assert same(weights(folder), before)


def test_load_converts_half_precision_to_fp32(folder: Path) -> None:
    rewrite(folder, {k: v.bfloat16() for k, v in load_file(folder / FILE).items()})
    assert all(w.dtype == torch.float32 for w in weights(folder).values())


def test_report_lists_unused_and_new_heads(folder: Path) -> None:
    loaded_model = load(folder, heads=("classify",), labels=("a", "b", "c"))
    assert loaded_model.labels == ("a", "b", "c")
    assert loaded_model.model.heads["classify"].out.out_features == 3
    assert set(loaded_model.report.fresh) == {
        "heads.classify.out.weight",
        "heads.classify.out.bias",
    }
    assert "cls.predictions.bias" in loaded_model.report.unused
    with pytest.raises(CheckpointError, match=r"unknown head 'clasify'; did you mean"):
        load(folder, heads=("clasify",))


def test_new_labels_initialize_a_new_output_layer(tokenizer: Tokenizer, tmp_path: Path) -> None:
    folder = saved(tokenizer, tmp_path / "model", ("classify",))
    assert load(folder, heads=("classify",), labels=("bad", "fair", "good")).report.fresh == ()
    other = load(folder, heads=("classify",), labels=("x", "y"))
    assert other.model.heads["classify"].out.out_features == 2
    assert set(other.report.fresh) == {"heads.classify.out.weight", "heads.classify.out.bias"}


# ---- sentence-transformers


def sentence_folder(
    source: Path, directory: Path, *, inner: str, pooling: Mapping[str, Any], normalize: bool
) -> Path:
    """Write a sentence-transformers directory: modules, encoder, and pooling."""
    shutil.copytree(source, directory / inner)
    parts = [("", inner, "Transformer"), ("1", "1_Pooling", "Pooling")]
    if normalize:
        parts.append(("2", "2_Normalize", "Normalize"))
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (_, path, kind) in enumerate(parts)
    ]
    (directory / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    (directory / "1_Pooling").mkdir()
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling), encoding="utf-8")
    settings = {"max_seq_length": 24, "do_lower_case": False}
    (directory / inner / "sentence_bert_config.json").write_text(json.dumps(settings), "utf-8")
    return directory


MEAN = {"word_embedding_dimension": 16, "pooling_mode_mean_tokens": True}
CLS = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}


@pytest.mark.parametrize(
    ("inner", "pooling", "normalize", "found"),
    [
        ("", MEAN, True, Pooling("mean", True)),
        ("0_Transformer", CLS, False, Pooling("cls", False)),
        ("0_Transformer", {"pooling_mode": "mean"}, True, Pooling("mean", True)),
    ],
)
def test_sentence_transformers_directory_loads_and_saves(
    inner: str,
    pooling: Mapping[str, Any],
    normalize: bool,
    found: Pooling,
    tokenizer: Tokenizer,
    tmp_path: Path,
) -> None:
    source = saved(tokenizer, tmp_path / "source", ("pooler",))
    directory = sentence_folder(
        source, tmp_path / "place", inner=inner, pooling=pooling, normalize=normalize
    )
    loaded_model = load(directory)
    assert loaded_model.pooling == found
    assert loaded_model.length == 24
    vectors = bertkit.pipeline("embed", directory)(["a day", "a longer day of rain"])
    plain = bertkit.pipeline("embed", source, pooling=found.mode)(["a day", "a longer day of rain"])
    norms = torch.from_numpy(plain).norm(dim=1, keepdim=True) if normalize else torch.ones(2, 1)
    torch.testing.assert_close(torch.from_numpy(vectors), torch.from_numpy(plain) / norms)
    loaded_model.save(tmp_path / "again")
    again = load(tmp_path / "again")
    assert (again.pooling, again.length) == (found, 24)
    same_vectors = bertkit.pipeline("embed", again)(["a day", "a longer day of rain"])
    torch.testing.assert_close(torch.from_numpy(same_vectors), torch.from_numpy(vectors))


def test_save_after_load_is_byte_equal(tokenizer: Tokenizer, tmp_path: Path) -> None:
    labels, task = ("no", "yes"), {"bertkit": {"task": {"name": "classify"}}}
    model = tiny_model(tokenizer.vocab_size, "classify", labels=labels)
    save(tmp_path / "a", model, tokenizer, BERT, labels=labels, settings=task, length=20)
    load(tmp_path / "a").save(tmp_path / "b")
    for name in (FILE, "config.json", "tokenizer.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_load_rejects_unsupported_pooling(tokenizer: Tokenizer, tmp_path: Path) -> None:
    source = saved(tokenizer, tmp_path / "source", ("pooler",))
    pooling = {"pooling_mode_weightedmean_tokens": True}
    directory = sentence_folder(source, tmp_path / "p", inner="", pooling=pooling, normalize=False)
    with pytest.raises(CheckpointError, match="pooling_mode_weightedmean_tokens"):
        load(directory)


@pytest.mark.parametrize(("family", "types"), [(BERT, 1), (BERT, 2), (DISTILBERT, 0)])
def test_pair_states_match_transformers(
    family: Family, types: int, english: list[str], tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers", reason="pip install 'bertkit[dev]'")
    tokenizer = train(english[:2], kind="wordpiece", size=150)
    bertkit_model = tiny_model(tokenizer, family=family, token_types=types).eval()
    save(tmp_path, bertkit_model, tokenizer, family)
    encoded = transformers.AutoTokenizer.from_pretrained(tmp_path)("a b", "c", return_tensors="pt")
    assert ("token_type_ids" in encoded) == (types > 1)
    with torch.no_grad():
        hf_output = transformers.AutoModel.from_pretrained(tmp_path).eval()(**encoded)
        batch = Batch.of([tokenizer.encode("a b", "c")])
        assert batch.types.max() == 1
        bertkit_states = bertkit_model.encoder(batch)
    torch.testing.assert_close(bertkit_states, hf_output.last_hidden_state[0], atol=1e-5, rtol=0)


def test_fingerprint_changes_with_settings_that_change_states(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    shape = {"vocab": tokenizer.vocab_size, "hidden": 16, "layers": 2, "heads": 2}
    shape |= {"intermediate": 24, "max_positions": 32}

    def fingerprint(**settings: Any) -> str:
        torch.manual_seed(0)
        model = build(BERT.config({**shape, **settings}), ())
        return Loaded(model, tokenizer, BERT, LoadReport(), tmp_path).fingerprint()

    same = fingerprint()
    assert fingerprint(dropout=0.5, head={"tag_dropout": 0.3}) == same
    for changed in ({"norm": {"eps": 1e-3}}, {"norm": {"place": "pre"}}, {"heads": 1}):
        assert fingerprint(**changed) != same


def test_fingerprint_is_stable_across_versions(minilm: Path) -> None:
    """Stores and int8 calibrations are recognized by their fingerprint in later versions."""
    assert load(minilm).fingerprint().startswith("7af61be5bbe7215a9c55477b3e04667b")


def test_load_does_not_import_torch_compiler(bert: Path) -> None:
    """Importing the compiler takes as long as importing torch."""
    code = (
        "import sys; from bertkit.checkpoint.directory import load; load(sys.argv[1]); "
        "sys.exit('torch._dynamo' in sys.modules or 'sympy' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(bert)], check=True)


def test_repr_describes_the_model(tokenizer: Tokenizer, tmp_path: Path) -> None:
    loaded = load(saved(tokenizer, tmp_path / "model", ("classify",)))
    count = sum(weight.numel() for weight in loaded.model.parameters())
    assert repr(loaded) == (
        f"<{tmp_path / 'model'}: bert, 2 layers of {loaded.model.config.hidden}, {count:,} "
        "parameters, heads: classify, labels: bad, fair, good, max length 64>"
    )
