"""A student that says the same as its teacher has nothing to learn; each term is its formula."""

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

NONE = {"labels": 0.0, "outputs": 0.0, "states": 0.0, "attention": 0.0, "relations": 0.0}
LABELS = ("a", "b", "c")


def model(vocab: int = 40, **more: Any) -> Model:
    """Another one at each call."""
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
        terms=Terms(**{**NONE, **terms}),  # type: ignore[arg-type]
        layers=layers,  # type: ignore[arg-type]
        single_label=True,
    )


@pytest.mark.parametrize("term", ["outputs", "states", "attention", "relations"])
def test_the_same_model_has_nothing_to_learn(term: str) -> None:
    one, data = model(), batch()
    found = objective(one, one, **{term: 1.0})(one, data, totals([data]))
    assert set(found.parts) == {term}
    assert abs(found.total.item()) < 1e-6
    other = objective(model(), one, **{term: 1.0})(one, data, totals([data]))
    assert other.total.item() > 1e-3  # the control


def test_outputs_are_softened() -> None:
    teacher, student, data = model(), model(layers=2), batch()
    found = objective(teacher, student, outputs=0.5, temperature=3.0)(student, data, totals([data]))
    with torch.no_grad():
        theirs, mine = (m(data)["classify"] for m in (teacher, student))
    chances = torch.softmax(theirs / 3, -1)
    gap = (chances * (chances.log() - torch.log_softmax(mine / 3, -1))).sum(-1).mean()
    assert found.total.item() == pytest.approx(0.5 * 9 * gap.item(), rel=1e-4)


def test_what_a_teacher_said_before_need_not_be_asked_again() -> None:
    teacher, student, data = model(), model(layers=2), batch()
    asked = objective(teacher, student, outputs=1.0)
    wanted = asked(student, data, totals([data])).total
    with torch.no_grad():
        said = teacher(data)["classify"]
    known = replace(data, targets={**data.targets, TEACHER_OUTPUTS: said})
    teacher.encoder.register_forward_hook(lambda *_: pytest.fail("it was asked again"))
    torch.testing.assert_close(asked(student, known, totals([known])).total, wanted)


@pytest.mark.parametrize("compare", ["squared", "cosine"])
def test_states_follow_the_layers_named(compare: str) -> None:
    teacher, student, data = model(), model(layers=2), batch()
    own, theirs = Trace(weights=False), Trace(weights=False)
    with torch.no_grad():
        student.encoder(data, own)
        teacher.encoder(data, theirs)
    pairs = list(zip(own.states, (theirs.states[i] for i in (0, 1, 3)), strict=True))
    if compare == "squared":  # TinyBERT adds the layers up
        wanted = sum(((a - b) ** 2).mean().item() for a, b in pairs)
    else:  # DistilBERT compares the last ones
        wanted = 1 - F.cosine_similarity(*pairs[-1]).mean().item()
    asked = objective(teacher, student, states=1.0, layers=(1, 3), compare=compare)  # type: ignore[arg-type]
    assert asked(student, data, totals([data])).total.item() == pytest.approx(wanted, rel=1e-4)


def test_attention_is_compared_before_softmax() -> None:
    teacher, student, data = model(), model(layers=2), batch()
    own, theirs = (Trace(weights=False, projections=True) for _ in range(2))
    with torch.no_grad():
        student.encoder(data, own)
        teacher.encoder(data, theirs)
    layers = []
    for mine, other in ((0, 1), (1, 3)):  # added up, as TinyBERT has it
        gaps = []
        for start, size in zip(data.layout.cu_seqlens.tolist(), data.layout.lengths, strict=False):
            scores = []
            for t, layer in ((own, mine), (theirs, other)):
                q, k = (x[layer][start : start + size] for x in (t.queries, t.keys))  # (T, H, K)
                scores.append(torch.einsum("ihk,jhk->hij", q, k) / 8**0.5)
            gaps.append(((scores[0] - scores[1]) ** 2).mean())
        layers.append(torch.stack(gaps).mean())
    found = objective(teacher, student, attention=1.0)(student, data, totals([data]))
    assert found.total.item() == pytest.approx(torch.stack(layers).sum().item(), rel=1e-4)


def test_relations_are_those_of_the_last_layer() -> None:
    """The mean over heads and rows of each divergence, and the sum of both: MiniLM."""
    teacher, student, data = model(), model(layers=2), batch()
    own, theirs = (Trace(weights=False, projections=True) for _ in range(2))
    with torch.no_grad():
        student.encoder(data, own)
        teacher.encoder(data, theirs)
    gaps = []
    for start, size in zip(data.layout.cu_seqlens.tolist(), data.layout.lengths, strict=False):
        part = slice(start, start + size)
        for a, b in (("queries", "keys"), ("values", "values")):
            mine, wanted = (
                torch.softmax(torch.einsum("ihk,jhk->hij", x[part], y[part]) / 8**0.5, -1)
                for x, y in ((getattr(t, a)[-1], getattr(t, b)[-1]) for t in (own, theirs))
            )
            gaps.append((wanted * (wanted / mine).log()).sum(-1).mean())
    found = objective(teacher, student, relations=1.0)(student, data, totals([data]))
    wanted = torch.stack(gaps).sum() / 4  # sequences
    assert found.total.item() == pytest.approx(wanted.item(), rel=1e-4)


def test_a_loss_of_no_term_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one loss weight must be greater than 0"):
        Terms(**NONE)


def test_a_teacher_that_is_not_asked_is_not_run() -> None:
    student, data = model(), batch()
    asked = objective(model(), student, labels=1.0)
    asked.teacher = Model(torch.nn.Identity(), {})  # type: ignore[arg-type]
    wanted = loss_of(student(data)["classify"], data, totals([data]), None).total
    torch.testing.assert_close(asked(student, data, totals([data])).total, wanted)


def test_relations_of_values_are_symmetric() -> None:
    made, data, trace = model(), batch(), Trace(weights=False, projections=True)
    with torch.no_grad():
        made.encoder(data, trace)
    for table in relations(trace.values[0], trace.values[0], data.layout):
        torch.testing.assert_close(table, table.transpose(1, 2))


def test_a_narrow_student_learns_maps() -> None:
    teacher, student, data = model(), model(hidden=8, layers=2), batch()
    asked = objective(teacher, student, states=1.0)
    assert MAPS_HEAD not in student.heads
    maps = asked.learner.heads[MAPS_HEAD]  # TinyBERT's W_e and W_h
    assert [tuple(m.weight.shape) for m in maps] == [(16, 8)] * 2  # type: ignore[union-attr]
    own, theirs = Trace(weights=False), Trace(weights=False)
    with torch.no_grad():
        student.encoder(data, own)
        teacher.encoder(data, theirs)
        turned = [m(x) for m, x in zip([maps[0], maps[1], maps[1]], own.states, strict=True)]  # type: ignore[index]
    wanted = sum(
        ((a - theirs.states[i]) ** 2).mean().item() for a, i in zip(turned, (0, 2, 4), strict=True)
    )
    found = asked(asked.learner, data, totals([data])).total
    assert found.item() == pytest.approx(wanted, rel=1e-4)
    found.backward()
    assert all(w.grad is not None and w.grad.any() for w in maps.parameters())


def test_directions_of_the_last_states_want_one_map() -> None:
    teacher, student, data = model(), model(hidden=8, layers=2), batch()
    asked = objective(teacher, student, states=1.0, compare="cosine")  # type: ignore[arg-type]
    maps = asked.learner.heads[MAPS_HEAD]
    assert len(maps) == 1  # type: ignore[arg-type]
    asked(asked.learner, data, totals([data])).total.backward()
    assert all(w.grad is not None and w.grad.any() for w in maps.parameters())


def cut(lengths: list[int], parts: int, *, head: str) -> list[Batch]:
    """The same sequences in so many batches, shortest first in each."""
    chance = torch.Generator().manual_seed(1)
    ids = [torch.randint(0, 40, (n,), generator=chance) for n in lengths]
    made = []
    for part in range(parts):
        chosen = sorted(range(part, len(lengths), parts), key=lambda i: lengths[i])
        layout = Packed.of([lengths[i] for i in chosen])
        text = torch.cat([ids[i] for i in chosen])
        places, targets = None, torch.tensor([i % 3 for i in chosen])
        if head == "tag":  # some tokens of each, more of the longer
            places = torch.cat(
                [
                    torch.arange(0, lengths[i], 2) + start
                    for i, start in zip(chosen, layout.first, strict=True)
                ]
            )
            targets = text[places] % 3
        made.append(
            Batch(
                text, torch.zeros_like(text), layout, token_indices=places, targets={head: targets}
            )
        )
    return made


@pytest.mark.parametrize("head", ["classify", "tag"])
@pytest.mark.parametrize(
    "terms",
    [
        {"labels": 1.0},
        {"outputs": 1.0},
        {"states": 1.0},
        {"states": 1.0, "compare": "cosine"},
        {"attention": 1.0},
        {"relations": 1.0},
    ],
    ids=str,
)
def test_a_step_is_the_same_however_it_is_cut(terms: dict[str, Any], head: str) -> None:
    lengths = [3 + (7 * i) % 18 for i in range(27)]
    teacher, student = (
        tiny_model(40, head, labels=LABELS, layers=n, seed=n).eval() for n in (4, 2)
    )

    def loss_of(outputs: Tensor, batch: Batch, totals: Totals, _: object) -> Loss:
        loss = F.cross_entropy(outputs, batch.targets[head], reduction="sum")
        return Loss(loss / totals[head], {})

    asked = Distillation(
        loss_of,
        teacher=teacher,
        student=student,
        head=head,
        terms=Terms(**{**NONE, **terms}),
        single_label=True,
    )

    def learned(parts: int, *, alone: bool = False) -> Tensor:
        student.zero_grad()
        batches = cut(lengths, parts, head=head)
        for one in batches:
            share = 1 / parts if alone else 1.0
            (share * asked(student, one, totals([one] if alone else batches)).total).backward()
        return torch.cat([p.grad.flatten() for p in student.parameters() if p.grad is not None])

    whole = learned(1)
    for parts in (6, 27):
        assert (learned(parts) - whole).norm() < 1e-5 * whole.norm()
    # the control: the mean of the batches' means
    assert (learned(6, alone=True) - whole).norm() > 1e-3 * whole.norm()


@pytest.mark.parametrize(
    ("mine", "theirs", "wanted"),
    [(4, 12, (3, 6, 9, 12)), (6, 12, (2, 4, 6, 8, 10, 12)), (3, 6, (2, 4, 6)), (1, 1, (1,))],
)
def test_layers_are_followed_evenly(mine: int, theirs: int, wanted: tuple[int, ...]) -> None:
    """As TinyBERT: 3m for four layers of twelve, 2m for six."""
    assert default_layers(mine, theirs) == wanted


@pytest.mark.parametrize(
    ("student", "terms", "message"),
    [
        ({"vocab": 41}, {"outputs": 1.0}, "got 41 and 40 tokens"),
        ({"heads": 4}, {"attention": 1.0}, "have 4 and 2 heads per layer"),
        ({"layers": 5}, {"outputs": 1.0}, "at most 4 layers like its teacher, got 5"),
        ({"layers": 2}, {"outputs": 1.0, "layers": (1, 5)}, "must be a teacher layer, 1 to 4"),
        ({"layers": 2}, {"outputs": 1.0, "layers": (1, 2, 3)}, "for each of the student's 2"),
        ({"layers": 2}, {"outputs": 1.0, "layers": (0, 1)}, "must be a teacher layer, 1 to 4"),
    ],
)
def test_what_does_not_fit_is_refused(
    student: dict[str, Any], terms: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        objective(model(), model(**student), **terms)
