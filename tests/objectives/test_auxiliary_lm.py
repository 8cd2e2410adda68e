"""The auxiliary loss matches the logits of transformers and adds up over parts of a step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.factories import tiny_model
from torch.nn import functional as F

from bertkit.batch import Batch, Packed
from bertkit.extensions.generation.families.gpt2 import GPT2
from bertkit.extensions.generation.families.llama import LLAMA
from bertkit.extensions.generation.families.openai_gpt import OPENAI_GPT
from bertkit.families import Family
from bertkit.models.model import Model
from bertkit.objectives.auxiliary_lm import WithAuxiliaryLM
from bertkit.objectives.loss import totals
from bertkit.tasks.classify import Classify
from bertkit.tasks.labeled_text import ClassifyOptions

VOCAB, LABELS = 50, ("a", "b", "c")
SIZES = [2, 5, 9, 9]
MORE: dict[str, dict[str, Any]] = {
    "openai-gpt": {"intermediate": 64},
    "gpt2": {},
    "llama": {"head.lm_tied": False},
}
FAMILIES = [pytest.param(family, id=family.name) for family in (OPENAI_GPT, GPT2, LLAMA)]
TASK = Classify(LABELS, ClassifyOptions(pairs=False, regression=False, multi_label=False))


def model_of(family: Family) -> Model:
    more = {"dropout": 0.0} if family is not LLAMA else {}
    return tiny_model(
        VOCAB, "classify", "lm", labels=LABELS, family=family, spread=0.2, **MORE[family.name],
        **more,
    )  # fmt: skip


def rows() -> list[torch.Tensor]:
    torch.manual_seed(2)
    return [torch.randint(0, VOCAB, (size,)) for size in SIZES]


def batch_of(ids: list[torch.Tensor], labels: torch.Tensor) -> Batch:
    layout = Packed.of([len(row) for row in ids])
    types = torch.zeros(layout.total, dtype=torch.long)
    return Batch(torch.cat(ids), types, layout, targets={"classify": labels})


def objective(weight: float) -> WithAuxiliaryLM:
    return WithAuxiliaryLM(TASK.loss_of, head="classify", weight=weight)


TARGETS = torch.tensor([0, 2, 1, 1])


@pytest.mark.parametrize("weight", [0.5, 2.0])
@pytest.mark.parametrize("family", FAMILIES)
def test_loss_and_gradient_match_transformers(family: Family, weight: float) -> None:
    transformers = pytest.importorskip("transformers", reason="pip install 'bertkit[dev]'")
    model = model_of(family)
    config = transformers.CONFIG_MAPPING[family.name](**family.write_config(model.config))
    hf_models: dict[str, Any] = {}
    for head in ("lm", "classify"):
        config.num_labels = len(LABELS)
        hf_models[head] = getattr(transformers, family.architectures[frozenset({head})])(
            config
        ).eval()
        weights = {
            n: w
            for n, w in model.state_dict().items()
            if n.startswith(("encoder", f"heads.{head}"))
        }
        missing = hf_models[head].load_state_dict(family.write(weights, model.config), strict=False)
        assert set(missing.missing_keys) <= {"lm_head.weight"} - {*family.some}
    ids, words, labels = rows(), [], []
    for row in ids:
        words.append(hf_models["lm"](row[None]).logits[0])
        labels.append(hf_models["classify"](row[None]).logits[0])
    nats = sum(
        F.cross_entropy(x[:-1], r[1:], reduction="sum") for x, r in zip(words, ids, strict=True)
    )
    expected_words = nats / (sum(SIZES) - len(SIZES))
    expected = F.cross_entropy(torch.stack(labels), TARGETS) + weight * expected_words
    batch = batch_of(ids, TARGETS)
    found = objective(weight)(model, batch, totals([batch]))
    torch.testing.assert_close(found.total, expected, atol=1e-5, rtol=1e-5)
    assert found.parts["lm"] == pytest.approx(weight * expected_words.item(), abs=1e-4)
    wrong = objective(weight + 0.1)(model, batch, totals([batch])).total
    assert abs((wrong - expected).item()) > 0.1  # the control
    name = "encoder.embedding.tokens.weight"
    gradient = torch.autograd.grad(found.total, dict(model.named_parameters())[name])[0]
    expected.backward()
    (name,) = family.names([name], model.config)[name]
    parts = [dict(hf_model.named_parameters())[name].grad for hf_model in hf_models.values()]
    torch.testing.assert_close(gradient, sum(parts), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_loss_matches_single_sequences(family: Family) -> None:
    model, ids = model_of(family).eval(), rows()
    whole = batch_of(ids, TARGETS)
    alone = [batch_of([row], labels[None]) for row, labels in zip(ids, TARGETS, strict=True)]
    together = objective(0.5)(model, whole, totals([whole])).total
    losses = [objective(0.5)(model, part, totals(alone)).total for part in alone]
    torch.testing.assert_close(together, torch.stack(losses).sum(), atol=1e-5, rtol=1e-5)


def test_single_token_has_no_lm_loss() -> None:
    model = model_of(GPT2)
    batch = batch_of([torch.tensor([3])], torch.tensor([1]))
    found = objective(0.5)(model, batch, totals([batch]))
    assert float(found.parts["lm"]) == 0.0
    assert torch.isfinite(found.total)
