"""Tests of pipeline names, missing heads, precision and the inference device."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import bertkit
from bertkit.errors import CheckpointError, ConfigError, DeviceError
from bertkit.extensions.export import accelerated
from bertkit.pipelines import inference_device, open_engine


def test_pipeline_rejects_missing_head(folders: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no mlm head \(heads: classify\)"):
        bertkit.pipeline("fill-mask", folders / "classifier")
    with pytest.raises(
        CheckpointError, match="no classify head \\(heads: mlm, nsp\\); fine-tune one"
    ):
        bertkit.pipeline("classify", folders / "pretrained")


@pytest.mark.parametrize("precision", ["float32", "fp16", torch.float32, None])
def test_pipeline_rejects_unknown_precision(folders: Path, precision: Any) -> None:
    """An earlier version used bf16 for each unknown value, also for float32."""
    with pytest.raises(ConfigError, match=r"precision: no such value .*(did you mean|known:)"):
        bertkit.pipeline("embed", folders / "pretrained", precision=precision)
    with pytest.raises(ConfigError, match="precision: no such value"):
        bertkit.embed(folders / "pretrained", "a b", precision=precision)


def test_pipeline_rejects_unknown_names_and_options(folders: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'embed'"):
        bertkit.pipeline("embedd", folders / "pretrained")  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="pooling: unknown value 'sum'"):
        bertkit.pipeline("embed", folders / "pretrained", pooling="sum")
    with pytest.raises(ConfigError, match="not supported by classify"):
        bertkit.pipeline("classify", folders / "classifier", pooling="cls")  # type: ignore[call-overload]


def test_auto_device_uses_gpu_except_for_int8(
    fake_gpu: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert inference_device("auto", "fp32") == fake_gpu
    assert capsys.readouterr().err == f"device: {fake_gpu}\n"
    assert inference_device("auto", "int8") == inference_device("cpu", "fp32") == "cpu"
    assert capsys.readouterr().err == ""


def test_auto_device_uses_cpu_without_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert inference_device("auto", "fp32") == "cpu"
    assert capsys.readouterr().err == ""
    with pytest.raises(DeviceError, match="device: 'gpu' cannot be used"):
        inference_device("gpu", "fp32")


def test_engine_on_gpu_keeps_model_on_cpu(folders: Path, fake_gpu: str) -> None:
    loaded = bertkit.load(folders / "pretrained")
    assert open_engine(loaded).device.type == "cpu"
    engine = open_engine(loaded, device=fake_gpu)
    for model, device in ((loaded.model, "cpu"), (engine.model, fake_gpu)):
        assert {weight.device.type for weight in model.parameters()} == {device}
    with pytest.raises(
        RuntimeError, match="not on the expected device"
    ):  # the fake GPU rejects CPU tensors
        next(engine.model.parameters()) + next(loaded.model.parameters())


def test_engine_on_gpu_ignores_cpu_tuning(
    folders: Path, fake_gpu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders_read: list[Path] = []
    monkeypatch.setattr(accelerated, "read_tuned", lambda folder: folders_read.append(folder))
    loaded = bertkit.load(shutil.copytree(folders / "pretrained", tmp_path / "m"))
    (tmp_path / "m" / "tuned.json").write_text("[]")
    open_engine(loaded, "auto", device=fake_gpu)
    assert folders_read == []
    open_engine(loaded, "auto")
    assert folders_read == [loaded.folder]


def test_engine_reports_gpu_without_free_memory(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    loaded = bertkit.load(folders / "pretrained")
    monkeypatch.setattr(torch.nn.Module, "to", full)
    with pytest.raises(DeviceError, match="does not fit into the free memory of meta"):
        open_engine(loaded, device="meta")
