"""A decoder: causal, and reading the encoder's states of its own source alone."""

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
    strong(model)
    return model


def strong(model: Model) -> None:
    """Weights so large that every sublayer shows."""
    for weight in model.parameters():
        if weight.ndim > 1:
            nn.init.normal_(weight, std=0.2)


def packed(texts: Sequence[Tensor]) -> Batch:
    ids = torch.cat(list(texts))
    return Batch(ids, torch.zeros_like(ids), Packed.of([len(text) for text in texts]))


def paired(sources: Sequence[Tensor], targets: Sequence[Tensor]) -> Batch:
    """A batch of targets, shortest first, each with the place of its source among the sources."""
    order = sorted(range(len(sources)), key=lambda place: len(sources[place]))
    places = torch.tensor([order.index(place) for place in range(len(sources))])
    source = packed([sources[place] for place in order])
    return replace(packed(targets), source=source, source_order=places)


@pytest.fixture
def texts() -> tuple[list[Tensor], list[Tensor]]:
    generator = torch.Generator().manual_seed(1)
    sizes = [(9, 1), (3, 2), (20, 5), (7, 5), (1, 18)]
    draws = [[torch.randint(VOCAB, (n,), generator=generator) for n in pair] for pair in sizes]
    return [source for source, _ in draws], [target for _, target in draws]


def test_a_pair_is_the_same_alone_and_in_company(
    model: Model, texts: tuple[list[Tensor], list[Tensor]]
) -> None:
    sources, targets = texts
    states = model.states(paired(sources, targets)).split([len(target) for target in targets])
    for source, target, together in zip(sources, targets, states, strict=True):
        alone = model.states(paired([source], [target]))
        torch.testing.assert_close(together, alone, atol=1e-12, rtol=0)
    others = model.states(paired(sources[1:] + sources[:1], targets))  # the control
    assert not torch.allclose(torch.cat(states), others, atol=1e-3)


def test_a_later_token_changes_no_earlier_state(
    model: Model, texts: tuple[list[Tensor], list[Tensor]]
) -> None:
    sources, targets = texts
    states = model.states(paired(sources, targets))
    changed = [*targets[:-1], torch.cat([targets[-1][:10], (targets[-1][10:] + 1) % VOCAB])]
    others = model.states(paired(sources, changed))
    assert torch.equal(states[:-8], others[:-8])
    assert not torch.allclose(states[-8:], others[-8:], atol=1e-3)  # the control


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("own", [None, 1, 50])
def test_a_batch_may_narrow_what_tokens_see(own: int | None, causal: bool) -> None:
    """Through three layers, each with a window of 2, a token tells of itself to 6 on each side."""
    torch.manual_seed(0)
    window = None if own is None else {"tokens": own, "global_every": 2}
    more = {"attention.window": window, "attention.causal": causal}
    model = build(settings(**more)).double().eval()
    strong(model)
    text = torch.randint(VOCAB, (30,))
    changed = text.clone()
    changed[15] = (text[15] + 1) % VOCAB

    def moved(window: int | None) -> list[int]:
        one, two = (model.states(replace(packed([x]), window=window)) for x in (text, changed))
        return (one - two).abs().amax(-1).gt(1e-9).nonzero().flatten().tolist()

    near = 6 if own != 1 else 5  # of the three layers one has a narrower window of its own
    first, last = (15 if causal else 0), 29
    assert moved(None) == [*range(first, last + 1)]  # the control
    assert moved(2) == [*range(max(first, 15 - near), 15 + near + 1)]


def test_states_are_those_of_torch(texts: tuple[list[Tensor], list[Tensor]]) -> None:
    """The oracle is `nn.TransformerDecoder`, upon the same embedded tokens and encoder's states."""
    torch.manual_seed(2)
    eps = {"norm.eps": 1e-5}
    cross = {"attention.causal": True, "attention.cross": True}
    model = build(settings(**eps), decoder=settings(**eps, **cross)).double().eval()
    strong(model)
    decoder = model.decoder
    assert decoder is not None
    layer = nn.TransformerDecoderLayer(
        32, 4, 48, dropout=0.0, activation="gelu", layer_norm_eps=1e-5, batch_first=True
    )
    oracle = nn.TransformerDecoder(layer, 3).double().eval()
    for ours, theirs in zip(decoder.blocks, oracle.layers, strict=True):
        assert isinstance(theirs, nn.TransformerDecoderLayer)
        theirs.load_state_dict(
            {
                "self_attn.in_proj_weight": ours.attention.qkv.weight,
                "self_attn.in_proj_bias": ours.attention.qkv.bias,
                "multihead_attn.in_proj_weight": torch.cat(
                    [ours.cross.q.weight, ours.cross.kv.weight]
                ),
                "multihead_attn.in_proj_bias": torch.cat([ours.cross.q.bias, ours.cross.kv.bias]),
                **{
                    f"{their}.{kind}": getattr(module, kind)
                    for their, module in {
                        "self_attn.out_proj": ours.attention.out,
                        "multihead_attn.out_proj": ours.cross.out,
                        "linear1": ours.feedforward.up,
                        "linear2": ours.feedforward.down,
                        "norm1": ours.attention_norm,
                        "norm2": ours.cross_norm,
                        "norm3": ours.feedforward_norm,
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
            seeing = oracle(x, memory)[0]
            assert not torch.allclose(seeing, expected, atol=1e-3)


def test_gradients_reach_both_stacks(
    model: Model, texts: tuple[list[Tensor], list[Tensor]]
) -> None:
    model.states(paired(*texts)).sum().backward()
    unused = ("token_types", "positions")
    for name, weight in model.named_parameters():
        if not any(part in name for part in unused):
            assert weight.grad is not None, name
            assert weight.grad.isfinite().all(), name


def test_a_decoder_in_training_draws_dropout() -> None:
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
def test_stacks_that_do_not_fit_are_refused(
    encoder: TransformerConfig, decoder: TransformerConfig, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        build(encoder, decoder=decoder)


def test_a_causal_encoder_is_a_language_model(texts: tuple[list[Tensor], list[Tensor]]) -> None:
    torch.manual_seed(4)
    stack = Transformer(settings(**{"attention.causal": True})).double().eval()
    _, targets = texts
    long = targets[-1]
    whole = stack(packed([long]))
    for size in (1, 7, len(long)):
        torch.testing.assert_close(stack(packed([long[:size]])), whole[:size], atol=1e-12, rtol=0)
    seeing = Transformer(settings()).double().eval()  # the control
    seeing.load_state_dict(stack.state_dict())
    assert not torch.allclose(seeing(packed([long]))[:7], whole[:7], atol=1e-3)


def test_transformer_rejects_disentangled_positions_with_causal_attention() -> None:
    positions = {"kind": "disentangled", "side_buckets": 8}
    assert Transformer(settings(positions=positions)).distances is not None
    for more in ({"attention.causal": True}, {"attention.kv_heads": 2}):
        with pytest.raises(ConfigError, match="disentangled positions cannot be combined"):
            Transformer(settings(positions=positions, **more))
