"""Rotary position embeddings, which rotate queries and keys by angles proportional to the position.

The dot product of a query and a key then depends on the distance between the two tokens. Su et al.
2021, section 3.2.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from bertkit.batch import Packed

FEW_TOKENS = 64
"""Maximum number of tokens for which it is faster to rotate by three operations on all values than
by eight operations on half of the values.
"""


@dataclass(frozen=True)
class Rotary:
    """Cosines and sines of the rotation angles of each token. Shapes: cos, sin (R, 1, K / 2)."""

    cos: Tensor
    sin: Tensor
    _expanded: dict[tuple[int, int], tuple[Tensor, Tensor]] = field(default_factory=dict)

    @staticmethod
    def of(
        layout: Packed, base: float, *, rows: int, like: Tensor, width: int, factor: float = 1.0
    ) -> Rotary:
        """Compute the rotation angles for the position of each token.

        Args:
            layout: Layout of the sequences.
            base: RoPE base.
            rows: Number of rows R. Rows after the tokens of the layout are padding.
            like: Tensor that determines the device and the dtype.
            width: Head dimension K.
            factor: Factor by which positions are divided.
        """
        radians = angles(torch.arange(layout.longest, device=like.device), base, width, factor)
        positions = torch.nn.functional.pad(layout.positions, (0, rows - layout.total))
        cos, sin = (f.to(like.dtype)[positions][:, None] for f in (radians.cos(), radians.sin()))
        return Rotary(cos, sin)

    def expand(self, heads: int, rest: int) -> tuple[Tensor, Tensor]:
        """Expand the cosines and sines to all values of all heads. The result is cached.

        Args:
            heads: Number of heads to rotate.
            rest: Number of heads after them that are not rotated.

        Returns:
            Cosines and sines. They are 1 and 0 for the heads that are not rotated.

        Shapes:
            returns: (R, heads + rest, K) and (R, heads + rest, K).
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
    """Compute the angles position / factor / base^(2i / K) for i < K / 2, with K = `width`.

    Shapes:
        positions: (T,).
        returns: (T, K / 2).
    """
    steps = torch.arange(0, width, 2, device=positions.device, dtype=torch.float32) / width
    return positions[:, None] * (base**-steps / factor)


def rotate(x: Tensor, rotary: Rotary, heads: int) -> Tensor:
    """Rotate the first `heads` heads. The remaining heads, such as values, do not change.

    Each number in the first half of a head forms a pair with a number in the second half, and the
    pair is rotated.

    Args:
        x: Heads of all tokens.
        rotary: Rotation angles of the tokens.
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
    """Autograd function that rotates. Its gradient is the inverse rotation."""

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
