"""Tuning records of a model directory, one per machine."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bertkit import threads
from bertkit.errors import CheckpointError
from bertkit.extensions.export import tuning_record as tuned
from bertkit.extensions.export.tuning_record import FILE, Tuned, cell, read_tuned, write_tuned
from bertkit.pipelines import pipeline


def tuning_of(**changes: object) -> Tuned:
    defaults = {"precision": "fp32", "max_batch_tokens": 8, "threads": 1, "texts_per_second": 1.0}
    machine = {
        "processor": tuned.processor_and_instructions(),
        "cores": tuned.thread_limit(),
        "versions": tuned.versions(),
    }
    machine["weights"] = hashlib.sha256().hexdigest()  # Hash of a directory without weights.
    return msgspec.convert({**machine, **defaults, **changes}, Tuned)


def test_write_tuned_keeps_records_of_other_machines(tmp_path: Path) -> None:
    assert read_tuned(tmp_path) is None
    write_tuned(tmp_path, tuning_of(processor="another", engines={"1 short": "onnxruntime"}))
    assert read_tuned(tmp_path) is None
    write_tuned(tmp_path, tuning_of(processor="a third"))
    for max_batch_tokens in (8, 16):
        write_tuned(tmp_path, tuning_of(max_batch_tokens=max_batch_tokens))
    assert read_tuned(tmp_path) == tuning_of(max_batch_tokens=16)
    # The first record was removed because its graph does not exist.
    records = json.loads((tmp_path / FILE).read_text())
    assert [(t["processor"] == "a third", t["max_batch_tokens"]) for t in records] == [
        (True, 8),
        (False, 16),
    ]


def test_read_tuned_requires_same_number_of_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(threads, "cores", lambda: 4)
    write_tuned(tmp_path, all_four := tuning_of(cores=4))
    assert read_tuned(tmp_path) == all_four
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert read_tuned(tmp_path) is None
    assert "with another processor, number of cores or OMP_NUM_THREADS" in capsys.readouterr().err
    write_tuned(tmp_path, two := tuning_of(cores=2))
    assert read_tuned(tmp_path) == two
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert read_tuned(tmp_path) == all_four


def test_read_tuned_requires_same_weights_and_versions(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Path(shutil.copytree(tiny, tmp_path / "model"))
    matching = tuning_of(weights=tuned.weights_of(model))
    write_tuned(model, matching)
    assert read_tuned(model) == matching
    assert capsys.readouterr().err == ""
    write_tuned(model, tuning_of())
    assert read_tuned(model) is None
    message = "they were measured with other weights or settings; run `bertkit export tune` again"
    assert message in capsys.readouterr().err
    write_tuned(model, tuning_of(versions={**tuned.versions(), "torch": "0"}))
    assert read_tuned(model) is None
    assert "they were measured with other versions of torch;" in capsys.readouterr().err
    write_tuned(model, matching)
    (model / "tuned").mkdir()
    (model / "tuned" / "tokenizer.json").write_text("{}")
    assert read_tuned(model) == matching
    (model / "1_Pooling").mkdir()
    (model / "1_Pooling" / "config.json").write_text("{}")
    assert read_tuned(model) is None
    assert "they were measured with other weights or settings;" in capsys.readouterr().err


def test_weights_hash_includes_tokenizer_and_adapter_base(tiny: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(tiny, tmp_path / "model"))
    adapters = tmp_path / "adapters"
    adapters.mkdir()
    (adapters / "adapter_config.json").write_text(f'{{"base_model_name_or_path": "{model}"}}')
    hashes = {folder: tuned.weights_of(folder) for folder in (model, adapters)}
    (model / "README.md").write_text("x")  # Control.
    assert hashes == {folder: tuned.weights_of(folder) for folder in (model, adapters)}
    (model / "special_tokens_map.json").write_text('{"unk_token": "a"}')
    assert tuned.weights_of(model) != hashes[model]
    assert tuned.weights_of(adapters) != hashes[adapters]


def test_processor_name_includes_instruction_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Virtual machines use the same name for processors with and without bf16."""
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    for flags, names in (
        ("fpu avx2 avx512f avx512_bf16 amx_bf16", "x avx512f avx512_bf16 amx_bf16"),
        ("fpu avx2 avx512f", "x avx512f"),
        ("asimd bf16", "x bf16"),
    ):
        info = f"processor : 0\nmodel name\t: x\nflags : {flags}\nmodel name\t: x\n"
        monkeypatch.setattr(tuned, "cpuinfo", lambda info=info: info)
        assert tuned.processor_and_instructions() == names
        assert tuned.processor() == "x"
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "avx2")
    assert tuned.processor_and_instructions() == "x bf16 at most AVX2"


ENGINES = {"1 short": "onnxruntime", "4 long": "onnxruntime", "64 short": "packed"}


@pytest.mark.parametrize(
    ("settings", "runtimes", "description"),
    [
        ({}, [], "packed batches"),
        ({"engines": {"1 short": "packed"}}, [], "packed batches"),
        ({"engines": {"1 short": "openvino"}}, ["openvino"], "OpenVINO"),
        ({"engines": {"1 short": "onnxruntime"}}, ["onnxruntime"], "ONNX Runtime"),
        (
            {"engines": ENGINES},
            ["onnxruntime"],
            "ONNX Runtime for 1 short, 4 long, else packed batches",
        ),
        (
            {"engines": {**ENGINES, "64 short": "openvino", "64 long": "packed"}},
            ["onnxruntime", "openvino"],
            "ONNX Runtime for 1 short, 4 long, OpenVINO for 64 short, else packed batches",
        ),
        (
            {"engines": {"1 short": "onnxruntime", "4 short": "openvino"}, "precision": "bf16"},
            ["onnxruntime", "openvino"],
            "ONNX Runtime in fp32 for 1 short, OpenVINO for 4 short, else packed batches",
        ),
    ],
)
def test_description_names_runtimes_of_texts(
    settings: dict[str, Any], runtimes: list[str], description: str
) -> None:
    tuned = tuning_of(**settings)
    assert (tuned.runtimes, tuned.engine_description) == (runtimes, description)


def test_runtime_uses_nearest_count_and_length() -> None:
    tuned = tuning_of(engines=ENGINES)
    expected = [([5], "onnxruntime"), ([100], None), ([100] * 6, "onnxruntime"), ([5] * 80, None)]
    for lengths, engine in expected:
        assert tuned.runtime(lengths) == engine
    names = [cell([5] * count) for count in (0, 1, 2, 3, 4, 15, 17, 999)]
    assert "".join(name[0] for name in names) == "11144466"


def test_auto_precision_rejects_damaged_tuning_file(tiny: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(tiny, tmp_path / "model"))
    (model / FILE).write_text("[{}]", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"tuned\.json: damaged .*; delete this file"):
        pipeline("embed", model, precision="auto")
    assert pipeline("embed", model)(["a"]).shape == (1, 32)


@pytest.mark.parametrize(
    "changes", [{"threads": 0}, {"threads": 10**6}, {"max_batch_tokens": 10**9}]
)
def test_read_tuned_rejects_out_of_range_values(changes: dict[str, int], tmp_path: Path) -> None:
    records = {**msgspec.to_builtins(tuning_of()), **changes}
    (tmp_path / FILE).write_text(json.dumps([records]), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"tuned\.json: damaged"):
        read_tuned(tmp_path)
