"""The engine gives every text its own answer, whatever it is batched with."""

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
def test_packed_equals_alone_in_the_order_given(
    model: Model, lengths: list[int], budget: int
) -> None:
    encodings = [encoding(n) for n in lengths]
    engine = Engine(model, max_batch_tokens=budget)
    together = engine.rows(encodings, mean)
    for row, one in zip(together, encodings, strict=True):
        alone = engine.rows([one], mean)[0]
        np.testing.assert_allclose(row, alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=pytest.mark.bf16)])
def test_packed_equals_the_plain_model(model: Model, precision: str) -> None:
    encodings = [encoding(n) for n in (5, 3, 200, 40, 41)]
    ours = Engine(model, precision=precision).rows(encodings, first)  # type: ignore[arg-type]
    for row, one in zip(ours, encodings, strict=True):
        batch = Batch.of([one])
        with torch.no_grad():
            plain = first(model.encoder(batch), batch)[0].numpy()
        tolerance = 1e-5 if precision == "fp32" else 0.1
        np.testing.assert_allclose(row, plain, atol=tolerance)


def test_mean_is_over_the_sequence_alone(model: Model) -> None:
    batch = Batch.of([encoding(2), encoding(5)])
    states = torch.arange(14.0).reshape(7, 2)
    assert mean(states, batch).tolist() == [[1.0, 2.0], [8.0, 9.0]]


def test_another_budget_is_another_engine_of_the_same_model(model: Model) -> None:
    encodings = [encoding(n) for n in (5, 3, 200)]
    engine = Engine(model, max_batch_tokens=4096)
    small = engine.with_max_batch_tokens(16)
    assert small.model is engine.model
    assert [len(list(e.batches(encodings))) for e in (engine, small)] == [1, 2]
    np.testing.assert_allclose(small.rows(encodings, mean), engine.rows(encodings, mean), atol=1e-5)


WORDS = [np.array(places, np.int64) for places in ([0, 2], [1], [], [3, 4, 5])]
"""Token indices of texts of 3, 2, 9 and 6 tokens."""


def of_task(head: str) -> Forward:
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
def test_rows_of_texts_of_tokens_and_of_words_return_to_their_text(
    head: str, indices: list[NDArray[np.int64]] | None, rows: list[int], budget: int
) -> None:
    model = tiny_model(90, head, labels=("O", "B-x", "I-x"), **SHAPE).eval()
    encodings = [encoding(n) for n in (3, 2, 9, 6)]
    outputs = Engine(model, max_batch_tokens=budget).run(encodings, of_task(head), indices)
    assert [len(each) for each in outputs] == rows
    itself = Engine(model, precision=None)
    assert itself.model is model
    for place, one in enumerate(encodings):
        alone = itself.run([one], of_task(head), None if indices is None else [indices[place]])
        np.testing.assert_allclose(outputs[place], alone[0], atol=1e-5)


@pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))
@pytest.mark.parametrize(("head", "indices"), [("answer", None), ("tag", WORDS)])
def test_integers_reach_heads_at_tokens(
    model: Model, head: str, indices: list[NDArray[np.int64]] | None
) -> None:
    heads = tiny_model(90, head, labels=("O", "B-x", "I-x"), **SHAPE).heads
    model = Model(model.encoder, heads).eval()
    encodings = [encoding(n) for n in (3, 2, 9, 6)]
    exact = Engine(model)
    int8 = calibrate(model, [batch for _, batch in exact.batches(encodings)])
    pairs = zip(
        exact.run(encodings, of_task(head), indices),
        Engine(model, int8=calibrated(int8)).run(encodings, of_task(head), indices),
        strict=True,
    )
    apart = [np.abs(a - b).max(initial=0) for a, b in pairs]
    assert 1e-5 < max(apart) < 0.1


def test_no_text_no_rows(model: Model) -> None:
    assert len(Engine(model).rows([], mean)) == 0


def test_train_mode_packed_equals_alone() -> None:
    """Also with gradients: the loss of a batch is the sum of the losses of its sequences."""
    model = tiny_model(90, dropout=0.0, **SHAPE).train()
    encodings = [encoding(n) for n in (4, 17, 18, 250)]

    def gradients(groups: list[list[Encoding]]) -> list[torch.Tensor]:
        model.zero_grad()
        for group in groups:
            batch = Batch.of(group)
            mean(model.encoder(batch), batch).pow(2).sum().backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    together, apart = gradients([encodings]), gradients([[e] for e in encodings])
    for a, b in zip(together, apart, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3)


@pytest.mark.bf16
def test_the_packaged_model_in_bf16_keeps_its_directions(minilm: Path, english: list[str]) -> None:
    import bertkit

    texts = [text[:n] for text in english[:16] for n in (20, 300)]
    exact = bertkit.pipeline("embed", minilm)(texts)
    fast = bertkit.pipeline("embed", minilm, precision="bf16")(texts)
    assert (exact * fast).sum(1).min() >= 0.999


@settings(max_examples=25)
@given(st.lists(st.integers(1, 260), min_size=1, max_size=12), st.integers(0, 2**32 - 1))
def test_batch_invariant_is_to_the_last_bit(model: Model, lengths: list[int], seed: int) -> None:
    engine = Engine(model, batch_invariant=True)
    encodings = [encoding(n) for n in lengths]
    order = np.random.default_rng(seed).permutation(len(lengths))
    mixed = engine.rows([encodings[place] for place in order], mean)
    for place, row in zip(order, mixed, strict=True):
        np.testing.assert_array_equal(row, engine.rows([encodings[place]], mean)[0])
