"""A custom task with its own head is trained, served, exported and loaded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from tests.extensions.conftest import Server
from tests.factories import tiny_folder, tiny_tokenizer
from torch import Tensor, nn
from torch.nn import functional as F

import bertkit
from bertkit.batch import Batch
from bertkit.checkpoint.directory import load
from bertkit.errors import ConfigError
from bertkit.extensions.export.export import export
from bertkit.extensions.export.exported import load_onnx, pad
from bertkit.extensions.serving.models import ModelRegistry
from bertkit.models.transformer import Transformer
from bertkit.objectives.loss import Loss, Totals
from bertkit.pipelines import answering
from bertkit.recipes.finetune import Finetune, finetune
from bertkit.tasks.labeled_text import LabeledTextReader, LabelExample
from bertkit.tasks.task import ErrorRecord, ExampleOutput, Feature, Serving, Task, full_name
from bertkit.text.long_texts import Long, encode
from bertkit.text.tokenizer import Tokenizer


class LengthAnswer(msgspec.Struct, frozen=True):
    """Predicted number of letters of a text, and the hint of the text."""

    letters: float
    hint: str


class Count(nn.Module):
    """Linear layer on the mean state of each text. Shapes: (N, D) -> (S, 1)."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.out = nn.Linear(hidden, 1)

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        out: Tensor = self.out(batch.layout.segment_sum(states) / batch.layout.counts[:, None])
        return out


class HintReader(LabeledTextReader):
    """Reader of texts that have a hint in requests."""

    def example(self, text: str, others: Sequence[str]) -> LabelExample:
        return LabelExample(text, others[0])


class Letters(Task[LabelExample, LengthAnswer]):
    """Predict the number of letters of a text, and return its hint."""

    name = "letters"
    reader = HintReader()
    metric = "negative_error"
    serving = Serving(LengthAnswer, {"text": "a b c", "hint": "three"}, "/letters")

    def build_head(self, encoder: Transformer) -> nn.Module:
        return Count(encoder.config.hidden)

    def features(
        self,
        examples: Sequence[LabelExample],
        tokenizer: Tokenizer,
        length: int,
        *,
        long: Long,
        labeled: bool,
    ) -> list[Feature]:
        encodings, _ = encode(tokenizer, [e.text for e in examples], length=length, long=long)
        return [
            Feature(encoding, index, target=float(examples[index].label or 0) if labeled else None)
            for index, encoding in enumerate(encodings)
        ]

    def targets(self, features: Sequence[Feature]) -> Tensor:
        return torch.tensor([feature.target for feature in features])

    def loss_of(self, outputs: Tensor, batch: Batch, totals: Totals, head: nn.Module) -> Loss:
        loss = F.mse_loss(outputs[:, 0], batch.targets[self.head], reduction="sum")
        loss = loss / totals[self.head]
        return Loss(loss, {self.head: loss.detach()})

    def answers(
        self, outputs: Sequence[ExampleOutput[LabelExample]], head: nn.Module
    ) -> list[LengthAnswer]:
        return [
            LengthAnswer(float(item.outputs[0][0, 0]), item.example.pair or "") for item in outputs
        ]

    def score(
        self, answers: Sequence[LengthAnswer], examples: Sequence[LabelExample]
    ) -> dict[str, float]:
        errors = [a.letters - float(e.label or 0) for a, e in zip(answers, examples, strict=True)]
        return {"negative_error": -float(np.abs(errors).mean())}

    def error_record(self, answer: LengthAnswer, example: LabelExample) -> ErrorRecord:
        return ErrorRecord(example.text, str(example.label), f"{answer.letters:.1f}", 0.0)


@pytest.fixture(scope="module")
def counter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that was fine-tuned for the task, for a few steps."""
    root = tmp_path_factory.mktemp("letters")
    base = tiny_folder(root / "base", tiny_tokenizer("abcdef"), "mlm", length=16)
    rows = [
        LabelExample(" ".join("abcdef"[: 1 + i % 6]), "no hint", str(1 + i % 6)) for i in range(24)
    ]
    settings = Finetune(epochs=2, batch_size=8, learning_rate=1e-2, precision="fp32")
    out = root / "counter"
    finetune(Letters, base, train=rows, dev=rows, out=out, settings=settings)
    return out


def test_custom_task_route_matches_pipeline(counter: Path, server: Server) -> None:
    registry = ModelRegistry([str(counter)], None, tasks=[Letters])
    client = server(at=registry)
    expected = bertkit.pipeline(Letters, counter)([("a b", "two"), ("a b c d", "four")])
    sent = [{"text": "a b", "hint": "two"}, {"text": "a b c d", "hint": "four"}]
    response = client.post("/letters", json={"inputs": sent}).json()
    assert [answer["hint"] for answer in response] == ["two", "four"]
    letters = [answer.letters for answer in expected]
    assert [answer["letters"] for answer in response] == pytest.approx(letters, abs=1e-4)
    single = client.post("/letters", json={"inputs": sent[0]}).json()
    assert single["letters"] == pytest.approx(letters[0], abs=1e-4)
    error = client.post("/letters", json={"inputs": {"text": "a"}}).json()
    assert (error["field"], error["error"]) == ("inputs.hint", "this field is required")


def test_openapi_describes_custom_task_with_example(counter: Path, server: Server) -> None:
    client = server(at=ModelRegistry([str(counter)], None, tasks=[Letters]))
    described = client.get("/openapi.json").json()
    operation = described["paths"]["/letters"]["post"]
    assert operation["description"].startswith("Predict the number of letters of a text")
    schemas = described["components"]["schemas"]
    assert set(schemas["LengthAnswer"]["properties"]) == {"letters", "hint"}
    (example,) = schemas["LettersAsk"]["examples"]
    assert example == {"inputs": {"text": "a b c", "hint": "three"}}
    assert client.post("/letters", json=example).status_code == 200


def test_ask_page_shows_custom_task(counter: Path, server: Server) -> None:
    client = server(at=ModelRegistry([str(counter)], None, tasks=[Letters]))
    page = client.get("/ask", params={"what": "letters"}).text
    assert "Hint" in page
    shown = client.post("/ask", data={"what": "letters", "text": "a b", "other": "<two>"})
    assert shown.status_code == 200
    assert "letters" in shown.text
    assert "&lt;two&gt;" in shown.text


def test_custom_task_requires_explicit_task(counter: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"Letters, a task outside bertkit; set task= if you trust"
    ):
        ModelRegistry([str(counter)], None)


def test_export_matches_custom_task_pipeline(counter: Path, tmp_path: Path) -> None:
    for name in ("onnxscript", "onnxruntime"):
        pytest.importorskip(name, reason="pip install 'bertkit[export]'")
    graph = tmp_path / "graph"
    assert export(counter, out=graph, task=Letters)["largest_difference"] < 1e-4
    [answer] = bertkit.pipeline(Letters, counter)([("a b c", "")])
    ids = Tokenizer.load(counter).encode("a b c").ids
    logits = load_onnx(graph / "model.onnx")(pad([ids], [np.zeros_like(ids)]), "logits")
    assert float(logits[0, 0]) == pytest.approx(answer.letters, abs=1e-4)


def test_load_restores_custom_task_and_head(counter: Path) -> None:
    ready: Any = answering(load(counter), Letters)
    assert isinstance(ready.engine.model.heads["letters"], Count)
    assert ready.loaded.settings["bertkit"]["task"]["name"] == full_name(Letters)
