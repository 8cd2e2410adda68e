"""Rotary position embeddings: queries and keys rotated by angles proportional to position.

Their dot products then depend on the distance of two tokens. Su et al. 2021, section 3.2.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from bertkit.batch import Packed

FEW_TOKENS = 64
"""Maximum number of tokens for which three operations on all values are faster than eight on
halves.
"""


@dataclass(frozen=True)
class Rotary:
    """Cosines and sines of the angles of each token. Shapes: cos, sin (R, 1, K / 2)."""

    cos: Tensor
    sin: Tensor
    _expanded: dict[tuple[int, int], tuple[Tensor, Tensor]] = field(default_factory=dict)

    @staticmethod
    def of(
        layout: Packed, base: float, *, rows: int, like: Tensor, width: int, factor: float = 1.0
    ) -> Rotary:
        """Compute the angles of each token's position. Rows after the layout's tokens are padding.

        Args:
            layout: The sequences.
            base: Base of the frequencies.
            rows: Number of rows R.
            like: Tensor whose device and dtype the angles have.
            width: Head dimension K.
            factor: Divisor of positions.
        """
        radians = angles(torch.arange(layout.longest, device=like.device), base, width, factor)
        positions = torch.nn.functional.pad(layout.positions, (0, rows - layout.total))
        cos, sin = (f.to(like.dtype)[positions][:, None] for f in (radians.cos(), radians.sin()))
        return Rotary(cos, sin)

    def expand(self, heads: int, rest: int) -> tuple[Tensor, Tensor]:
        """Return the factors of all values of all heads. The last `rest` heads are not rotated.

        The result is cached.

        Shapes:
            returns: (R, heads + rest, K) both.
        """
        if (heads, rest) not in self._expanded:
            cos, sin = (torch.cat(x, -1) for x in ((self.cos, self.cos), (-self.sin, self.sin)))
            unrotated = (len(cos), rest, cos.shape[-1])
            self._expanded[heads, rest] = (
                torch.cat([cos.expand(-1, heads, -1), cos.new_ones(unrotated)], 1),
                torch.cat([sin.expand(-1, heads, -1), sin.new_zeros(unrotated)], 1),
            )
        return self._expanded[heads, rest]


def angles(positions: Tensor, base: float, width: int, factor: float = 1.0) -> Tensor:
    """Compute position / factor / base^(2i / K), i < K / 2, for head dimension K = `width`.

    Shapes:
        positions: (T,).
        returns: (T, K / 2).
    """
    steps = torch.arange(0, width, 2, device=positions.device, dtype=torch.float32) / width
    return positions[:, None] * (base**-steps / factor)


def rotate(x: Tensor, rotary: Rotary, heads: int) -> Tensor:
    """Rotate the first `heads` heads; the remaining ones, such as values, do not change.

    Each value of the first half of a head is rotated with a value of the second half.

    Args:
        x: Heads of all tokens.
        rotary: The angles.
        heads: Number of heads to rotate.

    Shapes:
        x: (R, H, K).
        returns: (R, H, K).
    """
    if not torch.is_grad_enabled():
        few = x.shape[0] <= FEW_TOKENS and not torch.compiler.is_exporting()
        return _rotate_all(x, rotary, heads) if few else _rotate(x, rotary.cos, rotary.sin, heads)
    rotated: Tensor = _Rotate.apply(x, rotary.cos, rotary.sin, heads)  # type: ignore[no-untyped-call]
    return rotated


class _Rotate(torch.autograd.Function):
    """Rotation, whose gradient is the inverse rotation."""

    @staticmethod
    def forward(ctx, x: Tensor, cos: Tensor, sin: Tensor, heads: int) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(cos, sin)
        ctx.heads = heads
        return _rotate(x, cos, sin, heads)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[no-untyped-def]
        cos, sin = ctx.saved_tensors
        return _rotate(grad, cos, -sin, ctx.heads), None, None, None


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, heads: int) -> Tensor:
    out = torch.empty_like(x)
    a, b = x[:, :heads].chunk(2, -1)
    out_a, out_b = out[:, :heads].chunk(2, -1)
    torch.mul(a, cos, out=out_a).addcmul_(b, sin, value=-1)
    torch.mul(b, cos, out=out_b).addcmul_(a, sin)
    out[:, heads:] = x[:, heads:]
    return out


def _rotate_all(x: Tensor, rotary: Rotary, heads: int) -> Tensor:
    cos, sin = rotary.expand(heads, x.shape[1] - heads)
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)
