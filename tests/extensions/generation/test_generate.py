"""Generation: greedy decoding, beam search, sampling, and prompt lookup."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import structs
from tests.factories import tiny_model
from torch import Tensor

from bertkit.config import decode
from bertkit.errors import ConfigError
from bertkit.extensions.classic.families.lstm import LSTM_LM
from bertkit.extensions.generation.decoding import Decoding, GeneratedTokens, Rules
from bertkit.extensions.generation.families.gpt2 import GPT2
from bertkit.extensions.generation.generate import GeneratedRow, GenerationBatch, generate, guess
from bertkit.extensions.generation.stepper import Request, Stepper, stepper_of
from bertkit.models.model import Model

VOCAB = 30
LLAMA: dict[str, Any] = {
    "positions": {"kind": "rotary"},
    "norm": {"kind": "rms", "bias": False, "place": "pre", "embedding": False, "final": True},
    "attention": {"causal": True, "kv_heads": 2, "bias": False},
    "feedforward": {"activation": "silu", "gated": True, "bias": False},
}


def model_of(vocab: int = VOCAB, **more: Any) -> Model:
    shape: dict[str, Any] = {"hidden": 32, "layers": 2, "heads": 4, "length": 200}
    return tiny_model(vocab, "lm", **{"family": GPT2, "spread": 0.3, **shape, **more}).eval()


KINDS: dict[str, dict[str, Any]] = {"gpt2": {}, "llama": LLAMA, "lstm-lm": {"family": LSTM_LM}}


@pytest.fixture(scope="module", params=KINDS)
def stepper(request: pytest.FixtureRequest) -> Stepper:
    return stepper_of(model_of(**KINDS[request.param]))


def prompts(*sizes: int) -> list[Request]:
    rng = np.random.default_rng(5)
    return [Request(rng.integers(0, VOCAB, size)) for size in sizes]


def next_logprobs(stepper: Stepper, ids: list[int]) -> Tensor:
    """Return next-token log-probabilities, without a cache. Shapes: (T,) -> (T, V)."""
    rows = [Request(np.array(ids[: n + 1])) for n in range(len(ids))]
    return torch.log_softmax(stepper.start(rows)[1], -1)


@pytest.mark.parametrize("decoding", [Decoding(), Decoding(num_beams=3), Decoding(temperature=1.0)])
def test_score_matches_forward_pass_without_cache(stepper: Stepper, decoding: Decoding) -> None:
    """Prompts of different lengths share a batch."""
    requests = prompts(20, 1, 7, 7, 70)
    decoding = structs.replace(decoding, max_tokens=70, length_penalty=0.0)
    for request, (text, *_) in zip(
        requests, generate(stepper, requests, decoding, Rules([3])), strict=True
    ):
        tokens = [*text.ids, 3] if text.ended == "end" else text.ids
        logprobs = next_logprobs(stepper, [*request.prompt.tolist(), *tokens])[
            len(request.prompt) - 1 : -1
        ]
        expected = logprobs.gather(1, torch.tensor(tokens)[:, None])[:, 0]
        np.testing.assert_allclose(text.logprobs, expected, atol=2e-5)
        assert text.score == pytest.approx(float(expected.sum()), abs=1e-3)
        if decoding == Decoding(max_tokens=70, length_penalty=0.0):
            assert tokens == logprobs.argmax(-1).tolist()


def test_exhaustive_beam_search_finds_the_best_texts() -> None:
    """The reference scores all texts of up to 4 tokens from a vocabulary of 3."""
    stepper = Stepper(model_of(3))
    request = Request(np.array([0, 1]))
    decoding = Decoding(num_beams=81, num_return_sequences=5, max_tokens=4, length_penalty=0.7)
    (texts,) = generate(stepper, [request], decoding, Rules([2]))
    every = []
    for size in range(1, 5):
        for ids in itertools.product(range(3), repeat=size):
            if 2 in ids[:-1] or (size < 4 and ids[-1] != 2):
                continue
            logprobs = next_logprobs(stepper, [0, 1, *ids])[1:-1]
            total = float(logprobs.gather(1, torch.tensor(ids)[:, None]).sum())
            every.append((total / size**0.7, [i for i in ids if i != 2]))
    every.sort(reverse=True)
    assert [text.ids for text in texts] == [ids for _, ids in every[:5]]
    assert [text.score for text in texts] == pytest.approx([s for s, _ in every[:5]], abs=1e-5)


@pytest.mark.parametrize(
    "decoding",
    [
        Decoding(max_tokens=25),
        Decoding(max_tokens=25, num_beams=4, num_return_sequences=2),
        Decoding(max_tokens=25, temperature=0.8, seed=4, num_return_sequences=3),
        Decoding(max_tokens=25, temperature=1.3, top_k=9, top_p=0.8, min_p=0.01),
    ],
)
def test_text_does_not_depend_on_other_requests(stepper: Stepper, decoding: Decoding) -> None:
    requests = prompts(4, 1, 30, 9, 9)
    together = generate(stepper, requests, decoding, Rules([3, 5]))
    backwards = generate(stepper, requests[::-1], decoding, Rules([3, 5]))[::-1]
    alone = [generate(stepper, [request], decoding, Rules([3, 5]))[0] for request in requests]
    for texts in zip(together, backwards, alone, strict=True):
        first, *others = [[(text.ids, text.ended) for text in group] for group in texts]
        assert others == [first, first]
    if decoding.temperature:
        reseeded = structs.replace(decoding, seed=99)
        assert generate(stepper, requests, reseeded, Rules([3, 5])) != together  # control


@pytest.mark.parametrize(
    "decoding",
    [
        Decoding(max_tokens=60),
        Decoding(max_tokens=60, no_repeat_ngram_size=4, min_tokens=9),
        Decoding(max_tokens=60, temperature=0.3, seed=4, num_return_sequences=2),
    ],
)
@pytest.mark.parametrize("lookup", [1, 7])
def test_prompt_lookup_does_not_change_output(
    stepper: Stepper, decoding: Decoding, lookup: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [*prompts(4, 1, 30), Request(np.tile(prompts(6)[0].prompt, 5)), *prompts(140)]
    steps: list[int] = []
    step = stepper.step

    def counted(state: Any, ids: Tensor) -> Tensor:
        steps.append(ids.shape[1])
        return step(state, ids)

    monkeypatch.setattr(stepper, "step", counted)
    plain = generate(stepper, requests, decoding, Rules([3, 5]))
    without = steps.copy()
    steps.clear()
    guessing = structs.replace(decoding, prompt_lookup_num_tokens=lookup)
    guessed = generate(stepper, requests, guessing, Rules([3, 5]))
    for before, after in zip(plain, guessed, strict=True):
        assert [(text.ids, text.ended) for text in before] == [
            (text.ids, text.ended) for text in after
        ]
        for expected, text in zip(before, after, strict=True):
            assert expected.logprobs == pytest.approx(text.logprobs, abs=1e-5)
    assert set(without) == {1}
    assert max(steps) == lookup + 1
    if decoding.no_repeat_ngram_size is None:
        assert len(steps) < len(without)  # a random model soon repeats itself


def test_guess_uses_the_longest_match() -> None:
    def row(prompt: list[int], ids: list[int], source: list[int] | None = None) -> GeneratedRow:
        source_ids = None if source is None else np.array(source)
        decoding = Decoding(prompt_lookup_num_tokens=2)
        return GeneratedRow(
            Request(np.array(prompt), source_ids), decoding, Rules([3]), 50, 0, ids=ids
        )

    assert guess(row([1, 2, 3, 4, 9, 3, 7, 7], [2, 3])) == [4, 9]  # 2 3, not the later 3
    assert guess(row([1, 2, 3, 4, 9, 3, 7, 8], [5, 3])) == [7, 8]
    assert guess(row([1, 2], [5])) == []
    assert guess(row([0], [5], source=[6, 5, 4])) == [4, 5]
    assert guess(row([0], [5], source=[6])) == []


def test_batch_allows_adding_and_dropping_rows(stepper: Stepper) -> None:
    decoding = Decoding(max_tokens=40, temperature=1.0)
    requests = prompts(3, 8, 2, 90)
    expected = [generate(stepper, [request], decoding, Rules([3]))[0][0] for request in requests]
    batch = GenerationBatch(stepper)
    rows = [GeneratedRow.of(stepper, request, decoding, Rules([3])) for request in requests]
    batch.add(rows[:2])
    for _ in range(5):
        batch.step()
    batch.add(rows[2:])
    dropped = rows[1]
    if dropped in batch.rows:
        batch.drop({batch.rows.index(dropped)})
    while batch.rows:
        batch.step()
    assert [row.written.ids for row in rows if row is not dropped] == [
        text.ids for i, text in enumerate(expected) if i != 1
    ]


def test_discarded_tokens_do_not_change_logits(stepper: Stepper) -> None:
    requests = prompts(6, 60)
    state, _ = stepper.start(requests)
    stepper.step(state, torch.tensor([[1, 2, 3, 4, 5], [1, 2, 3, 4, 5]]))
    state.advance(torch.tensor([2, 4]))
    logits = stepper.step(state, torch.tensor([[7, 8], [9, 10]]))
    contexts = [[1, 2, 7, 8], [1, 2, 3, 4, 9, 10]]
    longer = [
        np.append(request.prompt, ids) for request, ids in zip(requests, contexts, strict=True)
    ]
    _, expected = stepper.start([Request(ids) for ids in longer])
    torch.testing.assert_close(logits[:, -1], expected, atol=2e-5, rtol=1e-4)


def test_text_reports_why_generation_ended(stepper: Stepper) -> None:
    (request,) = prompts(190)
    (text,), (short,) = (
        generate(stepper, [request], Decoding(max_tokens=n), Rules([]))[0] for n in (None, 4)
    )
    assert (len(text.ids), text.ended) == (10, "length")  # the model has 200 positions
    assert (short.ids, short.ended) == (text.ids[:4], "length")
    stopped = generate(stepper, [request], Decoding(), Rules([], lambda ids: len(ids) == 3))
    assert stopped[0][0] == GeneratedTokens(
        text.ids[:3], text.logprobs[:3], pytest.approx(sum(text.logprobs[:3])), "stop"
    )
    ended = generate(stepper, [request], Decoding(), Rules([text.ids[0]]))[0][0]
    assert (ended.ids, ended.ended, len(ended.logprobs)) == ([], "end", 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"top_p": 0}, "top_p"),
        ({"num_beams": 0}, "num_beams"),
        ({"num_beams": 2, "temperature": 1.0}, "num_beams = 2 cannot be combined with temperature"),
        ({"num_return_sequences": 2}, "requires at least as many beams, or temperature > 0"),
        ({"min_p": 1.0}, "min_p"),
        ({"num_beams": 2, "prompt_lookup_num_tokens": 4}, "cannot be combined with num_beams = 2"),
        ({"temperature": -1.0}, "temperature"),
    ],
)
def test_decoding_rejects_invalid_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        decode(Decoding, settings)
