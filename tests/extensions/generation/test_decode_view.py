"""Values of the decoding page, compared with generation and a forward pass."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec import structs
from tests.extensions.generation.tasks.test_seq2seq import write_model
from tests.extensions.generation.test_marian_tokenizer import sentences
from tests.pipelines.test_translate import folder as marian  # noqa: F401  (the fixture)

import bertkit
from bertkit.errors import DataError
from bertkit.extensions.generation.decode_view import MAX_TOKENS, DecoderSteps, decoder_steps
from bertkit.extensions.generation.generate import generate
from bertkit.extensions.generation.pipeline import Generate
from bertkit.nn.attention import Trace
from bertkit.view.arrays import decoded
from bertkit.view.token_text import spelled

TOLERANCE = 1e-3
"""Absolute tolerance of values in 16 bits: 2 times 2⁻¹¹."""


@pytest.fixture(scope="module", params=["marian", "bart", "t5"])
def writer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generate:
    if request.param == "marian":
        return Generate(bertkit.load(request.getfixturevalue("marian")))
    directory = tmp_path_factory.mktemp(request.param) / request.param
    return Generate(bertkit.load(write_model(directory, request.param)))


@pytest.fixture(scope="module")
def text(english: list[str]) -> str:
    return next(line for line in sentences(english) if 30 < len(line) < 60)


@pytest.fixture(scope="module", params=[1, 3])
def shown(request: pytest.FixtureRequest, writer: Generate, text: str) -> DecoderSteps:
    return decoder_steps(writer, text, beams=request.param, max_tokens=12)


def test_steps_contain_the_generated_text(writer: Generate, text: str, shown: DecoderSteps) -> None:
    beams = 3 if shown.beams else 1
    decoding = structs.replace(writer.loaded.generation.decoding, num_beams=beams, max_tokens=12)
    ((best, *_),) = writer([text], decoding)
    assert shown.written == best.text
    assert len(shown.target) == len(shown.scores) == len(shown.candidates) == best.tokens
    assert shown.cut == (best.ended == "length")
    (request,) = writer.requests([text])
    assert shown.source == spelled(writer.tokenizer, request.source)
    ids = best_ids(writer, text, beams)
    assert shown.target[: len(ids)] == spelled(writer.target, ids)


def best_ids(writer: Generate, text: str, beams: int) -> list[int]:
    decoding = structs.replace(writer.loaded.generation.decoding, num_beams=beams, max_tokens=12)
    ((best, *_),) = generate(
        writer.stepper, writer.requests([text]), decoding, writer.rules([text])
    )
    return best.ids


def test_weights_and_scores_match_one_forward_pass(
    writer: Generate, text: str, shown: DecoderSteps
) -> None:
    (request,) = writer.requests([text])
    ids = best_ids(writer, text, 3 if shown.beams else 1)
    ids += [writer.rules([text]).ends[0]] * (len(shown.target) - len(ids))
    trace = Trace()
    logits = writer.stepper.read(request, ids, trace)
    for layer, mean, weights in zip(shown.attention, shown.mean, trace.cross, strict=True):
        expected = weights[0][:, : len(ids)]
        np.testing.assert_allclose(decoded(layer), expected, atol=TOLERANCE)
        np.testing.assert_allclose(decoded(mean), expected.mean(0), atol=TOLERANCE)
        assert decoded(layer).shape[2] == len(shown.source)
    probabilities = torch.softmax(logits, -1)
    for position, (token, score) in enumerate(zip(ids, shown.scores, strict=True)):
        assert score == pytest.approx(float(probabilities[position, token]), abs=1e-6)
        candidates = shown.candidates[position]
        assert candidates[0].score == pytest.approx(float(probabilities[position].max()), abs=1e-6)
        scores = [candidate.score for candidate in candidates]
        assert scores == sorted(scores, reverse=True)
        if not shown.beams and token == int(probabilities[position].argmax()):
            assert candidates[0].token == shown.target[position]


def test_beam_tree_leads_to_the_text(shown: DecoderSteps) -> None:
    if not shown.beams:
        return
    wins = [[beam for beam in step if beam.wins] for step in shown.beams]
    assert [[beam.token for beam in step] for step in wins[: len(shown.target)]] == [
        [token] for token in shown.target
    ]
    assert not any(wins[len(shown.target) :])
    for step, before in zip(shown.beams[1:], shown.beams, strict=False):
        parents = {beam.before for beam in step}
        assert all(parent is not None and before[parent].state == "kept" for parent in parents)
        assert sum(beam.state == "kept" for beam in step) <= 3
        for beam in step:  # a text is at most as probable as its prefix
            assert beam.before is not None
            assert beam.score <= before[beam.before].score + 1e-5
    last = wins[len(shown.target) - 1][0]
    assert last.state == "ended"
    assert last.score == pytest.approx(float(np.log(shown.scores).sum()), abs=2e-3)


def test_decoder_steps_reject_empty_and_too_long_text(writer: Generate) -> None:
    with pytest.raises(DataError, match="text: must not be empty"):
        decoder_steps(writer, " \n ")
    with pytest.raises(DataError, match=rf"the model supports|page shows at most {MAX_TOKENS}"):
        decoder_steps(writer, "the cat sat on a mat. " * 60)


def test_decoder_steps_report_truncated_text(marian: Path, text: str) -> None:  # noqa: F811
    steps = decoder_steps(Generate(bertkit.load(marian)), text, beams=1, max_tokens=2)
    assert steps.cut
    assert len(steps.target) == 2
