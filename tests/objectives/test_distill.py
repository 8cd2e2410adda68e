"""Distillation terms match their formulas and are zero for identical models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.factories import tiny_model
from torch import Tensor
from torch.nn import functional as F

from bertkit.batch import Batch, Packed
from bertkit.errors import ConfigError
from bertkit.models.model import Model
from bertkit.nn.attention import Trace, relations
from bertkit.objectives.distill import (
    MAPS_HEAD,
    TEACHER_OUTPUTS,
    Distillation,
    Terms,
    default_layers,
)
from bertkit.objectives.loss import Loss, Totals, totals

ZERO_WEIGHTS = {"labels": 0.0, "outputs": 0.0, "states": 0.0, "attention": 0.0, "relations": 0.0}
LABELS = ("a", "b", "c")


def model(vocab: int = 40, **more: Any) -> Model:
    """Return a model with a different random seed at each call."""
    settings = {"layers": 4, "dropout": 0.0, "spread": 0.2, **more}
    seed = int(torch.randint(1000, ()))
    return tiny_model(vocab, "classify", labels=LABELS, seed=seed, **settings).eval()


def batch() -> Batch:
    layout = Packed.of([3, 5, 5, 8])
    ids = torch.randint(0, 40, (layout.total,))
    return Batch(
        ids, torch.zeros_like(ids), layout, targets={"classify": torch.tensor([0, 1, 2, 1])}
    )


def loss_of(outputs: Tensor, batch: Batch, totals: Totals, head: object) -> Loss:
    loss = F.cross_entropy(outputs, batch.targets["classify"], reduction="sum")
    return Loss(loss / totals["classify"], {})


def objective(teacher: Model, student: Model, **terms: float) -> Distillation:
    layers = terms.pop("layers", ())
    return Distillation(
        loss_of,
        teacher=teacher,
        student=student,
        head="classify",
        terms=Terms(**{**ZERO_WEIGHTS, **terms}),  # type: ignore[arg-type]
        layers=layers,  # type: ignore[arg-type]
        single_label=True,
    )


@pytest.mark.parametrize("term", ["outputs", "states", "attention", "relations"])
def test_loss_of_identical_models_is_zero(term: str) -> None:
    same, data = model(), batch()
    found = objective(same, same, **{term: 1.0})(same, data, totals([data]))
    assert set(found.parts) == {term}
    assert abs(found.total.item()) < 1e-6
    different = objective(model(), same, **{term: 1.0})(same, data, totals([data]))
    assert different.total.item() > 1e-3  # the control


def test_outputs_term_uses_temperature() -> None:
    teacher, student, data = model(), model(layers=2), batch()
    found = objective(teacher, student, outputs=0.5, temperature=3.0)(student, data, totals([data]))
    with torch.no_grad():
        teacher_logits, student_logits = (m(data)["classify"] for m in (teacher, student))
    probabilities = torch.softmax(teacher_logits / 3, -1)
    gap = (
        (probabilities * (probabilities.log() - torch.log_softmax(student_logits / 3, -1)))
        .sum(-1)
        .mean()
    )
    assert found.total.item() == pytest.approx(0.5 * 9 * gap.item(), rel=1e-4)


def test_stored_teacher_outputs_are_reused() -> None:
    teacher, student, data = model(), model(layers=2), batch()
    distillation = objective(teacher, student, outputs=1.0)
    expected = distillation(student, data, totals([data])).total
    with torch.no_grad():
        teacher_logits = teacher(data)["classify"]
    with_outputs = replace(data, targets={**data.targets, TEACHER_OUTPUTS: teacher_logits})
    teacher.encoder.register_forward_hook(lambda *_: pytest.fail("the teacher ran"))
    torch.testing.assert_close(
        distillation(student, with_outputs, totals([with_outputs])).total, expected
    )


@pytest.mark.parametrize("compare", ["squared", "cosine"])
def test_states_term_compares_selected_layers(compare: str) -> None:
    teacher, student, data = model(), model(layers=2), batch()
    student_trace, teacher_trace = Trace(weights=False), Trace(weights=False)
    with torch.no_grad():
        student.encoder(data, student_trace)
        teacher.encoder(data, teacher_trace)
    pairs = list(
        zip(student_trace.states, (teacher_trace.states[i] for i in (0, 1, 3)), strict=True)
    )
    if compare == "squared":  # TinyBERT sums over layers
        expected = sum(((a - b) ** 2).mean().item() for a, b in pairs)
    else:  # DistilBERT compares the last layers
        expected = 1 - F.cosine_similarity(*pairs[-1]).mean().item()
    distillation = objective(teacher, student, states=1.0, layers=(1, 3), compare=compare)  # type: ignore[arg-type]
    assert distillation(student, data, totals([data])).total.item() == pytest.approx(
        expected, rel=1e-4
    )


def test_attention_term_compares_scores_before_softmax() -> None:
    teacher, student, data = model(), model(layers=2), batch()
    student_trace, teacher_trace = (Trace(weights=False, projections=True) for _ in range(2))
    with torch.no_grad():
        student.encoder(data, student_trace)
        teacher.encoder(data, teacher_trace)
    layers = []
    for student_layer, teacher_layer in ((0, 1), (1, 3)):  # summed, like in TinyBERT
        gaps = []
        for start, size in zip(data.layout.cu_seqlens.tolist(), data.layout.lengths, strict=False):
            scores = []
            for t, layer in ((student_trace, student_layer), (teacher_trace, teacher_layer)):
                q, k = (x[layer][start : start + size] for x in (t.queries, t.keys))  # (T, H, K)
                scores.append(torch.einsum("ihk,jhk->hij", q, k) / 8**0.5)
            gaps.append(((scores[0] - scores[1]) ** 2).mean())
        layers.append(torch.stack(gaps).mean())
    found = objective(teacher, student, attention=1.0)(student, data, totals([data]))
    assert found.total.item() == pytest.approx(torch.stack(layers).sum().item(), rel=1e-4)


def test_relations_term_compares_last_layer() -> None:
    """Sum the two MiniLM divergences, averaged over heads and rows."""
    teacher, student, data = model(), model(layers=2), batch()
    student_trace, teacher_trace = (Trace(weights=False, projections=True) for _ in range(2))
    with torch.no_grad():
        student.encoder(data, student_trace)
        teacher.encoder(data, teacher_trace)
    gaps = []
    for start, size in zip(data.layout.cu_seqlens.tolist(), data.layout.lengths, strict=False):
        part = slice(start, start + size)
        for a, b in (("queries", "keys"), ("values", "values")):
            student_relations, teacher_relations = (
                torch.softmax(torch.einsum("ihk,jhk->hij", x[part], y[part]) / 8**0.5, -1)
                for x, y in (
                    (getattr(t, a)[-1], getattr(t, b)[-1]) for t in (student_trace, teacher_trace)
                )
            )
            gaps.append(
                (teacher_relations * (teacher_relations / student_relations).log()).sum(-1).mean()
            )
    found = objective(teacher, student, relations=1.0)(student, data, totals([data]))
    expected = torch.stack(gaps).sum() / 4  # sequences
    assert found.total.item() == pytest.approx(expected.item(), rel=1e-4)


def test_terms_reject_zero_weights() -> None:
    with pytest.raises(ValueError, match="at least one loss weight must be greater than 0"):
        Terms(**ZERO_WEIGHTS)


def test_unused_teacher_is_not_run() -> None:
    student, data = model(), batch()
    distillation = objective(model(), student, labels=1.0)
    distillation.teacher = Model(torch.nn.Identity(), {})  # type: ignore[arg-type]
    expected = loss_of(student(data)["classify"], data, totals([data]), None).total
    torch.testing.assert_close(distillation(student, data, totals([data])).total, expected)


def test_value_relations_are_symmetric() -> None:
    network, data, trace = model(), batch(), Trace(weights=False, projections=True)
    with torch.no_grad():
        network.encoder(data, trace)
    for table in relations(trace.values[0], trace.values[0], data.layout):
        torch.testing.assert_close(table, table.transpose(1, 2))


def test_small_student_trains_maps() -> None:
    teacher, student, data = model(), model(hidden=8, layers=2), batch()
    distillation = objective(teacher, student, states=1.0)
    assert MAPS_HEAD not in student.heads
    maps = distillation.learner.heads[MAPS_HEAD]  # TinyBERT's W_e and W_h
    assert [tuple(m.weight.shape) for m in maps] == [(16, 8)] * 2  # type: ignore[union-attr]
    student_trace, teacher_trace = Trace(weights=False), Trace(weights=False)
    with torch.no_grad():
        student.encoder(data, student_trace)
        teacher.encoder(data, teacher_trace)
        states = student_trace.states
        mapped = [m(x) for m, x in zip([maps[0], maps[1], maps[1]], states, strict=True)]  # type: ignore[index]
    expected = sum(
        ((a - teacher_trace.states[i]) ** 2).mean().item()
        for a, i in zip(mapped, (0, 2, 4), strict=True)
    )
    found = distillation(distillation.learner, data, totals([data])).total
    assert found.item() == pytest.approx(expected, rel=1e-4)
    found.backward()
    assert all(w.grad is not None and w.grad.any() for w in maps.parameters())


def test_cosine_states_term_has_one_map() -> None:
    teacher, student, data = model(), model(hidden=8, layers=2), batch()
    distillation = objective(teacher, student, states=1.0, compare="cosine")  # type: ignore[arg-type]
    maps = distillation.learner.heads[MAPS_HEAD]
    assert len(maps) == 1  # type: ignore[arg-type]
    distillation(distillation.learner, data, totals([data])).total.backward()
    assert all(w.grad is not None and w.grad.any() for w in maps.parameters())


def split_batches(lengths: list[int], parts: int, *, head: str) -> list[Batch]:
    """Split the same sequences into batches, sorted by length in each batch."""
    chance = torch.Generator().manual_seed(1)
    ids = [torch.randint(0, 40, (n,), generator=chance) for n in lengths]
    batches = []
    for part in range(parts):
        chosen = sorted(range(part, len(lengths), parts), key=lambda i: lengths[i])
        layout = Packed.of([lengths[i] for i in chosen])
        text = torch.cat([ids[i] for i in chosen])
        token_indices, targets = None, torch.tensor([i % 3 for i in chosen])
        if head == "tag":  # every second token of each sequence
            token_indices = torch.cat(
                [
                    torch.arange(0, lengths[i], 2) + start
                    for i, start in zip(chosen, layout.first, strict=True)
                ]
            )
            targets = text[token_indices] % 3
        batches.append(
            Batch(
                text,
                torch.zeros_like(text),
                layout,
                token_indices=token_indices,
                targets={head: targets},
            )
        )
    return batches


@pytest.mark.parametrize("head", ["classify", "tag"])
@pytest.mark.parametrize(
    "terms",
    [{"labels": 1.0}, {"outputs": 1.0}, {"states": 1.0}, {"states": 1.0, "compare": "cosine"},
     {"attention": 1.0}, {"relations": 1.0}],
    ids=str,
)  # fmt: skip
def test_gradients_do_not_depend_on_batch_split(terms: dict[str, Any], head: str) -> None:
    lengths = [3 + (7 * i) % 18 for i in range(27)]
    teacher, student = (
        tiny_model(40, head, labels=LABELS, layers=n, seed=n).eval() for n in (4, 2)
    )

    def loss_of(outputs: Tensor, batch: Batch, totals: Totals, _: object) -> Loss:
        loss = F.cross_entropy(outputs, batch.targets[head], reduction="sum")
        return Loss(loss / totals[head], {})

    distillation = Distillation(
        loss_of,
        teacher=teacher,
        student=student,
        head=head,
        terms=Terms(**{**ZERO_WEIGHTS, **terms}),
        single_label=True,
    )

    def gradients(parts: int, *, alone: bool = False) -> Tensor:
        student.zero_grad()
        batches = split_batches(lengths, parts, head=head)
        for part in batches:
            fraction = 1 / parts if alone else 1.0
            (
                fraction * distillation(student, part, totals([part] if alone else batches)).total
            ).backward()
        return torch.cat([p.grad.flatten() for p in student.parameters() if p.grad is not None])

    whole = gradients(1)
    for parts in (6, 27):
        assert (gradients(parts) - whole).norm() < 1e-5 * whole.norm()
    # the control: the mean of the batch means
    assert (gradients(6, alone=True) - whole).norm() > 1e-3 * whole.norm()


@pytest.mark.parametrize(
    ("student_layers", "teacher_layers", "expected"),
    [(4, 12, (3, 6, 9, 12)), (6, 12, (2, 4, 6, 8, 10, 12)), (3, 6, (2, 4, 6)), (1, 1, (1,))],
)
def test_default_layers_are_evenly_spaced(
    student_layers: int, teacher_layers: int, expected: tuple[int, ...]
) -> None:
    """TinyBERT maps layer m to 3m for 4 of 12 layers, and to 2m for 6 layers."""
    assert default_layers(student_layers, teacher_layers) == expected


@pytest.mark.parametrize(
    ("student", "terms", "message"),
    [
        ({"vocab": 41}, {"outputs": 1.0}, "got 41 and 40 tokens"),
        ({"heads": 4}, {"attention": 1.0}, "have 4 and 2 heads per layer"),
        ({"layers": 5}, {"outputs": 1.0}, "at most 4 layers, as its teacher has, got 5"),
        ({"layers": 2}, {"outputs": 1.0, "layers": (1, 5)}, "must list a teacher layer, 1 to 4"),
        ({"layers": 2}, {"outputs": 1.0, "layers": (1, 2, 3)}, "for each of the student's 2"),
        ({"layers": 2}, {"outputs": 1.0, "layers": (0, 1)}, "must list a teacher layer, 1 to 4"),
    ],
)
def test_objective_rejects_incompatible_student(
    student: dict[str, Any], terms: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        objective(model(), model(**student), **terms)
