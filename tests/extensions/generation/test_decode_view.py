"""How a model writes, step by step: the numbers of the page are those of the texts it writes."""

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

HALF = 1e-3
"""What 16 bits may be off: 2⁻¹¹ of one, twice over."""


@pytest.fixture(scope="module", params=["marian", "bart", "t5"])
def writer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generate:
    if request.param == "marian":
        return Generate(bertkit.load(request.getfixturevalue("marian")))
    place = tmp_path_factory.mktemp(request.param) / request.param
    return Generate(bertkit.load(write_model(place, request.param)))


@pytest.fixture(scope="module")
def text(english: list[str]) -> str:
    return next(one for one in sentences(english) if 30 < len(one) < 60)


@pytest.fixture(scope="module", params=[1, 3])
def shown(request: pytest.FixtureRequest, writer: Generate, text: str) -> DecoderSteps:
    return decoder_steps(writer, text, beams=request.param, max_tokens=12)


def test_it_shows_the_text_that_is_written(
    writer: Generate, text: str, shown: DecoderSteps
) -> None:
    beams = 3 if shown.beams else 1
    decoding = structs.replace(writer.loaded.generation.decoding, beams=beams, max_tokens=12)
    ((best, *_),) = writer([text], decoding)
    assert shown.written == best.text
    assert len(shown.target) == len(shown.scores) == len(shown.candidates) == best.tokens
    assert shown.cut == (best.ended == "length")
    (request,) = writer.requests([text])
    assert shown.source == spelled(writer.tokenizer, request.source)
    assert shown.target[: len(best_ids(writer, text, beams))] == spelled(
        writer.target, best_ids(writer, text, beams)
    )


def best_ids(writer: Generate, text: str, beams: int) -> list[int]:
    decoding = structs.replace(writer.loaded.generation.decoding, beams=beams, max_tokens=12)
    ((best, *_),) = generate(
        writer.stepper, writer.requests([text]), decoding, writer.rules([text])
    )
    return best.ids


def test_weights_are_those_of_one_forward(writer: Generate, text: str, shown: DecoderSteps) -> None:
    (request,) = writer.requests([text])
    ids = best_ids(writer, text, 3 if shown.beams else 1)
    ids += [writer.rules([text]).ends[0]] * (len(shown.target) - len(ids))
    trace = Trace()
    logits = writer.stepper.read(request, ids, trace)
    for layer, mean, weights in zip(shown.attention, shown.mean, trace.cross, strict=True):
        own = weights[0][:, : len(ids)]
        np.testing.assert_allclose(decoded(layer), own, atol=HALF)
        np.testing.assert_allclose(decoded(mean), own.mean(0), atol=HALF)
        assert decoded(layer).shape[2] == len(shown.source)
    chances = torch.softmax(logits, -1)
    for place, (token, score) in enumerate(zip(ids, shown.scores, strict=True)):
        assert score == pytest.approx(float(chances[place, token]), abs=1e-6)
        likeliest = shown.candidates[place]
        assert likeliest[0].score == pytest.approx(float(chances[place].max()), abs=1e-6)
        assert [one.score for one in likeliest] == sorted(
            (o.score for o in likeliest), reverse=True
        )
        if not shown.beams and token == int(chances[place].argmax()):
            assert likeliest[0].token == shown.target[place]


def test_the_tree_leads_to_the_text(shown: DecoderSteps) -> None:
    if not shown.beams:
        return
    wins = [[beam for beam in step if beam.wins] for step in shown.beams]
    assert [[one.token for one in step] for step in wins[: len(shown.target)]] == [
        [token] for token in shown.target
    ]
    assert not any(wins[len(shown.target) :])
    for step, before in zip(shown.beams[1:], shown.beams, strict=False):
        parents = {beam.before for beam in step}
        assert all(place is not None and before[place].state == "kept" for place in parents)
        assert sum(beam.state == "kept" for beam in step) <= 3
        for beam in step:  # a text is never likelier than its beginning
            assert beam.before is not None
            assert beam.score <= before[beam.before].score + 1e-5
    last = wins[len(shown.target) - 1][0]
    assert last.state == "ended"
    assert last.score == pytest.approx(float(np.log(shown.scores).sum()), abs=2e-3)


def test_too_long_or_empty_texts_are_refused(writer: Generate) -> None:
    with pytest.raises(DataError, match="text: must not be empty"):
        decoder_steps(writer, " \n ")
    with pytest.raises(
        DataError, match=rf"the model supports|but the page shows at most {MAX_TOKENS}"
    ):
        decoder_steps(writer, "the cat sat on a mat. " * 60)


def test_an_end_that_was_cut_is_said(marian: Path, text: str) -> None:  # noqa: F811
    steps = decoder_steps(Generate(bertkit.load(marian)), text, beams=1, max_tokens=2)
    assert steps.cut
    assert len(steps.target) == 2
