"""A folder remembers what was fastest, for each machine apart."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import msgspec
import pytest

from bertkit import threads
from bertkit.errors import CheckpointError
from bertkit.extensions.export import tuning_record as tuned
from bertkit.extensions.export.tuning_record import FILE, Tuned, cell, read_tuned, write_tuned
from bertkit.pipelines import pipeline


def made(**changes: object) -> Tuned:
    usual = {"precision": "fp32", "max_batch_tokens": 8, "threads": 1, "texts_per_second": 1.0}
    here = {
        "processor": tuned.processor_and_instructions(),
        "cores": tuned.thread_limit(),
        "versions": tuned.versions(),
    }
    here["weights"] = hashlib.sha256().hexdigest()  # of a folder without any
    return msgspec.convert({**here, **usual, **changes}, Tuned)


def test_other_machines_are_kept_and_not_taken(tmp_path: Path) -> None:
    assert read_tuned(tmp_path) is None
    write_tuned(tmp_path, made(processor="another", engines={"1 short": "onnxruntime"}))
    assert read_tuned(tmp_path) is None
    write_tuned(tmp_path, made(processor="a third"))
    for max_batch_tokens in (8, 16):
        write_tuned(tmp_path, made(max_batch_tokens=max_batch_tokens))
    assert read_tuned(tmp_path) == made(max_batch_tokens=16)
    held = json.loads((tmp_path / FILE).read_text())  # the graph of the first is not there any more
    assert [(t["processor"] == "a third", t["max_batch_tokens"]) for t in held] == [
        (True, 8),
        (False, 16),
    ]


def test_a_record_is_of_as_many_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(threads, "cores", lambda: 4)
    write_tuned(tmp_path, all_four := made(cores=4))
    assert read_tuned(tmp_path) == all_four
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert read_tuned(tmp_path) is None
    assert "not used (the machine, its cores or OMP_NUM_THREADS differ)" in capsys.readouterr().err
    write_tuned(tmp_path, two := made(cores=2))
    assert read_tuned(tmp_path) == two
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert read_tuned(tmp_path) == all_four


def test_weights_and_versions_are_of_the_record(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Path(shutil.copytree(tiny, tmp_path / "model"))
    mine = made(weights=tuned.weights_of(model))
    write_tuned(model, mine)
    assert read_tuned(model) == mine
    assert capsys.readouterr().err == ""
    write_tuned(model, made())
    assert read_tuned(model) is None
    assert (
        "the tuning is not used (other weights or settings); run `bertkit export tune` again"
        in capsys.readouterr().err
    )
    write_tuned(model, made(versions={**tuned.versions(), "torch": "0"}))
    assert read_tuned(model) is None
    assert "the tuning is not used (other versions of torch)" in capsys.readouterr().err
    write_tuned(model, mine)
    (model / "tuned").mkdir()
    (model / "tuned" / "tokenizer.json").write_text("{}")
    assert read_tuned(model) == mine
    (model / "1_Pooling").mkdir()
    (model / "1_Pooling" / "config.json").write_text("{}")
    assert read_tuned(model) is None
    assert "the tuning is not used (other weights or settings)" in capsys.readouterr().err


def test_what_decides_the_tokens_and_the_base_of_adapters_belongs_to_the_weights(
    tiny: Path, tmp_path: Path
) -> None:
    model = Path(shutil.copytree(tiny, tmp_path / "model"))
    adapters = tmp_path / "adapters"
    adapters.mkdir()
    (adapters / "adapter_config.json").write_text(f'{{"base_model_name_or_path": "{model}"}}')
    hash_files = {folder: tuned.weights_of(folder) for folder in (model, adapters)}
    (model / "README.md").write_text("x")  # the control
    assert hash_files == {folder: tuned.weights_of(folder) for folder in (model, adapters)}
    (model / "special_tokens_map.json").write_text('{"unk_token": "a"}')
    assert tuned.weights_of(model) != hash_files[model]
    assert tuned.weights_of(adapters) != hash_files[adapters]


def test_a_processor_is_its_instructions_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Virtual machines call many processors by one name, of which some have no bf16."""
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


def test_the_engine_is_that_of_the_nearest_count_and_length() -> None:
    engines = {"1 short": "onnxruntime", "4 long": "onnxruntime", "64 short": "packed"}
    found = made(engines=engines)
    assert found.engine_description == "ONNX Runtime for 1 short, 4 long, else packed batches"
    both = made(engines={**engines, "64 short": "openvino", "64 long": "packed"})
    assert (
        both.engine_description
        == "ONNX Runtime for 1 short, 4 long, OpenVINO for 64 short, else packed batches"
    )
    assert made(engines={"1 short": "openvino"}).engine_description == "OpenVINO"
    in_bf16 = made(engines={"1 short": "onnxruntime", "4 short": "openvino"}, precision="bf16")
    assert in_bf16.engine_description == (
        "ONNX Runtime in fp32 for 1 short, OpenVINO for 4 short, else packed batches"
    )
    assert in_bf16.runtimes == ["onnxruntime", "openvino"]
    assert made(engines={"1 short": "packed"}).runtimes == made().runtimes == []
    assert made(engines={"1 short": "onnxruntime"}).engine_description == "ONNX Runtime"
    assert made().engine_description == "packed batches"
    for lengths, engine in (
        ([5], "onnxruntime"),
        ([100], None),
        ([100] * 6, "onnxruntime"),
        ([5] * 80, None),
    ):
        assert found.runtime(lengths) == engine
    names = {count: cell([5] * count) for count in (0, 1, 2, 3, 4, 15, 17, 999)}
    assert "".join(name.split()[0][0] for name in names.values()) == "11144466"


def test_a_damaged_memory_is_named(tiny: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(tiny, tmp_path / "model"))
    (model / FILE).write_text("[{}]", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"tuned\.json: damaged .*; remove it"):
        pipeline("embed", model, precision="auto")
    assert pipeline("embed", model)(["a"]).shape == (1, 32)


@pytest.mark.parametrize(
    "changes", [{"threads": 0}, {"threads": 10**6}, {"max_batch_tokens": 10**9}]
)
def test_what_no_machine_was_tuned_to_is_refused(changes: dict[str, int], tmp_path: Path) -> None:
    held = {**msgspec.to_builtins(made()), **changes}
    (tmp_path / FILE).write_text(json.dumps([held]), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"tuned\.json: damaged"):
        read_tuned(tmp_path)
