"""The loss without stored logits matches the plain loss in values and gradients."""

import pytest
import torch
from torch.nn import functional as F

from bertkit.nn import cross_entropy
from bertkit.nn.cross_entropy import linear_cross_entropy


@pytest.mark.parametrize(
    ("biased", "smoothing", "z_loss"),
    [(True, 0.0, 0.0), (False, 0.0, 0.0), (True, 0.1, 0.0), (True, 0.0, 0.03), (False, 0.1, 0.03)],
)
@pytest.mark.parametrize("rows", [1, 7, 512, 513, 1100])
def test_loss_matches_plain_loss(
    rows: int, biased: bool, smoothing: float, z_loss: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cross_entropy, "MAX_BYTES", 512 * 50 * 8)
    x = torch.randn(rows, 16, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(50, 16, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(50, dtype=torch.float64, requires_grad=True) if biased else None
    learned = [weight for weight in (x, weight, bias) if weight is not None]
    targets = torch.randint(0, 50, (rows,))
    loss, correct = linear_cross_entropy(x, weight, bias, targets, smoothing, z_loss)
    logits = F.linear(x, weight, bias)
    plain = F.cross_entropy(logits, targets, reduction="sum", label_smoothing=smoothing)
    plain = plain + z_loss * logits.logsumexp(-1).square().sum()
    torch.testing.assert_close(loss.double(), plain, rtol=1e-5, atol=1e-4)
    assert correct.item() == (logits.argmax(-1) == targets).sum().item()
    actual = torch.autograd.grad(3 * loss, learned)
    expected = torch.autograd.grad(3 * plain, learned)
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.bf16
def test_correct_predictions_are_counted_in_bf16() -> None:
    x, weight = torch.randn(600, 16).bfloat16() * 3, torch.randn(50, 16).bfloat16()
    targets = torch.randint(0, 50, (600,))
    targets[:200] = F.linear(x, weight)[:200].argmax(-1)
    _, correct = linear_cross_entropy(x, weight, None, targets)
    p = torch.softmax(F.linear(x, weight), -1)
    assert correct.item() == (p.gather(1, targets[:, None])[:, 0] >= p.amax(-1)).sum().item() > 200
    assert torch.equal(cross_entropy._row_max(p), p.amax(-1))


def test_frozen_weights_do_not_change_state_gradient() -> None:
    x, weight = torch.randn(9, 4, requires_grad=True), torch.randn(20, 4, requires_grad=True)
    targets = torch.randint(0, 20, (9,))
    (expected, _) = torch.autograd.grad(
        linear_cross_entropy(x, weight, None, targets)[0], [x, weight]
    )
    loss, _ = linear_cross_entropy(x, weight.detach(), None, targets)
    loss.backward()
    assert x.grad is not None
    assert torch.equal(x.grad, expected)


def test_empty_targets_have_zero_loss() -> None:
    loss, correct = linear_cross_entropy(
        torch.empty(0, 4), torch.randn(9, 4), torch.zeros(9), torch.empty(0, dtype=torch.int64)
    )
    assert loss.item() == 0.0
    assert correct.item() == 0


@pytest.mark.bf16
@pytest.mark.parametrize(("smoothing", "z_loss"), [(0.0, 0.0), (0.1, 0.0), (0.0, 0.03)])
@pytest.mark.parametrize("rows", [3, 200])
def test_bf16_loss_and_gradients_match_fp32_approximately(
    rows: int, smoothing: float, z_loss: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cross_entropy, "MAX_BYTES", 64 * 5000 * 2)
    targets = torch.randint(0, 5000, (rows,))
    inputs = torch.randn(rows, 32), torch.randn(5000, 32), torch.randn(5000)
    actual = [x.bfloat16().requires_grad_() for x in inputs]
    plain = [x.detach().float().requires_grad_() for x in actual]
    loss, correct = linear_cross_entropy(*actual, targets, smoothing, z_loss)
    logits = F.linear(*plain)
    expected = F.cross_entropy(logits, targets, reduction="sum", label_smoothing=smoothing)
    expected = expected + z_loss * logits.logsumexp(-1).square().sum()
    assert loss.dtype == torch.float32
    assert correct.item() <= rows
    torch.testing.assert_close(loss, expected, rtol=3e-3, atol=0.0)
    for a, b in zip(
        torch.autograd.grad(loss, actual), torch.autograd.grad(expected, plain), strict=True
    ):
        assert a.shape == b.shape
        assert (a.float() - b).norm() < 0.02 * b.norm()


def test_small_z_loss_changes_bf16_gradients() -> None:
    x, weight = torch.randn(4096, 8).bfloat16(), (torch.randn(40, 8) * 0.1).bfloat16()
    targets = torch.randint(0, 40, (4096,))

    def sum_of_gradients(z_loss: float) -> float:
        """Return the sum over all logits: 2 z log Z per row, and 0 for the cross-entropy."""
        bias = torch.zeros(40).bfloat16().requires_grad_()
        loss, _ = linear_cross_entropy(x, weight, bias, targets, z_loss=z_loss)
        return float(torch.autograd.grad(loss, bias)[0].float().sum())

    log_z = F.linear(x.float(), weight.float()).logsumexp(-1).sum().item()
    assert sum_of_gradients(1e-4) == pytest.approx(2e-4 * log_z, rel=0.3)
    assert sum_of_gradients(1e-3) == pytest.approx(2e-3 * log_z, rel=0.1)


def test_bf16_gradients_accumulate_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = torch.randn(8192, 8).bfloat16(), (torch.randn(40, 8) * 0.1).bfloat16()
    bias, targets = torch.zeros(40).bfloat16(), torch.randint(0, 40, (8192,))

    def gradients() -> tuple[torch.Tensor, ...]:
        copies = [weight.clone().requires_grad_(), bias.clone().requires_grad_()]
        return torch.autograd.grad(linear_cross_entropy(x, *copies, targets)[0], copies)

    whole = weight.double().requires_grad_(), bias.double().requires_grad_()
    plain = F.cross_entropy(F.linear(x.double(), *whole), targets, reduction="sum")
    exact = torch.autograd.grad(plain, whole)

    def errors() -> list[float]:
        return [float((a - b).norm() / b.norm()) for a, b in zip(gradients(), exact, strict=True)]

    monkeypatch.setattr(cross_entropy, "MAX_BYTES", 32 * 40 * 2)
    assert max(errors()) < 0.01
    monkeypatch.setattr(cross_entropy, "add_up", lambda a, b: b if a is None else a.add_(b))
    assert min(errors()) > 0.015  # the control: sums in bf16
