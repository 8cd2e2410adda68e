"""Families match stored files: names and shapes of weights, config.json, and outputs.

Unlike tests/parity, these tests do not depend on transformers or its version.
`python -m tests.families.test_golden` regenerates the files.
"""

from __future__ import annotations

import json
import re
import tempfile
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.factories import ENCODERS, tiny_config, tiny_tokenizer

import bertkit
from bertkit.batch import Batch, Packed
from bertkit.checkpoint.directory import save
from bertkit.families import Family
from bertkit.models.model import LABELED, Model, build

GOLDEN = Path(__file__).parent / "golden"
LABELS = ("O", "B-X", "I-X")
TOLERANCE = 1e-4

SHAPE: dict[str, dict[str, Any]] = {
    "albert": {"layers": 4, "layer_sharing": (0, 0, 0, 0), "embedding": 8},
    "electra": {"embedding": 8},
    "deberta-v2": {"positions.side_buckets": 4, "convolution": {"tokens": 3, "activation": "gelu"}},
    "modernbert": {"layers": 4, "attention.window.tokens": 2},
    "gte": {"positions.factor": 1.3},
}
"""Settings by family, in addition to the common tiny size."""


def model_of(family: Family, heads: frozenset[str]) -> Model:
    """Return a model whose weights are computed from their names, on every machine."""
    settings = {"hidden": 16, "layers": 2, "heads": 2, "max_positions": 24}
    settings["pad_id"] = family.fixed.get("pad_id", 0)
    config = tiny_config(12, family=family, **settings | SHAPE.get(family.name, {}))
    model = build(config, sorted(heads), labels=LABELS if heads & {*LABELED} else ())
    with torch.no_grad():
        for name, weight in model.named_parameters():
            indices = torch.arange(weight.numel(), dtype=torch.float64)
            values = torch.sin(indices * 0.73 + zlib.crc32(name.encode()) % 1000)
            around = 1.0 if name.endswith("norm.weight") else 0.0
            weight.copy_((around + 0.4 * values).view_as(weight))
    return model.eval()


def batch(types: int) -> Batch:
    layout = Packed.of([4, 7, 7, 11])
    ids = (torch.arange(layout.total) * 5) % 12
    segments = (layout.positions > 3).long() if types > 1 else torch.zeros_like(ids)
    return Batch(ids, segments, layout, token_indices=torch.tensor([1, 5, 13, 20]))


def sample_outputs(model: Model) -> dict[str, list[float]]:
    """Return some values of each head's output, or of the states if there is no head."""
    inputs = batch(model.config.token_types)
    with torch.no_grad():
        outputs = model(inputs) or {"states": model.encoder(inputs)}
    samples = {name: out.flatten()[:: 1 + out.numel() // 12] for name, out in outputs.items()}
    return {name: [round(x, 6) for x in values.tolist()] for name, values in samples.items()}


def family_record(family: Family, folder: Path) -> dict[str, Any]:
    """Return the content of a family's file: config, and tensors and outputs per set of heads."""
    tokenizer = tiny_tokenizer(map(str, range(7)), family=family)
    record: dict[str, Any] = {"config": {}, "heads": {}}
    body: set[str] = set()
    for heads in sorted(family.architectures, key=sorted):
        directory = folder / "+".join(sorted(heads))
        model = model_of(family, heads)
        labels = LABELS if heads & {*LABELED} else ()
        save(directory, model, tokenizer, family, labels=labels)
        tensors = {
            name: [*t.shape] for name, t in load_file(directory / "model.safetensors").items()
        }
        if not heads:
            body, record["tensors"] = {n.removeprefix(family.prefix) for n in tensors}, tensors
            record["config"] = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        new = {n: s for n, s in tensors.items() if n.removeprefix(family.prefix) not in body}
        loaded = bertkit.load(directory).model
        record["heads"]["+".join(sorted(heads))] = {
            "tensors": new,
            "outputs": sample_outputs(loaded),
        }
    return record


@pytest.mark.parametrize("name", ENCODERS)
def test_family_matches_file(name: str, tmp_path: Path) -> None:
    expected = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    found = family_record(ENCODERS[name], tmp_path)
    assert found["config"] == expected["config"]
    assert found["tensors"] == expected["tensors"]
    assert found["heads"].keys() == expected["heads"].keys()
    for heads, reference in expected["heads"].items():
        assert found["heads"][heads]["tensors"] == reference["tensors"]
        outputs = found["heads"][heads]["outputs"]
        assert outputs.keys() == reference["outputs"].keys()
        for head, values in reference["outputs"].items():
            assert outputs[head] == pytest.approx(values, abs=TOLERANCE), (heads, head)


def test_control_changed_weight_differs(tmp_path: Path) -> None:
    """The control changes one value of one matrix."""
    expected = json.loads((GOLDEN / "bert.json").read_text(encoding="utf-8"))
    family_record(ENCODERS["bert"], tmp_path)
    path = tmp_path / "classify" / "model.safetensors"
    tensors = load_file(path)
    tensors["bert.encoder.layer.0.attention.self.key.weight"][3, 5] += 0.1
    save_file(tensors, path, {"format": "pt"})
    outputs = sample_outputs(bertkit.load(tmp_path / "classify").model)
    reference = expected["heads"]["classify"]["outputs"]
    assert outputs["classify"] != pytest.approx(reference["classify"], abs=TOLERANCE)


def write() -> None:
    for name, family in ENCODERS.items():
        with tempfile.TemporaryDirectory() as folder:
            record = family_record(family, Path(folder))
        text = json.dumps(record, indent=1, sort_keys=True)
        text = re.sub(r"\[\s+([^][{}]*?)\s+\]", lambda m: f"[{' '.join(m[1].split())}]", text)
        (GOLDEN / f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    write()
