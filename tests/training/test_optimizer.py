"""Weight decay, learning rates, and updates of AdamW and Muon."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from tests.factories import tiny_config, tiny_model
from torch import Tensor

from bertkit.errors import ConfigError
from bertkit.extensions.classic.families.lstm import LSTM_LM
from bertkit.extensions.generation.families.bart import BART
from bertkit.extensions.generation.families.gpt2 import GPT2
from bertkit.extensions.generation.families.marian import MARIAN
from bertkit.extensions.generation.families.t5 import T5
from bertkit.families import ELECTRA, Family
from bertkit.models.config import AttentionSettings, NormSettings
from bertkit.models.model import Model, build
from bertkit.objectives.replaced_tokens import Generator, with_generator
from bertkit.training import optimizer as optim
from bertkit.training.distributed import Ranks
from bertkit.training.optimizer import CRF_RATE, OPTIMIZERS, Sharded, adamw, muon, orthogonalize


def test_matrices_decay_and_biases_and_norms_do_not() -> None:
    weights = dict(tiny_model(20, "mlm", "nsp").named_parameters())
    optimizer = adamw(weights, learning_rate=0.1, weight_decay=0.5)
    decay = {id(p): g["weight_decay"] for g in optimizer.param_groups for p in g["params"]}
    assert len(decay) == len(weights)
    for name, weight in weights.items():
        plain = name.endswith("bias") or "norm" in name
        assert decay[id(weight)] == (0.0 if plain else 0.5), name


def test_weight_decay_shrinks_weights_without_gradient() -> None:
    weights = {"w": torch.ones(2, 2, requires_grad=True), "b": torch.ones(2, requires_grad=True)}
    optimizer = adamw(weights, learning_rate=0.1, weight_decay=0.5)
    for weight in weights.values():
        weight.grad = torch.zeros_like(weight)
    optimizer.step()
    assert torch.allclose(weights["w"], torch.tensor(1.0 - 0.1 * 0.5))
    assert torch.equal(weights["b"], torch.ones(2))


def test_adamw_matches_torch_bit_for_bit() -> None:
    sizes, betas = {"a": (3, 70), "b": (70,), "c": (2, 2)}, (0.8, 0.98)

    def learned(make: str) -> list[Tensor]:
        torch.manual_seed(0)
        weights = {name: torch.randn(size).requires_grad_() for name, size in sizes.items()}
        if make == "torch":
            groups = [
                {"params": [weights["a"], weights["c"]], "weight_decay": 0.5},
                {"params": [weights["b"]], "weight_decay": 0.0},
            ]
            optimizer: Any = torch.optim.AdamW(groups, lr=0.1, betas=betas, eps=1e-6, fused=True)
        else:
            optimizer = adamw(weights, learning_rate=0.1, weight_decay=0.5, betas=betas)
        for step in range(5):
            for name, weight in weights.items():
                weight.grad = torch.randn_like(weight) if name != "c" or step > 2 else None
            if make == "slower":
                for group in optimizer.param_groups:
                    group["lr"] = 0.0999
            optimizer.step()
            optimizer.zero_grad()
            assert all(weight.grad is None for weight in weights.values())
        return [*weights.values()]

    assert all(map(torch.equal, learned("bertkit"), learned("torch")))
    assert not torch.equal(learned("slower")[0], learned("torch")[0])  # Control.


def test_optimizers_do_not_import_torch_compiler() -> None:
    """Importing the compiler takes about one second per process."""
    code = (
        "import sys, torch\n"
        "from bertkit.training.optimizer import adamw, muon\n"
        "names = 'encoder.blocks.0.feedforward.up.weight', 'encoder.norm.weight'\n"
        "weights = {n: torch.ones(4, 4, requires_grad=True) for n in names}\n"
        "for make in adamw, muon:\n"
        "    optimizer = make(weights, learning_rate=0.1, weight_decay=0.1)\n"
        "    sum(w.square().sum() for w in weights.values()).backward()\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n"
        "print('torch._dynamo' in sys.modules)\n"
        "torch.optim.SGD([torch.ones(1)])\n"  # Control.
        "print('torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["False", "True"]


def test_adamw_without_matrices_has_one_group() -> None:
    assert len(adamw({"b": torch.ones(2)}, learning_rate=0.1, weight_decay=0.5).param_groups) == 1


def test_layer_decay_reduces_rates_of_lower_layers() -> None:
    model = tiny_model(20, "classify", labels=("a", "b"), layers=2)
    weights = dict(model.named_parameters())
    optimizer = adamw(weights, learning_rate=0.1, weight_decay=0.5, layer_decay=0.5)
    rates = {id(p): g["lr"] for g in optimizer.param_groups for p in g["params"]}
    assert len(rates) == len(weights)
    for name, weight in weights.items():
        below = next((b for part, b in DEPTHS.items() if name.startswith(part)), 0)
        assert rates[id(weight)] == 0.1 * 0.5**below, name
    assert optimizer.param_groups[0]["lr"] == 0.1  # The journal records it.


def test_layer_decay_applies_to_lstm_layers() -> None:
    model = tiny_model(20, "lm", family=LSTM_LM, layers=3)
    weights = dict(model.named_parameters())
    optimizer = adamw(weights, learning_rate=0.1, weight_decay=0.0, layer_decay=0.5)
    rates = {id(p): g["lr"] for g in optimizer.param_groups for p in g["params"]}
    found = {name: rates[id(weight)] for name, weight in weights.items()}
    assert found["heads.lm.bias"] == 0.1
    for layer, part in itertools.product(range(3), ("weight_ih", "weight_hh", "bias_ih")):
        assert found[f"encoder.lstm.{part}_l{layer}"] == pytest.approx(0.1 * 0.5 ** (3 - layer))
    assert found["encoder.embedding.tokens.weight"] == pytest.approx(0.1 * 0.5**4)


def test_crf_has_separate_rate_and_no_decay() -> None:
    model = tiny_model(20, "crf", labels=("O", "B-x", "I-x"), layers=2)
    weights = dict(model.named_parameters())
    for layer_decay in (1.0, 0.5):
        optimizer = adamw(weights, learning_rate=0.1, weight_decay=0.5, layer_decay=layer_decay)
        groups = {id(p): g for g in optimizer.param_groups for p in g["params"]}
        assert len(groups) == len(weights)
        for name in ("transitions", "start", "end"):
            group = groups[id(weights[f"heads.crf.crf.{name}"])]
            assert (group["lr"], group["weight_decay"]) == (0.1 * CRF_RATE, 0.0)
        for name in ("heads.crf.out.weight", "encoder.blocks.1.feedforward.up.weight"):
            group = groups[id(weights[name])]
            assert group["lr"] in (0.1, 0.1 * layer_decay)
            assert group["weight_decay"] == 0.5
        assert optimizer.param_groups[0]["lr"] == 0.1  # The journal records it.


DEPTHS = {"encoder.embedding.": 3, "encoder.blocks.0.": 2, "encoder.blocks.1.": 1}


NORM = NormSettings(place="pre", final=True)


def test_final_norm_uses_the_last_layer_rate() -> None:
    model = tiny_model(20, "classify", labels=("a", "b"), layers=2, norm=NORM)
    weights = dict(model.named_parameters())
    optimizer = adamw(weights, learning_rate=0.1, weight_decay=0.5, layer_decay=0.5)
    rates = {id(p): g["lr"] for g in optimizer.param_groups for p in g["params"]}
    assert rates[id(weights["heads.classify.out.weight"])] == 0.1
    for name in (
        "encoder.norm.weight",
        "encoder.norm.bias",
        "encoder.blocks.1.attention.out.weight",
    ):
        assert rates[id(weights[name])] == pytest.approx(0.1 * 0.5), name
    below = weights["encoder.embedding.norm.weight"]  # Control: the norm of the embedding.
    assert rates[id(below)] == pytest.approx(0.1 * 0.5**3)


def orthogonal(step: torch.Tensor) -> bool:
    """Return whether an update is nearly orthogonal and as large as an AdamW update."""
    sizes = torch.linalg.svdvals(step) / (0.2 * max(step.shape) ** 0.5)
    return bool((sizes > 0.4).all() and (sizes < 1.4).all())


def test_optimizers_use_the_given_betas() -> None:
    weights = {"encoder.blocks.0.w": torch.ones(2, 2), "b": torch.ones(2)}
    for make in (adamw, muon):
        optimizer = make(weights, learning_rate=0.1, weight_decay=0.5, betas=(0.8, 0.98))
        betas = [group["betas"] for group in optimizer.param_groups if "betas" in group]
        assert betas
        assert set(betas) == {(0.8, 0.98)}


@pytest.mark.parametrize(("kv_heads", "rows"), [(4, [8, 8, 8]), (1, [8, 2, 2])])
def test_muon_updates_layer_matrices_and_adamw_the_rest(kv_heads: int, rows: list[int]) -> None:
    attention = AttentionSettings(kv_heads=kv_heads)
    model = tiny_model(20, "mlm", hidden=8, heads=4, layers=2, attention=attention)
    weights = dict(model.named_parameters())
    before = {name: weight.detach().clone() for name, weight in weights.items()}
    optimizer = muon(weights, learning_rate=0.1, weight_decay=0.0)
    moved = [id(p) for g in optimizer.param_groups for p in g["params"]]
    assert sorted(moved) == sorted(map(id, weights.values()))
    for weight in weights.values():
        weight.grad = torch.randn_like(weight)
    optimizer.step()
    for name, weight in weights.items():
        matrix = name.startswith("encoder.blocks.") and weight.ndim == 2
        state = {"momentum_buffer"} if matrix else {"step", "exp_avg", "exp_avg_sq"}
        assert set(optimizer.state[weight]) == state, name
        step = (weight.detach() - before[name]) / 0.1
        if matrix:
            for part in step.split(rows if name.endswith("qkv.weight") else len(step)):
                assert orthogonal(part), name
        else:  # The first AdamW update has size one.
            assert torch.allclose(step.abs(), torch.ones(()), atol=1e-2), name
    optimizer.zero_grad()
    assert all(weight.grad is None for weight in weights.values())


STACKS = {"qkv.weight": 3, "cross.kv.weight": 2}


def pretraining_model(family: Family) -> Model:
    """Build the model that a family pretrains, with its decoder or ELECTRA's generator."""
    config, decoder = tiny_config(20, family=family), family.decoder
    if decoder is not None:
        return build(config, ("lm",), decoder=tiny_config(20, family=decoder))
    if family is ELECTRA:
        shape = Generator(hidden=8, heads=2, intermediate=16)
        return with_generator(build(config, ("rtd",)), shape)[0]
    return build(config, ("lm",))


@pytest.mark.parametrize("family", [BART, T5, MARIAN, GPT2, ELECTRA], ids=lambda f: f.name)
def test_muon_updates_the_matrices_of_all_layers(family: Family) -> None:
    weights = dict(pretraining_model(family).named_parameters())
    before = {name: weight.detach().clone() for name, weight in weights.items()}
    stacks = {
        name: next((n for end, n in STACKS.items() if name.endswith(end)), 1)
        for name, weight in weights.items()
        if ".blocks." in name and weight.ndim == 2
    }
    optimizer = muon(weights, learning_rate=0.1, weight_decay=0.0)
    for name, weight in weights.items():
        weight.grad = torch.randn_like(weight)
        for i, part in enumerate(weight.grad.chunk(stacks.get(name, 1))):
            if name in stacks:  # Use very different scales to detect a joint update.
                part.copy_(10.0**i * torch.nn.init.orthogonal_(torch.empty_like(part)))
    optimizer.step()
    assert {n for n, w in weights.items() if "momentum_buffer" in optimizer.state[w]} == {*stacks}
    for name, parts in stacks.items():
        step = (weights[name].detach() - before[name]) / 0.1
        assert all(orthogonal(part) for part in step.chunk(parts)), name


@pytest.mark.parametrize("parts", STACKS.values())
def test_control_joint_update_has_no_orthogonal_parts(parts: int) -> None:
    weight = torch.zeros(8 * parts, 8, requires_grad=True)
    weight.grad = torch.randn(8 * parts, 8)
    torch.optim.Muon([weight], lr=1.0, weight_decay=0.0, adjust_lr_fn="match_rms_adamw").step()
    assert not all(orthogonal(part) for part in weight.detach().chunk(parts))


@pytest.mark.parametrize("bf16", [True, False])
def test_muon_matches_torch(bf16: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Updates are equal in bf16 and close in fp32."""
    monkeypatch.setattr(optim, "bf16_is_faster", lambda device: bf16)
    shapes = {"encoder.blocks.0.up": (24, 8), "encoder.blocks.0.down": (8, 24)}
    initial = {name: torch.randn(shape) for name, shape in shapes.items()}
    bertkit_weights, torch_weights = (
        {n: w.clone().requires_grad_() for n, w in initial.items()} for _ in range(2)
    )
    rest = {"b": torch.zeros(2, requires_grad=True)}
    optimizers = (
        muon({**bertkit_weights, **rest}, learning_rate=0.1, weight_decay=0.2, momentum=0.9),
        torch.optim.Muon(
            [*torch_weights.values()],
            lr=0.1,
            weight_decay=0.2,
            momentum=0.9,
            adjust_lr_fn="match_rms_adamw",
        ),
    )
    for _ in range(3):
        gradients = {name: torch.randn(shape) for name, shape in shapes.items()}
        for weights, optimizer in zip((bertkit_weights, torch_weights), optimizers, strict=True):
            for name, weight in weights.items():
                weight.grad = gradients[name].clone()
            optimizer.step()
    for name, weight in bertkit_weights.items():
        gap = (weight - torch_weights[name]).abs().max().item()
        assert gap == 0.0 if bf16 else 0.0 < gap < 0.1, name
        assert (weight - initial[name]).abs().max().item() > 0.1  # Control: the weight has changed.


def test_muon_computes_in_fp32_if_bf16_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[torch.dtype] = set()

    def recorded(matrix: Tensor) -> Tensor:
        seen.add(matrix.dtype)
        return orthogonalize(matrix)

    monkeypatch.setattr(optim, "orthogonalize", recorded)
    for fast, dtype in ((False, torch.float32), (True, torch.bfloat16)):
        monkeypatch.setattr(optim, "bf16_is_faster", lambda device, fast=fast: fast)
        weights = dict(tiny_model(20, "mlm").named_parameters())
        optimizer = muon(weights, learning_rate=0.1, weight_decay=0.0)
        for weight in weights.values():
            weight.grad = torch.randn_like(weight)
        seen.clear()
        optimizer.step()
        assert seen == {dtype}


def test_adamw_part_of_muon_has_separate_settings() -> None:
    weights = dict(tiny_model(20, "mlm").named_parameters())
    optimizer = muon(
        weights, learning_rate=0.1, weight_decay=0.5, momentum=0.8, adamw_learning_rate=0.01,
        adamw_weight_decay=0.2, eps=1e-8, embedding_learning_rate=0.03,
    )  # fmt: skip
    groups = {id(p): g for g in optimizer.param_groups for p in g["params"]}
    matrix = groups[id(weights["encoder.blocks.0.feedforward.up.weight"])]
    table = groups[id(weights["encoder.embedding.tokens.weight"])]
    bias = groups[id(weights["heads.mlm.bias"])]
    assert (matrix["lr"], matrix["weight_decay"], matrix["momentum"]) == (0.1, 0.5, 0.8)
    assert (table["lr"], table["weight_decay"], table["eps"]) == (0.03, 0.2, 1e-8)
    assert (bias["lr"], bias["weight_decay"]) == (0.01, 0.0)
    assert optimizer.param_groups[0] is matrix  # The journal records it.


def test_embeddings_can_have_a_separate_learning_rate() -> None:
    weights = dict(tiny_model(20, "mlm", layers=2).named_parameters())
    for rate in (0.01, 1.0):
        optimizer = adamw(
            weights, learning_rate=0.1, weight_decay=0.5, embedding_learning_rate=rate
        )
        assert optimizer.param_groups[0]["lr"] == 0.1  # The journal records it.
        rates = {id(p): g["lr"] for g in optimizer.param_groups for p in g["params"]}
        own = {name for name, weight in weights.items() if rates[id(weight)] == rate}
        assert own == {f"encoder.embedding.{n}.weight" for n in ("tokens", "positions", "types")}
        others = {rates[id(weight)] for name, weight in weights.items() if name not in own}
        assert others == {0.1}


def test_optimizers_reject_models_without_required_weights() -> None:
    with pytest.raises(ConfigError, match=r"embedding_learning_rate requires an embedding"):
        adamw(
            {"b": torch.ones(2)}, learning_rate=0.1, weight_decay=0.5, embedding_learning_rate=1.0
        )
    weights = dict(tiny_model(20, "lm", family=LSTM_LM).named_parameters())
    with pytest.raises(ConfigError, match=r'"muon" requires attention'):
        muon(weights, learning_rate=0.1, weight_decay=0.5)


def test_muon_stores_one_momentum_per_weight() -> None:
    """A checkpoint stores the momentum under the name of the weight."""
    name = "encoder.blocks.0.attention.qkv.weight"
    out = name.replace("qkv", "out")
    weights = {name: torch.zeros(24, 8, requires_grad=True), "b": torch.zeros(2)}
    weights[out] = torch.zeros(8, 8, requires_grad=True)
    optimizer = muon(weights, learning_rate=0.1, weight_decay=0.0)
    gradients = torch.randn(2, 24, 8)
    for gradient in gradients:
        weights[name].grad = gradient.clone()
        optimizer.step()
    stored = optimizer.state[weights[name]]["momentum_buffer"]
    assert torch.allclose(stored, 0.05 * (0.95 * gradients[0] + gradients[1]), atol=1e-6)
    assert [w for w in optimizer.state if w.ndim == 2] == [weights[name]]


@dataclass(frozen=True)
class RecordingRanks(Ranks):
    """A process that records the requested broadcasts and receives nothing."""

    received: dict[int, list[Tensor]] = field(default_factory=dict)

    def broadcast(self, weights: Iterable[Tensor], owner: int) -> None:
        self.received[owner] = list(weights)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_sharded_updates_match_a_single_process(name: str) -> None:
    def learned(ranks: Ranks | None) -> tuple[dict[str, Tensor], torch.optim.Optimizer]:
        weights = dict(tiny_model(20, "mlm", seed=3).named_parameters())
        weights["still"] = torch.zeros(3, requires_grad=True)  # It has no gradient.
        optimizer = OPTIMIZERS[name](weights, learning_rate=0.1, weight_decay=0.1)
        if ranks is not None:
            optimizer = Sharded(optimizer, weights, ranks)
        generator = torch.Generator().manual_seed(1)
        for _ in range(3):
            for key, weight in weights.items():
                if key != "still":
                    weight.grad = torch.randn(weight.shape, generator=generator)
            optimizer.step()
            optimizer.zero_grad()
        return weights, optimizer

    unsharded, _ = learned(None)
    initial = dict(tiny_model(20, "mlm", seed=3).named_parameters())
    stored: list[set[str]] = []
    for rank in range(3):
        ranks = RecordingRanks(rank, 3)
        weights, optimizer = learned(ranks)
        assert isinstance(optimizer, Sharded)
        own = {key for key in weights if optimizer.owns(key)} - {"still"}
        for key in initial:
            expected = unsharded if key in own else initial
            assert torch.equal(weights[key], expected[key]), key
        assert {id(w) for w in optimizer.state if optimizer.state[w]} == {
            id(weights[key]) for key in own
        }
        given = itertools.chain(*ranks.received.values())
        assert {id(w) for w in given} == {id(weights[key]) for key in initial}
        stored.append(own)
    assert sorted(itertools.chain(*stored)) == sorted(initial)
