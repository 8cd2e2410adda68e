"""bf16 weights that work, fp32 weights that learn."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from bertkit.models.model import Model
from bertkit.nn.precision import add_up


class Masters:
    """The weights an optimizer moves: the model's own in fp32, or fp32 copies of bf16 ones.

    Small updates would vanish in bf16's eight bits; in the copies they add up. A frozen weight that
    bf16 holds exactly needs no copy.
    Source: Micikevicius et al. 2018, section 3.1.
    """

    def __init__(self, model: Model, dtype: torch.dtype) -> None:
        self.model, self.dtype = model, dtype
        self.weights: dict[str, Tensor]
        if dtype == torch.float32:
            self.weights = dict(model.named_parameters())
        else:
            fp32 = {name: _master(p, dtype) for name, p in model.named_parameters()}
            model.to(dtype)
            self.weights = {
                n: p if (w := fp32[n]) is None else w for n, p in model.named_parameters()
            }

    def whole(self) -> Model:
        """The model in fp32, with the weights that learn: what is saved."""
        if self.dtype == torch.float32:
            return self.model
        model = copy.deepcopy(self.model).float()
        model.load_state_dict(self.weights, strict=False)
        return model

    @torch.no_grad()
    def receive_gradients(self) -> None:
        """Add the gradients of the working weights to those of the masters, in fp32.

        After each batch of a step: in bf16 the later ones of hundreds would vanish in the sum.
        """
        if self.dtype != torch.float32:
            for name, p in self.model.named_parameters():
                if p.grad is not None:
                    weight = self.weights[name]
                    weight.grad = add_up(weight.grad, p.grad).float()
                    p.grad = None

    @torch.no_grad()
    def update_model(self) -> None:
        """Copy the masters to the working weights; frozen ones never differ."""
        if self.dtype != torch.float32:
            learned = [(n, p) for n, p in self.model.named_parameters() if p.requires_grad]
            working = [p.detach() for _, p in learned]
            torch._foreach_copy_(working, [self.weights[n].detach() for n, _ in learned])


def _master(p: Tensor, dtype: torch.dtype) -> Tensor | None:
    """The fp32 copy of a weight; None for one that is frozen and none the worse in the `dtype`."""
    if p.requires_grad:
        return p.detach().float().clone().requires_grad_()
    return None if torch.equal(p.detach().to(dtype).float(), p) else p.detach().float()
