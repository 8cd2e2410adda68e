"""The engine returns the same output for a text in any batch."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.factories import tiny_model

from bertkit.batch import Batch
from bertkit.engine.engine import Engine, Forward
from bertkit.extensions.export.int8_layers import calibrate, calibrated, unavailable
from bertkit.models.model import Model
from bertkit.nn.pooling import first, mean
from bertkit.text.encoding import Encoding

SHAPE = {"hidden": 32, "layers": 2, "heads": 4, "intermediate": 64, "length": 300}


@pytest.fixture(scope="module")
def model() -> Model:
    return tiny_model(90, spread=0.1, **SHAPE).eval()


def encoding(length: int) -> Encoding:
    rng = np.random.default_rng(length)
    zeros = np.zeros(length, dtype=np.int64)
    return Encoding(
        rng.integers(0, 90, length), zeros, np.zeros((length, 2), np.int64), [], [], False
    )


@settings(max_examples=25)
@given(st.lists(st.integers(1, 260), min_size=1, max_size=12), st.integers(16, 600))
def test_packed_outputs_match_single_texts(model: Model, lengths: list[int], budget: int) -> None:
    encodings = [encoding(n) for n in lengths]
    engine = Engine(model, max_batch_tokens=budget)
    together = engine.rows(encodings, mean)
    for row, single in zip(together, encodings, strict=True):
        alone = engine.rows([single], mean)[0]
        np.testing.assert_allclose(row, alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=pytest.mark.bf16)])
def test_engine_matches_plain_model(model: Model, precision: str) -> None:
    encodings = [encoding(n) for n in (5, 3, 200, 40, 41)]
    actual = Engine(model, precision=precision).rows(encodings, first)  # type: ignore[arg-type]
    for row, single in zip(actual, encodings, strict=True):
        batch = Batch.of([single])
        with torch.no_grad():
            plain = first(model.encoder(batch), batch)[0].numpy()
        tolerance = 1e-5 if precision == "fp32" else 0.1
        np.testing.assert_allclose(row, plain, atol=tolerance)


def test_mean_is_computed_per_sequence(model: Model) -> None:
    batch = Batch.of([encoding(2), encoding(5)])
    states = torch.arange(14.0).reshape(7, 2)
    assert mean(states, batch).tolist() == [[1.0, 2.0], [8.0, 9.0]]


def test_with_max_batch_tokens_shares_model(model: Model) -> None:
    encodings = [encoding(n) for n in (5, 3, 200)]
    engine = Engine(model, max_batch_tokens=4096)
    small = engine.with_max_batch_tokens(16)
    assert small.model is engine.model
    assert [len(list(e.batches(encodings))) for e in (engine, small)] == [1, 2]
    np.testing.assert_allclose(small.rows(encodings, mean), engine.rows(encodings, mean), atol=1e-5)


WORDS = [np.array(indices, np.int64) for indices in ([0, 2], [1], [], [3, 4, 5])]
"""Token indices of texts of 3, 2, 9 and 6 tokens."""


def run_head(head: str) -> Forward:
    def forward(model: Model, batch: Batch) -> torch.Tensor:
        out: torch.Tensor = model.heads[head](model.encoder(batch), batch)
        return out.float()

    return forward


@pytest.mark.parametrize(
    ("head", "indices", "rows"),
    [
        ("classify", None, [1, 1, 1, 1]),
        ("answer", None, [3, 2, 9, 6]),
        ("tag", WORDS, [2, 1, 0, 3]),
    ],
)
@pytest.mark.parametrize("budget", [1, 8, 4096])
def test_run_returns_rows_per_text(
    head: str, indices: list[NDArray[np.int64]] | None, rows: list[int], budget: int
) -> None:
    model = tiny_model(90, head, labels=("O", "B-x", "I-x"), **SHAPE).eval()
    encodings = [encoding(n) for n in (3, 2, 9, 6)]
    outputs = Engine(model, max_batch_tokens=budget).run(encodings, run_head(head), indices)
    assert [len(output) for output in outputs] == rows
    unpacked = Engine(model, precision=None)
    assert unpacked.model is model
    for index, single in enumerate(encodings):
        alone = unpacked.run(
            [single], run_head(head), None if indices is None else [indices[index]]
        )
        np.testing.assert_allclose(outputs[index], alone[0], atol=1e-5)


@pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))
@pytest.mark.parametrize(("head", "indices"), [("answer", None), ("tag", WORDS)])
def test_int8_outputs_of_token_heads_match_approximately(
    model: Model, head: str, indices: list[NDArray[np.int64]] | None
) -> None:
    heads = tiny_model(90, head, labels=("O", "B-x", "I-x"), **SHAPE).heads
    model = Model(model.encoder, heads).eval()
    encodings = [encoding(n) for n in (3, 2, 9, 6)]
    exact = Engine(model)
    int8 = calibrate(model, [batch for _, batch in exact.batches(encodings)])
    pairs = zip(
        exact.run(encodings, run_head(head), indices),
        Engine(model, int8=calibrated(int8)).run(encodings, run_head(head), indices),
        strict=True,
    )
    differences = [np.abs(a - b).max(initial=0) for a, b in pairs]
    assert 1e-5 < max(differences) < 0.1


def test_empty_input_returns_no_rows(model: Model) -> None:
    assert len(Engine(model).rows([], mean)) == 0


def test_packed_gradients_match_single_sequences() -> None:
    """The gradient of a batch is the sum of the gradients of its sequences."""
    model = tiny_model(90, dropout=0.0, **SHAPE).train()
    encodings = [encoding(n) for n in (4, 17, 18, 250)]

    def gradients(groups: list[list[Encoding]]) -> list[torch.Tensor]:
        model.zero_grad()
        for group in groups:
            batch = Batch.of(group)
            mean(model.encoder(batch), batch).pow(2).sum().backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    together, separate = gradients([encodings]), gradients([[e] for e in encodings])
    for a, b in zip(together, separate, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3)


@pytest.mark.bf16
def test_bf16_embeddings_match_fp32_approximately(minilm: Path, english: list[str]) -> None:
    import bertkit

    texts = [text[:n] for text in english[:16] for n in (20, 300)]
    exact = bertkit.pipeline("embed", minilm)(texts)
    fast = bertkit.pipeline("embed", minilm, precision="bf16")(texts)
    assert (exact * fast).sum(1).min() >= 0.999


@settings(max_examples=25)
@given(st.lists(st.integers(1, 260), min_size=1, max_size=12), st.integers(0, 2**32 - 1))
def test_batch_invariant_engine_is_bitwise_deterministic(
    model: Model, lengths: list[int], seed: int
) -> None:
    engine = Engine(model, batch_invariant=True)
    encodings = [encoding(n) for n in lengths]
    order = np.random.default_rng(seed).permutation(len(lengths))
    mixed = engine.rows([encodings[index] for index in order], mean)
    for index, row in zip(order, mixed, strict=True):
        np.testing.assert_array_equal(row, engine.rows([encodings[index]], mean)[0])
