"""Names and heads that are not there are refused in a sentence."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import bertkit
from bertkit.errors import CheckpointError, ConfigError, DeviceError
from bertkit.extensions.export import accelerated
from bertkit.pipelines import inference_device, open_engine


def test_a_missing_head_is_named(folders: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no mlm head \(heads: classify\)"):
        bertkit.pipeline("fill-mask", folders / "classifier")
    with pytest.raises(
        CheckpointError, match="no classify head \\(heads: mlm, nsp\\); fine-tune one"
    ):
        bertkit.pipeline("classify", folders / "pretrained")


@pytest.mark.parametrize("precision", ["float32", "fp16", torch.float32, None])
def test_what_is_no_precision_is_refused(folders: Path, precision: Any) -> None:
    """It was bf16 for whatever it did not know, float32 too."""
    with pytest.raises(ConfigError, match=r"precision: no such value .*(did you mean|known:)"):
        bertkit.pipeline("embed", folders / "pretrained", precision=precision)
    with pytest.raises(ConfigError, match="precision: no such value"):
        bertkit.embed(folders / "pretrained", "a b", precision=precision)


def test_wrong_names_are_refused(folders: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'embed'"):
        bertkit.pipeline("embedd", folders / "pretrained")  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="pooling: unknown value 'sum'"):
        bertkit.pipeline("embed", folders / "pretrained", pooling="sum")
    with pytest.raises(ConfigError, match="not supported by classify"):
        bertkit.pipeline("classify", folders / "classifier", pooling="cls")  # type: ignore[call-overload]


def test_the_gpu_is_taken_and_said_but_not_for_integers(
    fake_gpu: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert inference_device("auto", "fp32") == fake_gpu
    assert capsys.readouterr().err == f"device: {fake_gpu}\n"
    assert inference_device("auto", "int8") == inference_device("cpu", "fp32") == "cpu"
    assert capsys.readouterr().err == ""


def test_without_a_gpu_nothing_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert inference_device("auto", "fp32") == "cpu"
    assert capsys.readouterr().err == ""
    with pytest.raises(DeviceError, match="device: 'gpu' cannot be used"):
        inference_device("gpu", "fp32")


def test_an_engine_on_a_gpu_leaves_the_model_where_it_is(folders: Path, fake_gpu: str) -> None:
    loaded = bertkit.load(folders / "pretrained")
    assert open_engine(loaded).device.type == "cpu"
    engine = open_engine(loaded, device=fake_gpu)
    for model, kind in ((loaded.model, "cpu"), (engine.model, fake_gpu)):
        assert {weight.device.type for weight in model.parameters()} == {kind}
    with pytest.raises(RuntimeError, match="not on the expected device"):  # what the fake refuses
        next(engine.model.parameters()) + next(loaded.model.parameters())


def test_what_was_tuned_on_the_cpu_is_not_for_a_gpu(
    folders: Path, fake_gpu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []
    monkeypatch.setattr(accelerated, "read_tuned", lambda folder: asked.append(folder))
    loaded = bertkit.load(shutil.copytree(folders / "pretrained", tmp_path / "m"))
    (tmp_path / "m" / "tuned.json").write_text("[]")
    open_engine(loaded, "auto", device=fake_gpu)
    assert asked == []
    open_engine(loaded, "auto")
    assert asked == [loaded.folder]


def test_a_gpu_without_room_is_said(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    loaded = bertkit.load(folders / "pretrained")
    monkeypatch.setattr(torch.nn.Module, "to", full)
    with pytest.raises(DeviceError, match="does not fit into the free memory of meta"):
        open_engine(loaded, device="meta")
