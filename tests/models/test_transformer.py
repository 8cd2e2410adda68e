"""Decoders are causal and attend only to the encoder states of their source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest
import torch
from tests.factories import tiny_config
from torch import Tensor, nn

from bertkit.batch import Batch, Packed
from bertkit.errors import ConfigError
from bertkit.models.config import TransformerConfig
from bertkit.models.model import Model, build
from bertkit.models.transformer import Transformer

SHAPE = {"hidden": 32, "layers": 3, "heads": 4, "intermediate": 48, "length": 64, "dropout": 0.0}
VOCAB = 50


def settings(**more: object) -> TransformerConfig:
    return tiny_config(VOCAB, **{**SHAPE, "token_types": 0, **more})  # type: ignore[arg-type]


ENCODER = settings()
DECODER = settings(**{"attention.causal": True, "attention.cross": True})
PRE = {"norm.place": "pre", "norm.final": True, "norm.embedding": False}


@pytest.fixture(params=["post", "pre"])
def model(request: pytest.FixtureRequest) -> Model:
    torch.manual_seed(0)
    more = PRE if request.param == "pre" else {}
    cross = {"attention.causal": True, "attention.cross": True}
    model = build(settings(**more), decoder=settings(**more, **cross)).double().eval()
    use_large_weights(model)
    return model


def use_large_weights(model: Model) -> None:
    """Set weights so large that each sublayer has a visible effect."""
    for weight in model.parameters():
        if weight.ndim > 1:
            nn.init.normal_(weight, std=0.2)


def packed(texts: Sequence[Tensor]) -> Batch:
    ids = torch.cat(list(texts))
    return Batch(ids, torch.zeros_like(ids), Packed.of([len(text) for text in texts]))


def paired(sources: Sequence[Tensor], targets: Sequence[Tensor]) -> Batch:
    """Return a batch of targets, each with the index of its source among the sorted sources."""
    order = sorted(range(len(sources)), key=lambda index: len(sources[index]))
    source_order = torch.tensor([order.index(index) for index in range(len(sources))])
    source = packed([sources[index] for index in order])
    return replace(packed(targets), source=source, source_order=source_order)


@pytest.fixture
def texts() -> tuple[list[Tensor], list[Tensor]]:
    generator = torch.Generator().manual_seed(1)
    sizes = [(9, 1), (3, 2), (20, 5), (7, 5), (1, 18)]
    samples = [[torch.randint(VOCAB, (n,), generator=generator) for n in pair] for pair in sizes]
    return [source for source, _ in samples], [target for _, target in samples]


def test_states_of_pair_do_not_depend_on_batch(
    model: Model, texts: tuple[list[Tensor], list[Tensor]]
) -> None:
    sources, targets = texts
    states = model.states(paired(sources, targets)).split([len(target) for target in targets])
    for source, target, together in zip(sources, targets, states, strict=True):
        alone = model.states(paired([source], [target]))
        torch.testing.assert_close(together, alone, atol=1e-12, rtol=0)
    others = model.states(paired(sources[1:] + sources[:1], targets))  # the control
    assert not torch.allclose(torch.cat(states), others, atol=1e-3)


def test_later_token_does_not_change_earlier_states(
    model: Model, texts: tuple[list[Tensor], list[Tensor]]
) -> None:
    sources, targets = texts
    states = model.states(paired(sources, targets))
    changed = [*targets[:-1], torch.cat([targets[-1][:10], (targets[-1][10:] + 1) % VOCAB])]
    others = model.states(paired(sources, changed))
    assert torch.equal(states[:-8], others[:-8])
    assert not torch.allclose(states[-8:], others[-8:], atol=1e-3)  # the control


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("tokens", [None, 1, 50])
def test_batch_window_limits_attention(tokens: int | None, causal: bool) -> None:
    """With three layers and a window of 2, a token affects 6 positions on each side."""
    torch.manual_seed(0)
    window = None if tokens is None else {"tokens": tokens, "global_every": 2}
    more = {"attention.window": window, "attention.causal": causal}
    model = build(settings(**more)).double().eval()
    use_large_weights(model)
    text = torch.randint(VOCAB, (30,))
    changed = text.clone()
    changed[15] = (text[15] + 1) % VOCAB

    def changed_positions(window: int | None) -> list[int]:
        before, after = (model.states(replace(packed([x]), window=window)) for x in (text, changed))
        return (before - after).abs().amax(-1).gt(1e-9).nonzero().flatten().tolist()

    near = 6 if tokens != 1 else 5  # one layer has a smaller window
    first, last = (15 if causal else 0), 29
    assert changed_positions(None) == [*range(first, last + 1)]  # the control
    assert changed_positions(2) == [*range(max(first, 15 - near), 15 + near + 1)]


def test_states_match_torch_decoder(texts: tuple[list[Tensor], list[Tensor]]) -> None:
    """Compare with `nn.TransformerDecoder` on the same embeddings and encoder states."""
    torch.manual_seed(2)
    eps = {"norm.eps": 1e-5}
    cross = {"attention.causal": True, "attention.cross": True}
    model = build(settings(**eps), decoder=settings(**eps, **cross)).double().eval()
    use_large_weights(model)
    decoder = model.decoder
    assert decoder is not None
    layer = nn.TransformerDecoderLayer(
        32, 4, 48, dropout=0.0, activation="gelu", layer_norm_eps=1e-5, batch_first=True
    )
    oracle = nn.TransformerDecoder(layer, 3).double().eval()
    for block, torch_layer in zip(decoder.blocks, oracle.layers, strict=True):
        assert isinstance(torch_layer, nn.TransformerDecoderLayer)
        torch_layer.load_state_dict(
            {
                "self_attn.in_proj_weight": block.attention.qkv.weight,
                "self_attn.in_proj_bias": block.attention.qkv.bias,
                "multihead_attn.in_proj_weight": torch.cat(
                    [block.cross.q.weight, block.cross.kv.weight]
                ),
                "multihead_attn.in_proj_bias": torch.cat([block.cross.q.bias, block.cross.kv.bias]),
                **{
                    f"{their}.{kind}": getattr(module, kind)
                    for their, module in {
                        "self_attn.out_proj": block.attention.out,
                        "multihead_attn.out_proj": block.cross.out,
                        "linear1": block.feedforward.up,
                        "linear2": block.feedforward.down,
                        "norm1": block.attention_norm,
                        "norm2": block.cross_norm,
                        "norm3": block.feedforward_norm,
                    }.items()
                    for kind in ("weight", "bias")
                },
            }
        )
    for source, target in zip(*texts, strict=True):
        pair = paired([source], [target])
        assert pair.source is not None
        x, memory = decoder.embedding(pair)[None], model.encoder(pair.source)[None]
        ahead = nn.Transformer.generate_square_subsequent_mask(len(target), dtype=torch.float64)
        expected = oracle(x, memory, tgt_mask=ahead)[0]
        torch.testing.assert_close(model.states(pair), expected, atol=1e-10, rtol=0)
        if len(target) > 1:  # the control
            bidirectional = oracle(x, memory)[0]
            assert not torch.allclose(bidirectional, expected, atol=1e-3)


def test_gradients_reach_encoder_and_decoder(
    model: Model, texts: tuple[list[Tensor], list[Tensor]]
) -> None:
    model.states(paired(*texts)).sum().backward()
    unused = ("token_types", "positions")
    for name, weight in model.named_parameters():
        if not any(part in name for part in unused):
            assert weight.grad is not None, name
            assert weight.grad.isfinite().all(), name


def test_decoder_samples_dropout_in_training() -> None:
    torch.manual_seed(3)
    dropped = msgspec.structs.replace(DECODER, dropout=0.5)
    model = build(ENCODER, decoder=dropped).train()
    pair = paired([torch.arange(4)], [torch.arange(3)])
    assert not torch.equal(model.states(pair), model.states(pair))
    model.eval()
    assert torch.equal(model.states(pair), model.states(pair))


@pytest.mark.parametrize(
    ("encoder", "decoder", "sentence"),
    [
        (ENCODER, ENCODER, "decoder.attention.cross must be true"),
        (DECODER, DECODER, "attention.cross is not supported in an encoder"),
        (settings(hidden=16), DECODER, "decoder.hidden must be 16, as in the encoder, got 32"),
    ],
)
def test_build_rejects_incompatible_encoder_and_decoder(
    encoder: TransformerConfig, decoder: TransformerConfig, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        build(encoder, decoder=decoder)


def test_causal_encoder_ignores_later_tokens(texts: tuple[list[Tensor], list[Tensor]]) -> None:
    torch.manual_seed(4)
    stack = Transformer(settings(**{"attention.causal": True})).double().eval()
    _, targets = texts
    long = targets[-1]
    whole = stack(packed([long]))
    for size in (1, 7, len(long)):
        torch.testing.assert_close(stack(packed([long[:size]])), whole[:size], atol=1e-12, rtol=0)
    bidirectional = Transformer(settings()).double().eval()  # the control
    bidirectional.load_state_dict(stack.state_dict())
    assert not torch.allclose(bidirectional(packed([long]))[:7], whole[:7], atol=1e-3)


def test_transformer_rejects_disentangled_positions_with_causal_attention() -> None:
    positions = {"kind": "disentangled", "side_buckets": 8}
    assert Transformer(settings(positions=positions)).distances is not None
    for more in ({"attention.causal": True}, {"attention.kv_heads": 2}):
        with pytest.raises(ConfigError, match="disentangled positions cannot be combined"):
            Transformer(settings(positions=positions, **more))
