"""Families against files of before: names and shapes of weights, config.json, and outputs.

transformers is a witness for the same (tests/parity); these hold without it, and they hold when it
changes. `python -m tests.families.test_golden` writes them anew.
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
"""What a family's file must show, beside the tiny size of all."""


def model_of(family: Family, heads: frozenset[str]) -> Model:
    """A model whose weights are computed from their names, the same on every machine."""
    settings = {"hidden": 16, "layers": 2, "heads": 2, "max_positions": 24}
    settings["pad_id"] = family.fixed.get("pad_id", 0)
    config = tiny_config(12, family=family, **settings | SHAPE.get(family.name, {}))
    model = build(config, sorted(heads), labels=LABELS if heads & {*LABELED} else ())
    with torch.no_grad():
        for name, weight in model.named_parameters():
            places = torch.arange(weight.numel(), dtype=torch.float64)
            values = torch.sin(places * 0.73 + zlib.crc32(name.encode()) % 1000)
            around = 1.0 if name.endswith("norm.weight") else 0.0
            weight.copy_((around + 0.4 * values).view_as(weight))
    return model.eval()


def batch(types: int) -> Batch:
    layout = Packed.of([4, 7, 7, 11])
    ids = (torch.arange(layout.total) * 5) % 12
    segments = (layout.positions > 3).long() if types > 1 else torch.zeros_like(ids)
    return Batch(ids, segments, layout, token_indices=torch.tensor([1, 5, 13, 20]))


def numbers(model: Model) -> dict[str, list[float]]:
    """Some numbers of each head's output, of the states where there is no head."""
    asked = batch(model.config.token_types)
    with torch.no_grad():
        outputs = model(asked) or {"states": model.encoder(asked)}
    picked = {name: out.flatten()[:: 1 + out.numel() // 12] for name, out in outputs.items()}
    return {name: [round(x, 6) for x in some.tolist()] for name, some in picked.items()}


def witnessed(family: Family, folder: Path) -> dict[str, Any]:
    """What a file holds of a family: its config, and for each set of heads names and numbers."""
    tokenizer = tiny_tokenizer(map(str, range(7)), family=family)
    record: dict[str, Any] = {"config": {}, "heads": {}}
    body: set[str] = set()
    for heads in sorted(family.architectures, key=sorted):
        place = folder / "+".join(sorted(heads))
        model = model_of(family, heads)
        labels = LABELS if heads & {*LABELED} else ()
        save(place, model, tokenizer, family, labels=labels)
        tensors = {name: [*t.shape] for name, t in load_file(place / "model.safetensors").items()}
        if not heads:
            body, record["tensors"] = {n.removeprefix(family.prefix) for n in tensors}, tensors
            record["config"] = json.loads((place / "config.json").read_text(encoding="utf-8"))
        new = {n: s for n, s in tensors.items() if n.removeprefix(family.prefix) not in body}
        loaded = bertkit.load(place).model
        record["heads"]["+".join(sorted(heads))] = {"tensors": new, "outputs": numbers(loaded)}
    return record


@pytest.mark.parametrize("name", ENCODERS)
def test_a_family_is_as_its_file_says(name: str, tmp_path: Path) -> None:
    expected = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    found = witnessed(ENCODERS[name], tmp_path)
    assert found["config"] == expected["config"]
    assert found["tensors"] == expected["tensors"]
    assert found["heads"].keys() == expected["heads"].keys()
    for heads, wanted in expected["heads"].items():
        assert found["heads"][heads]["tensors"] == wanted["tensors"]
        outputs = found["heads"][heads]["outputs"]
        assert outputs.keys() == wanted["outputs"].keys()
        for head, values in wanted["outputs"].items():
            assert outputs[head] == pytest.approx(values, abs=TOLERANCE), (heads, head)


def test_a_weight_that_changes_is_seen(tmp_path: Path) -> None:
    """The control: one number of one matrix, in the folder."""
    expected = json.loads((GOLDEN / "bert.json").read_text(encoding="utf-8"))
    witnessed(ENCODERS["bert"], tmp_path)
    path = tmp_path / "classify" / "model.safetensors"
    tensors = load_file(path)
    tensors["bert.encoder.layer.0.attention.self.key.weight"][3, 5] += 0.1
    save_file(tensors, path, {"format": "pt"})
    outputs = numbers(bertkit.load(tmp_path / "classify").model)
    wanted = expected["heads"]["classify"]["outputs"]
    assert outputs["classify"] != pytest.approx(wanted["classify"], abs=TOLERANCE)


def write() -> None:
    for name, family in ENCODERS.items():
        with tempfile.TemporaryDirectory() as folder:
            record = witnessed(family, Path(folder))
        text = json.dumps(record, indent=1, sort_keys=True)
        text = re.sub(r"\[\s+([^][{}]*?)\s+\]", lambda m: f"[{' '.join(m[1].split())}]", text)
        (GOLDEN / f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    write()
