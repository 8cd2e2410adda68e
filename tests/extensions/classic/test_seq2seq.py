"""Recurrent encoder-decoders compared with loops, decoded step by step, and in batches."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from bertkit.batch import Batch, Packed
from bertkit.errors import ConfigError
from bertkit.extensions.classic.families.lstm import LSTM
from bertkit.extensions.classic.seq2seq import RecurrentDecoder, RecurrentEncoder
from bertkit.extensions.generation.decoding import Decoding, Rules
from bertkit.extensions.generation.generate import generate
from bertkit.extensions.generation.stepper import Request, stepper_of
from bertkit.models.model import Model, build, head
from bertkit.models.surgery import keep_layers
from bertkit.nn.attention import Trace

VOCAB, WIDTH, LAYERS = 13, 6, 2
KINDS = tuple(
    f"{cell}{attention}"
    for cell in ("", "gru ")
    for attention in ("none", "context", "luong", "bahdanau")
)
"""Attention types, preceded by the cell type if it is not an LSTM."""
ATTENDING = ("luong", "bahdanau", "gru luong", "gru bahdanau")
DIRECTIONS = ("forward", "backward", "both")
IDS = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=6)
PAIRS = st.lists(st.tuples(IDS, IDS), min_size=1, max_size=4)


def recurrent_of(kind: str) -> dict[str, str]:
    """Return the recurrent settings of a variant."""
    *cell, attention = kind.split()
    return {"attention": attention, **({"cell": cell[0]} if cell else {})}


def model_of(kind: str, direction: str = "backward") -> Model:
    """Build a model with weights large enough to make differences visible."""
    recurrent = {**recurrent_of(kind), "direction": direction}
    settings: dict[str, Any] = {"vocab": VOCAB, "hidden": WIDTH, "layers": LAYERS}
    settings |= {"max_positions": 32, "recurrent": recurrent, "dropout": 0.0}
    assert LSTM.decoder is not None
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        decoder = LSTM.decoder.config(settings)
        model = build(LSTM.config(settings), ("lm",), decoder=decoder)
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(torch.randn_like(weight) * 0.6)
    return model.eval()


shared_model = cache(model_of)
"""Function that returns the same model each time, for tests that do not change it."""


def request(target: list[int], source: list[int]) -> Request:
    return Request(np.array(target), np.array(source))


def batch_of(pairs: list[tuple[list[int], list[int]]]) -> Batch:
    """Build a batch of pairs that are sorted by target length."""
    order = sorted(range(len(pairs)), key=lambda i: len(pairs[i][1]))

    def packed(texts: list[list[int]]) -> Batch:
        ids = torch.tensor([i for text in texts for i in text])
        return Batch(ids, torch.zeros_like(ids), Packed.of([len(text) for text in texts]))

    batch, source = packed([t for t, _ in pairs]), packed([pairs[i][1] for i in order])
    return Batch(
        batch.ids, batch.types, batch.layout, source=source,
        source_order=torch.tensor(order).argsort(),
    )  # fmt: skip


# ---- Reference implementation: one pair, one token, one layer at a time


def cell(lstm: nn.Module, name: str, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Compute one step of an LSTM (Hochreiter & Schmidhuber 1997, with a forget gate) or a GRU.

    The GRU (Cho et al. 2014) applies the reset gate after the matrix product, like torch.
    """
    w = dict(lstm.named_parameters())
    if isinstance(lstm, nn.GRU):
        r, z, new = (w[f"weight_ih_{name}"] @ x + w[f"bias_ih_{name}"]).chunk(3)
        r_h, z_h, new_h = (w[f"weight_hh_{name}"] @ h + w[f"bias_hh_{name}"]).chunk(3)
        z, new = (z + z_h).sigmoid(), (new + (r + r_h).sigmoid() * new_h).tanh()
        return (1 - z) * new + z * h, c
    gates = w[f"weight_ih_{name}"] @ x + w[f"bias_ih_{name}"]
    gates = gates + w[f"weight_hh_{name}"] @ h + w[f"bias_hh_{name}"]
    i, f, g, o = gates.chunk(4)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def encode_source(encoder: RecurrentEncoder, ids: list[int], direction: str) -> Any:
    """Return the states of one source and the last hidden state and cell of each layer."""
    is_bidirectional = direction == "both"
    width = WIDTH // 2 if is_bidirectional else WIDTH
    directions = {"forward": [("", 1)], "backward": [("", -1)], "both": [("", 1), ("_reverse", -1)]}
    rows = [encoder.embedding.tokens.weight[i] * WIDTH**0.5 for i in ids]
    hidden, cells = [], []
    for layer in range(LAYERS):
        sides, final_states = [], []
        for suffix, step in directions[direction]:
            h = c = torch.zeros(width)
            out = [h] * len(rows)
            for index in range(len(rows))[::step]:
                h, c = cell(encoder.lstm, f"l{layer}{suffix}", rows[index], h, c)
                out[index] = h
            sides.append(out)
            final_states.append((h, c))
        rows = [torch.cat(parts) for parts in zip(*sides, strict=True)]
        hidden.append(torch.cat([h for h, _ in final_states]))
        cells.append(torch.cat([c for _, c in final_states]))
    return rows, hidden, cells


def reference_logits(
    model: Model, attention: str, direction: str, target: list[int], source: list[int]
) -> tuple[Tensor, Tensor]:
    """Return the logits after each target token and its attention to the source tokens."""
    decoder = model.decoder
    assert isinstance(decoder, RecurrentDecoder)
    assert isinstance(model.encoder, RecurrentEncoder)
    attention = attention.split()[-1]
    states, h, c = encode_source(model.encoder, source, direction)
    w = dict(decoder.named_parameters())
    fixed, logits, attention_weights = h[-1], [], []

    def attend(scores: list[Tensor]) -> tuple[Tensor, Tensor]:
        weights = torch.stack(scores).exp() / torch.stack(scores).exp().sum()
        total = torch.zeros(WIDTH)
        for weight, state in zip(weights, states, strict=True):
            total = total + weight * state
        return total, weights

    for token in target:
        x, context = model.encoder.embedding.tokens.weight[token] * WIDTH**0.5, fixed
        weights = torch.zeros(len(source))
        if attention == "bahdanau":
            query = w["score.query.weight"] @ h[-1]
            keys = [w["score.key.weight"] @ state for state in states]
            context, weights = attend([w["score.out.weight"][0] @ (query + k).tanh() for k in keys])
        if attention in ("context", "bahdanau"):
            x = torch.cat([x, context])
        for layer in range(LAYERS):
            h[layer], c[layer] = cell(decoder.lstm, f"l{layer}", x, h[layer], c[layer])
            x = h[layer]
        if attention == "luong":
            context, weights = attend([x @ (w["score.key.weight"] @ state) for state in states])
        if attention != "none":
            x = (w["combine.weight"] @ torch.cat([context, x])).tanh()
        logits.append(model.encoder.embedding.tokens.weight @ x + model.heads["lm"].bias)
        attention_weights.append(weights)
    return torch.stack(logits), torch.stack(attention_weights)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("attention", KINDS)
@torch.no_grad()
def test_model_matches_reference(attention: str, direction: str) -> None:
    model = model_of(attention, direction)
    pairs = [([1, 2], [3, 4, 5, 6]), ([5, 1, 2], [7]), ([9, 8, 7], [2, 2, 9, 1, 3])]
    trace, batch = Trace(), batch_of(pairs)
    assert model.decoder is not None
    states = model.decoder(batch, trace, model.encoder.memory(batch.source))  # type: ignore[arg-type]
    logits = model.heads["lm"](states, batch).split(list(batch.layout.lengths))
    for index, (target, source) in enumerate(pairs):
        expected, expected_weights = reference_logits(model, attention, direction, target, source)
        torch.testing.assert_close(logits[index], expected, rtol=1e-4, atol=1e-5)
        if attention in ATTENDING:
            torch.testing.assert_close(
                trace.cross[0][index][0], expected_weights, rtol=1e-4, atol=1e-5
            )
            if len(source) > 1:  # The attention is not uniform.
                assert expected_weights.std(1).max() > 0.003
    assert len(trace.cross) == (attention in ATTENDING)
    other = DIRECTIONS[DIRECTIONS.index(direction) - 1]
    if {direction, other} == {"forward", "backward"}:  # Control.
        other_logits, _ = reference_logits(model, attention, other, *pairs[0])
        assert (other_logits - logits[0]).abs().max() > 1e-3


@pytest.mark.parametrize("attention", KINDS)
@given(pairs=PAIRS)
@settings(max_examples=25)
@torch.no_grad()
def test_logits_are_independent_of_batch(
    attention: str, pairs: list[tuple[list[int], list[int]]]
) -> None:
    model, pairs = shared_model(attention), sorted(pairs, key=lambda pair: len(pair[0]))
    together = model(batch_of(pairs))["lm"].split([len(target) for target, _ in pairs])
    for pair, rows in zip(pairs, together, strict=True):
        torch.testing.assert_close(rows, model(batch_of([pair]))["lm"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("attention", KINDS)
@given(ids=st.lists(st.integers(0, VOCAB - 1), min_size=3, max_size=6), prompts=PAIRS)
@settings(max_examples=25)
def test_stepper_matches_teacher_forcing(
    attention: str, ids: list[int], prompts: list[tuple[list[int], list[int]]]
) -> None:
    """Pass two tokens at once and keep one, then continue token by token."""
    stepper = stepper_of(shared_model(attention))
    requests = [request(*pair) for pair in prompts]
    state, first = stepper.start(requests)
    rows, count = [first], len(requests)
    logits = stepper.step(state, torch.tensor([[ids[0], 3]] * count))
    state.advance(torch.ones(count, dtype=torch.long))
    rows.append(logits[:, 0])
    for token in ids[1:]:
        rows.append(stepper.step(state, torch.tensor([[token]] * count))[:, 0])
        state.advance(torch.ones(count, dtype=torch.long))
    for index, single_request in enumerate(requests):
        expected = stepper.read(single_request, ids)
        stepped = torch.stack([row[index] for row in rows])
        torch.testing.assert_close(stepped, expected, rtol=1e-4, atol=1e-5)
        changed = stepper.read(single_request, [(ids[0] + 1) % VOCAB, *ids[1:]])
        assert (changed - expected)[1:].abs().max() > 1e-4  # Control.


@pytest.mark.parametrize("attention", KINDS)
def test_stepper_state_joins_branches_and_keeps_rows(attention: str) -> None:
    stepper = stepper_of(model_of(attention))
    requests = [request([1], [2, 3]), request([1], [4, 5, 6, 7]), request([1, 2], [8])]
    state, _ = stepper.start(requests[:1])
    other, _ = stepper.start(requests[1:])
    state.join(other)
    state = state.branch(2)
    state.keep(torch.tensor([5, 0, 2, 2]))
    out = stepper.step(state, torch.tensor([[3], [4], [5], [6]]))[:, 0]
    indices_and_tokens = [(2, 3), (0, 4), (1, 5), (1, 6)]
    for row, (index, token) in zip(out, indices_and_tokens, strict=True):
        expected = stepper.read(requests[index], [token])[1]
        torch.testing.assert_close(row, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "decoding",
    [
        Decoding(),
        Decoding(num_beams=3, num_return_sequences=2),
        Decoding(temperature=1.0, num_return_sequences=2),
        Decoding(prompt_lookup_num_tokens=3),
    ],
)
@pytest.mark.parametrize("attention", KINDS)
def test_generate_is_independent_of_batch_with_matching_scores(
    attention: str, decoding: Decoding
) -> None:
    stepper, rules = stepper_of(model_of(attention)), Rules((1,))
    requests = [request([0], source) for source in ([2, 3], [4, 5, 6, 7], [8], [9, 2, 3])]
    together = generate(stepper, requests, decoding, rules)
    for single_request, texts in zip(requests, together, strict=True):
        (separate_texts,) = generate(stepper, [single_request], decoding, rules)
        assert [text.ids for text in texts] == [text.ids for text in separate_texts]
        for text in texts:
            ids = [*text.ids, 1] if text.ended == "end" else text.ids
            logprobs = stepper.read(single_request, ids)[:-1].log_softmax(-1)
            expected = logprobs.gather(1, torch.tensor(ids)[:, None])[:, 0]
            torch.testing.assert_close(
                torch.tensor(text.logprobs), expected, rtol=1e-3, atol=1e-4, check_dtype=False
            )


@pytest.mark.parametrize("attention", KINDS)
def test_every_weight_gets_a_gradient(attention: str) -> None:
    model = model_of(attention, "both").train()
    model(batch_of([([1, 2], [3, 4]), ([1, 2, 5], [3, 4, 5])]))["lm"].square().sum().backward()
    frozen = [name for name, weight in model.named_parameters() if not weight.grad.abs().sum() > 0]  # type: ignore[union-attr]
    assert not frozen


def test_lstm_initialization_scales_with_hidden_size() -> None:
    settings = {"vocab": 500, "hidden": 64, "layers": 1}
    assert LSTM.decoder is not None
    model = build(LSTM.config(settings), ("lm",), decoder=LSTM.decoder.config(settings))
    assert model.encoder.embedding.tokens.weight.std().item() == pytest.approx(64**-0.5, rel=0.05)
    assert model.encoder.lstm.weight_hh_l0.std().item() == pytest.approx((3 * 64) ** -0.5, rel=0.05)  # type: ignore[union-attr]


def test_lstm_rejects_invalid_configs() -> None:
    settings = {"vocab": 9, "hidden": 6, "layers": 2}
    assert LSTM.decoder is not None
    encoder = LSTM.config(settings)
    with pytest.raises(ConfigError, match=r"decoder\.recurrent: .* set only model\.recurrent"):
        build(encoder, decoder=LSTM.decoder.config({**settings, "recurrent.attention": "luong"}))
    with pytest.raises(ConfigError, match=r"decoder\.layers must be 2, .* got 1"):
        build(encoder, decoder=LSTM.decoder.config({**settings, "layers": 1}))
    with pytest.raises(ConfigError, match="RecurrentEncoder is not a Transformer"):
        _ = model_of("luong").transformer


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_config_describes_the_architecture(direction: str) -> None:
    config = model_of("luong", direction).config
    assert (config.recurrent.direction, config.is_causal) == (direction, direction == "forward")
    assert config.is_sequential
    assert config.attends_to_source
    assert not model_of("context").config.attends_to_source


def test_recurrent_encoder_rejects_heads_and_layers_of_transformers() -> None:
    model = model_of("none")
    with pytest.raises(ConfigError, match="heads: mlm is not supported by RecurrentEncoder"):
        head("mlm", model.encoder)
    with pytest.raises(ConfigError, match="RecurrentEncoder is not a Transformer"):
        keep_layers(model, [1])
