"""Models of an encoder and named heads."""

import pytest
import torch
from tests.factories import tiny_config

from bertkit.batch import Batch, Packed
from bertkit.errors import ConfigError
from bertkit.models.heads import Pooler
from bertkit.models.model import HEADS, build, empty
from bertkit.models.transformer import pad_rows

CONFIG = tiny_config(3000, hidden=64, layers=2, heads=4, intermediate=128, length=512)


def test_mlm_head_shares_embedding_matrix() -> None:
    model = build(CONFIG, ("mlm",))
    names = [name for name, p in model.named_parameters() if p.shape[:1] == (3000,)]
    assert names == ["encoder.embedding.tokens.weight", "heads.mlm.bias"]
    assert model.heads["mlm"].weight is model.encoder.embedding.tokens.weight


@pytest.mark.parametrize("head", HEADS)
def test_head_output_has_expected_shape(head: str) -> None:
    model = build(CONFIG, (head,), labels=("O", "B-x", "I-x")).eval()
    layout = Packed.of([2, 3, 7])
    masked = torch.tensor([1, 6])
    batch = Batch(torch.arange(12), torch.zeros(12, dtype=torch.long), layout, masked)
    shapes = {"mlm": (2, 3000), "lm": (2, 3000), "nsp": (3, 2), "sop": (3, 2), "pooler": (3, 64)}
    shapes |= {
        "classify": (3, 3),
        "choose": (3, 1),
        "answer": (12, 2),
        "tag": (2, 3),
        "crf": (2, 3),
        "rtd": (12,),
        "vector": (3, 3),
    }
    assert model(batch)[head].shape == shapes[head]


def test_build_rejects_invalid_heads() -> None:
    with pytest.raises(ConfigError, match="did you mean 'nsp'"):
        build(CONFIG, ("nspp",))
    with pytest.raises(ConfigError, match="classify requires label names"):
        build(CONFIG, ("classify",))


def test_build_supports_custom_heads() -> None:
    model = build(CONFIG, {"own": lambda encoder: Pooler(encoder.config)})
    assert isinstance(model.heads["own"], Pooler)
    assert (model.heads["own"].transform.dense.bias == 0).all()


def test_empty_model_has_weights_on_meta_device() -> None:
    hollow, full = empty(CONFIG, ("mlm",), labels=()), build(CONFIG, ("mlm",))
    assert all(p.is_meta for p in hollow.parameters())
    assert {n: p.shape for n, p in hollow.named_parameters()} == {
        n: p.shape for n, p in full.named_parameters()
    }


def test_padding_rows_do_not_change_output() -> None:
    """The encoder adds padding rows, which do not change the output."""
    model = build(CONFIG, ()).eval()
    sizes = [30, 31, 32, 40]
    layout = Packed.of(sizes)
    assert pad_rows(layout.total) == 136 > layout.total == 133
    ids = torch.randint(0, 3000, (layout.total,))
    with torch.no_grad():
        together = model.encoder(Batch(ids, torch.zeros_like(ids), layout))
        assert together.shape == (133, 64)
        for size, sequence, part in zip(
            sizes, ids.split(sizes), together.split(sizes), strict=True
        ):
            alone = model.encoder(Batch(sequence, torch.zeros_like(sequence), Packed.of([size])))
            torch.testing.assert_close(part, alone, atol=1e-5, rtol=1e-4)


def test_pad_rows_returns_few_distinct_values() -> None:
    found = {pad_rows(tokens) for tokens in range(1024, 2048)}
    assert len(found) == 33
    assert all(tokens <= pad_rows(tokens) <= tokens * 33 / 32 for tokens in range(1, 3000))


@pytest.mark.bf16
def test_bf16_training_pads_rows_to_multiple_of_32() -> None:
    assert [pad_rows(tokens, multiple_of=32) for tokens in (1, 32, 33, 400, 2050)] == [
        *(32, 32, 64, 416, 2112)
    ]
    model, ids = build(CONFIG, ()).bfloat16().eval(), torch.randint(0, 3000, (100,))
    batch, rows = Batch(ids, torch.zeros_like(ids), Packed.of([40, 60])), []
    model.encoder.blocks[0].register_forward_pre_hook(lambda _, given: rows.append(len(given[0])))
    learning = model.encoder(batch)
    with torch.no_grad():
        still = model.encoder(batch)
    assert rows == [128, 100]
    assert learning.shape == still.shape == (100, 64)
    torch.testing.assert_close(learning, still, atol=0.05, rtol=0.05)


@pytest.mark.bf16
def test_bf16_training_pads_rows_of_mlm_head() -> None:
    head, rows = build(CONFIG, ("mlm",)).bfloat16().eval().heads["mlm"], []
    states = torch.randn(100, 64).bfloat16().requires_grad_()
    token_indices = torch.tensor([3, 50, 99])
    batch = Batch(
        torch.zeros(100, dtype=torch.int64),
        torch.zeros(100, dtype=torch.int64),
        Packed.of([40, 60]),
        token_indices=token_indices,
    )
    head.dense.register_forward_pre_hook(lambda _, given: rows.append(len(given[0])))
    learning = head.features(states, batch)
    with torch.no_grad():
        still = head.features(states, batch)
    assert rows == [32, 3]
    assert learning.shape == still.shape
    torch.testing.assert_close(learning, still, atol=0.05, rtol=0.05)
    (gradient,) = torch.autograd.grad((learning * torch.randn_like(learning)).sum(), states)
    assert gradient.any(1).nonzero().flatten().tolist() == token_indices.tolist()
