"""Rotary positions: queries and keys turned by angles that grow with the position.

Their products then depend on how far apart two tokens are. Su et al. 2021, section 3.2.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from bertkit.batch import Packed

FEW_TOKENS = 64
"""Tokens up to which three operations on all numbers are sooner done than eight on halves."""


@dataclass(frozen=True)
class Rotary:
    """The angles of each token. Shapes: cos, sin (R, 1, K / 2)."""

    cos: Tensor
    sin: Tensor
    _whole: dict[tuple[int, int], tuple[Tensor, Tensor]] = field(default_factory=dict)

    @staticmethod
    def of(
        layout: Packed, base: float, *, rows: int, like: Tensor, width: int, factor: float = 1.0
    ) -> Rotary:
        """Of each token's position; of the rows those behind the layout's tokens are padding."""
        turns = angles(torch.arange(layout.longest, device=like.device), base, width, factor)
        places = torch.nn.functional.pad(layout.positions, (0, rows - layout.total))
        cos, sin = (f.to(like.dtype)[places][:, None] for f in (turns.cos(), turns.sin()))
        return Rotary(cos, sin)

    def whole(self, heads: int, rest: int) -> tuple[Tensor, Tensor]:
        """The same for all numbers of all heads, of which the `rest` are not turned; made once.

        Shapes: (R, heads + rest, K) both.
        """
        if (heads, rest) not in self._whole:
            cos, sin = (torch.cat(x, -1) for x in ((self.cos, self.cos), (-self.sin, self.sin)))
            still = (len(cos), rest, cos.shape[-1])
            self._whole[heads, rest] = (
                torch.cat([cos.expand(-1, heads, -1), cos.new_ones(still)], 1),
                torch.cat([sin.expand(-1, heads, -1), sin.new_zeros(still)], 1),
            )
        return self._whole[heads, rest]


def angles(places: Tensor, base: float, width: int, factor: float = 1.0) -> Tensor:
    """Place / factor / base^(2i / K), i < K / 2, for heads of K = `width` numbers.

    Shapes: (T,) -> (T, K / 2).
    """
    steps = torch.arange(0, width, 2, device=places.device, dtype=torch.float32) / width
    return places[:, None] * (base**-steps / factor)


def rotate(x: Tensor, rotary: Rotary, heads: int) -> Tensor:
    """Turn the first `heads`, each number of their first half with one of the second; those
    behind them, such as values, stay.

    Shapes: x (R, H, K) -> the same.
    """
    if not torch.is_grad_enabled():
        few = x.shape[0] <= FEW_TOKENS and not torch.compiler.is_exporting()
        return _turned_whole(x, rotary, heads) if few else _turned(x, rotary.cos, rotary.sin, heads)
    turned: Tensor = _Rotate.apply(x, rotary.cos, rotary.sin, heads)  # type: ignore[no-untyped-call]
    return turned


class _Rotate(torch.autograd.Function):
    """Its gradient is turned back."""

    @staticmethod
    def forward(ctx, x: Tensor, cos: Tensor, sin: Tensor, heads: int) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(cos, sin)
        ctx.heads = heads
        return _turned(x, cos, sin, heads)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[no-untyped-def]
        cos, sin = ctx.saved_tensors
        return _turned(grad, cos, -sin, ctx.heads), None, None, None


def _turned(x: Tensor, cos: Tensor, sin: Tensor, heads: int) -> Tensor:
    out = torch.empty_like(x)
    a, b = x[:, :heads].chunk(2, -1)
    into_a, into_b = out[:, :heads].chunk(2, -1)
    torch.mul(a, cos, out=into_a).addcmul_(b, sin, value=-1)
    torch.mul(b, cos, out=into_b).addcmul_(a, sin)
    out[:, heads:] = x[:, heads:]
    return out


def _turned_whole(x: Tensor, rotary: Rotary, heads: int) -> Tensor:
    cos, sin = rotary.whole(heads, x.shape[1] - heads)
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)
