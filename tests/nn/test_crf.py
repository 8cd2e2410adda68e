"""The CRF matches the enumeration of all tag sequences and pytorch-crf, and applies its masks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bertkit.data.tag_schemes import scheme_of_labels
from bertkit.nn.crf import CRF

IOB2 = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
BIOES = ("O", "B-PER", "I-PER", "E-PER", "S-PER", "S-LOC", "B-LOC", "E-LOC")
SCHEMES = {"IOB2": IOB2, "BIOES": BIOES}


def masks(names: Sequence[str]) -> tuple[Tensor, ...]:
    scheme = scheme_of_labels(names)
    assert scheme is not None
    return tuple(map(torch.from_numpy, scheme.masks(names)))


def masked(names: Sequence[str]) -> CRF:
    return CRF(len(names), *masks(names))


def randomized(crf: CRF) -> CRF:
    with torch.no_grad():
        for parameter in crf.parameters():
            parameter.normal_()
    return crf


def valid(crf: CRF, path: Sequence[int]) -> bool:
    return (
        bool(crf.starts[path[0]])
        and bool(crf.ends[path[-1]])
        and all(bool(crf.allowed[a, b]) for a, b in itertools.pairwise(path))
    )


def paths_and_scores(crf: CRF, emissions: Tensor) -> tuple[Tensor, Tensor]:
    """Return all allowed tag sequences of one sequence and their scores in fp64."""
    length, labels = emissions.shape
    every = itertools.product(range(labels), repeat=length)
    paths = torch.tensor([path for path in every if valid(crf, path)])
    scores = crf.start.double()[paths[:, 0]] + crf.end.double()[paths[:, -1]]
    for t in range(length):
        scores = scores + emissions.double()[t][paths[:, t]]
        if t:
            scores = scores + crf.transitions.double()[paths[:, t - 1], paths[:, t]]
    return paths, scores


def log_total(crf: CRF, emissions: Tensor) -> Tensor:
    """Compute the forward algorithm of one sequence in fp64 with true -inf."""
    transitions = crf.transitions.double().masked_fill(~crf.allowed, -torch.inf)
    reach = crf.start.double().masked_fill(~crf.starts, -torch.inf) + emissions[0].double()
    for now in emissions[1:].double():
        reach = torch.logsumexp(reach[:, None] + transitions, 0) + now
    return torch.logsumexp(reach + crf.end.double().masked_fill(~crf.ends, -torch.inf), 0)


def brute_nll(crf: CRF, emissions: Tensor, tags: Tensor, lengths: Sequence[int]) -> Tensor:
    nll = []
    for part, path in zip(emissions.split(lengths), tags.split(lengths), strict=True):
        paths, scores = paths_and_scores(crf, part)
        nll.append(torch.logsumexp(scores, 0) - scores[(paths == path).all(1)].sum())
    return torch.stack(nll)


def sample_tags(crf: CRF, lengths: Sequence[int], rng: np.random.Generator) -> Tensor:
    """Sample allowed tags for each sequence."""
    tags: list[int] = []
    for length in lengths:
        every = itertools.product(range(len(crf.start)), repeat=length)
        paths = [path for path in every if valid(crf, path)]
        tags += paths[rng.integers(len(paths))]
    return torch.tensor(tags)


@st.composite
def cases(draw: st.DrawFn) -> tuple[CRF, Tensor, Tensor, list[int]]:
    """Return a CRF with or without masks, and emissions and allowed tags of short sequences."""
    seed = draw(st.integers(0, 2**32 - 1))
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    labels = draw(st.integers(1, 4))
    lengths = draw(st.lists(st.integers(1, 5), min_size=1, max_size=5))
    if draw(st.booleans()):
        allowed, starts, ends = (torch.rand(n) < 0.6 for n in ((labels, labels), labels, labels))
        allowed[0, 0] = starts[0] = ends[0] = True  # at least one tag sequence is allowed
        crf = randomized(CRF(labels, allowed=allowed, starts=starts, ends=ends))
    else:
        crf = randomized(CRF(labels))
    emissions = torch.randn(sum(lengths), labels) * draw(st.sampled_from([0.1, 1.0, 10.0]))
    return crf, emissions, sample_tags(crf, lengths, rng), lengths


@given(cases())
@settings(max_examples=60)
def test_nll_and_gradients_match_enumeration(case: tuple[CRF, Tensor, Tensor, list[int]]) -> None:
    crf, emissions, tags, lengths = case
    inputs = (emissions.requires_grad_(), *crf.parameters())
    actual, expected = crf(emissions, tags, lengths), brute_nll(crf, emissions, tags, lengths)
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual.double(), expected, atol=1e-4, rtol=1e-5)
    weight = torch.randn(len(lengths))
    for a, b in zip(
        torch.autograd.grad((actual * weight).sum(), inputs, materialize_grads=True),
        torch.autograd.grad((expected * weight).sum(), inputs, materialize_grads=True),
        strict=True,
    ):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


@given(cases())
@settings(max_examples=60)
def test_decode_and_marginals_match_enumeration(
    case: tuple[CRF, Tensor, Tensor, list[int]],
) -> None:
    crf, emissions, _, lengths = case
    decoded, marginals = crf.decode(emissions, lengths), crf.marginals(emissions, lengths)
    assert marginals.dtype == torch.float32
    assert not marginals.requires_grad
    for part, path, rows in zip(
        emissions.split(lengths), decoded, marginals.split(lengths), strict=True
    ):
        paths, scores = paths_and_scores(crf, part)
        assert path == paths[scores.argmax()].tolist()
        p = torch.softmax(scores, 0)
        expected = torch.zeros(part.shape, dtype=torch.float64)
        for t in range(len(part)):
            expected[t].index_add_(0, paths[:, t], p)
        torch.testing.assert_close(rows.double(), expected, atol=1e-5, rtol=1e-4)
        seen = torch.stack([torch.bincount(column, minlength=rows.shape[1]) for column in paths.T])
        assert (rows[seen == 0] == 0).all()


@pytest.mark.parametrize("wrong", ["direction", "start and end", "order of the sequences"])
def test_control_wrong_formula_differs(wrong: str) -> None:
    torch.manual_seed(0)
    lengths = [3, 1, 4]
    crf, emissions = randomized(CRF(3)), torch.randn(8, 3)
    tags = torch.randint(0, 3, (8,))
    right = brute_nll(crf, emissions, tags, lengths)
    with torch.no_grad():
        if wrong == "direction":
            crf.transitions.copy_(crf.transitions.T.clone())
        elif wrong == "start and end":
            crf.start.data, crf.end.data = crf.end.data, crf.start.data
        else:
            lengths = lengths[::-1]
    assert (crf(emissions, tags, lengths) - right).abs().max() > 0.1


def test_nll_gradients_and_decode_match_pytorch_crf() -> None:
    torchcrf = pytest.importorskip("torchcrf", reason="pip install 'bertkit[dev]'")
    torch.manual_seed(1)
    lengths, labels = [5, 17, 1, 9, 17, 2], 9
    crf, peer = randomized(CRF(labels)), torchcrf.CRF(labels, batch_first=True)
    with torch.no_grad():
        peer.transitions.copy_(crf.transitions)
        peer.start_transitions.copy_(crf.start)
        peer.end_transitions.copy_(crf.end)
    emissions = torch.randn(sum(lengths), labels, requires_grad=True)
    tags = torch.randint(0, labels, (sum(lengths),))
    padded, padded_tags = (
        torch.nn.utils.rnn.pad_sequence(x.split(lengths), batch_first=True)
        for x in (emissions, tags)
    )
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    actual = crf(emissions, tags, lengths)
    expected = -peer(padded, padded_tags, mask, reduction="none")
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-5)
    peers = (emissions, peer.transitions, peer.start_transitions, peer.end_transitions)
    for a, b in zip(
        torch.autograd.grad(actual.mean(), (emissions, *crf.parameters())),
        torch.autograd.grad(expected.mean(), peers),
        strict=True,
    ):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
    assert crf.decode(emissions, lengths) == peer.decode(padded, mask)


@given(
    scheme=st.sampled_from(sorted(SCHEMES)),
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    size=st.sampled_from([1.0, 1e3, 1e6]),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=60)
def test_decode_never_returns_forbidden_sequence(
    scheme: str, lengths: list[int], size: float, seed: int
) -> None:
    torch.manual_seed(seed)
    crf = randomized(masked(SCHEMES[scheme]))
    labels = len(SCHEMES[scheme])
    emissions = torch.randn(sum(lengths), labels) * size
    for path in crf.decode(emissions, lengths):
        assert valid(crf, path)
    marginals = crf.marginals(emissions, lengths)
    if size < 1e6:  # fp32 numbers near a million are 0.06 apart
        torch.testing.assert_close(marginals.sum(1), torch.ones(sum(lengths)), atol=1e-3, rtol=0)
    first = torch.tensor([0, *itertools.accumulate(lengths)][:-1])
    last = torch.tensor(lengths).cumsum(0) - 1
    assert (marginals[first][:, ~crf.starts] == 0).all()
    assert (marginals[last][:, ~crf.ends] == 0).all()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_forbidden_tag_with_high_emissions_is_ignored(scheme: str) -> None:
    names = SCHEMES[scheme]
    crf, lengths = randomized(masked(names)), [6, 1, 3]
    emissions = torch.zeros(10, len(names))
    emissions[:, names.index("I-PER")] = 1e6
    emissions.requires_grad_()
    decoded = crf.decode(emissions, lengths)
    assert [len(path) for path in decoded] == lengths
    assert all(valid(crf, path) for path in decoded)
    tags = torch.tensor([tag for path in decoded for tag in path])
    nll = crf(emissions, tags, lengths)
    assert (nll < 20).all(), "forbidden sequences count in the total"
    gradients = torch.autograd.grad(nll.sum(), (emissions, *crf.parameters()))
    assert all(g.isfinite().all() for g in gradients)
    assert (gradients[1][~crf.allowed] == 0).all()


def test_control_high_emissions_win_without_masks() -> None:
    emissions = torch.zeros(4, len(IOB2))
    emissions[:, 2] = 1e6
    assert randomized(CRF(len(IOB2))).decode(emissions, [4]) == [[2, 2, 2, 2]]


def test_decode_rejects_masks_without_allowed_tags() -> None:
    crf = CRF(2, starts=torch.tensor([True, False]), ends=torch.tensor([False, True]))
    assert crf.decode(torch.zeros(2, 2), [2]) == [[0, 1]]
    with pytest.raises(ValueError, match="allow no tags"):
        crf.decode(torch.zeros(3, 2), [2, 1])


def test_low_precision_inputs_are_computed_in_fp32() -> None:
    torch.manual_seed(2)
    lengths = [30, 4, 11]
    crf = randomized(masked(IOB2)).bfloat16()
    emissions = torch.randn(45, 5).bfloat16().requires_grad_()
    tags = torch.tensor([tag for path in crf.decode(emissions, lengths) for tag in path])
    exact = randomized(masked(IOB2))
    exact.load_state_dict(crf.state_dict())  # the same rounded values
    nll, marginals = crf(emissions, tags, lengths), crf.marginals(emissions, lengths)
    assert nll.dtype == marginals.dtype == torch.float32
    assert torch.equal(nll, exact(emissions.float(), tags, lengths))
    assert torch.equal(marginals, exact.marginals(emissions.float(), lengths))
    for dtype in (torch.float32, torch.float64):
        same = emissions.detach().to(dtype).requires_grad_()
        assert crf.decode(emissions, lengths) == exact.decode(same, lengths)
    for actual, expected in zip(
        torch.autograd.grad(nll.sum(), (emissions, *crf.parameters())),
        torch.autograd.grad(
            exact(emissions.float(), tags, lengths).sum(), (emissions, *exact.parameters())
        ),
        strict=True,
    ):
        assert actual.dtype == torch.bfloat16
        torch.testing.assert_close(actual.float(), expected.float(), atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("shift", [0.0, 1e4])
def test_long_sequence_is_finite_and_exact(shift: float) -> None:
    torch.manual_seed(3)
    lengths = [2000, 3]
    crf, emissions = randomized(masked(BIOES)), torch.randn(2003, len(BIOES)) * 3
    tags = torch.tensor([tag for path in crf.decode(emissions, lengths) for tag in path])
    inputs = (emissions + shift).double().requires_grad_()
    totals = torch.stack([log_total(crf, part) for part in inputs.split(lengths)])
    (expected,) = torch.autograd.grad(totals.sum(), inputs)
    torch.testing.assert_close(
        crf.marginals(emissions + shift, lengths).double(),
        expected,
        atol=2e-3 if not shift else 5e-3,  # fp32 numbers near 10,000 are 0.001 apart
        rtol=0,
    )
    gold = []
    for part, path in zip(inputs.split(lengths), tags.split(lengths), strict=True):
        score = part.gather(1, path[:, None]).sum() + crf.start[path[0]] + crf.end[path[-1]]
        gold.append(score + crf.transitions.double()[path[:-1], path[1:]].sum())
    nll = crf(emissions + shift, tags, lengths)
    torch.testing.assert_close(nll.double(), totals - torch.stack(gold), atol=1e-2, rtol=1e-4)


def test_result_does_not_depend_on_other_sequences() -> None:
    torch.manual_seed(4)
    lengths = [4, 9, 1, 9, 6]
    crf, emissions = randomized(masked(IOB2)), torch.randn(29, 5)
    together = crf.decode(emissions, lengths)
    tags = [torch.tensor(path) for path in together]
    nll, marginals = crf(emissions, torch.cat(tags), lengths), crf.marginals(emissions, lengths)
    for i, (part, rows) in enumerate(
        zip(emissions.split(lengths), marginals.split(lengths), strict=True)
    ):
        torch.testing.assert_close(crf(part, tags[i], [lengths[i]]), nll[i : i + 1])
        torch.testing.assert_close(crf.marginals(part, [lengths[i]]), rows)
        assert crf.decode(part, [lengths[i]]) == [together[i]]


def test_single_word_sequences_match_softmax() -> None:
    crf, emissions, tags = randomized(CRF(4)), torch.randn(6, 4), torch.randint(0, 4, (6,))
    scores = emissions + crf.start + crf.end
    expected = torch.nn.functional.cross_entropy(scores, tags, reduction="none")
    torch.testing.assert_close(crf(emissions, tags, [1] * 6), expected)
    torch.testing.assert_close(
        crf.marginals(emissions, [1] * 6), torch.softmax(scores, -1).detach()
    )
    assert crf.decode(emissions, [1] * 6) == scores.argmax(-1)[:, None].tolist()


def test_newly_initialized_crf_matches_softmax() -> None:
    emissions = torch.randn(7, 3)
    marginals = CRF(3).marginals(emissions, [5, 2])
    torch.testing.assert_close(marginals, torch.softmax(emissions, -1))


def test_marginals_match_in_inference_mode() -> None:
    crf = randomized(masked(IOB2))
    with torch.inference_mode():
        emissions = torch.randn(7, 5)
        inside = crf.marginals(emissions, [5, 2])
        assert len(crf.decode(emissions, [5, 2])) == 2
    torch.testing.assert_close(inside, crf.marginals(emissions.clone(), [5, 2]))


def test_masks_survive_construction_on_meta_device() -> None:
    with torch.device("meta"):
        crf = masked(IOB2)
        free = CRF(3)
    assert crf.transitions.is_meta
    crf, free = crf.bfloat16().to_empty(device="cpu"), free.to_empty(device="cpu")
    stored = (crf.allowed, crf.starts, crf.ends)
    for mask, expected in zip(stored, masks(IOB2), strict=True):
        assert torch.equal(mask, expected)
    assert free.allowed.all()
    assert free.starts.all()
    assert free.ends.all()
    assert set(crf.state_dict()) == {"transitions", "start", "end"}


def test_partition_function_counts_valid_sequences() -> None:
    """If all scores are zero, the partition function counts the valid sequences."""
    for names in SCHEMES.values():
        crf = masked(names)
        count = sum(valid(crf, path) for path in itertools.product(range(len(names)), repeat=4))
        nll = crf(torch.zeros(4, len(names)), torch.zeros(4, dtype=torch.int64), [4])
        assert nll.item() == pytest.approx(math.log(count), rel=1e-5)
