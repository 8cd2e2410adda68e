"""Prompts go in, texts come out: whole or in pieces, ended or cut."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.factories import tiny_folder

import bertkit
from bertkit.errors import CheckpointError, ConfigError, DataError
from bertkit.extensions.generation.decoding import Decoding
from bertkit.extensions.generation.families.gpt2 import GPT2
from bertkit.extensions.generation.families.openai_gpt import OPENAI_GPT
from bertkit.extensions.generation.pipeline import Generate
from bertkit.text.vocabulary_training import END_OF_TEXT, train


@pytest.fixture(scope="module")
def folder(english: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2 of random weights, with a byte-level vocabulary whose texts have no frame."""
    place = tmp_path_factory.mktemp("gpt2")
    trained = json.loads(train(english[:50], kind="bpe", size=600).core.to_str())
    trained["post_processor"] = None
    (place / "tokenizer.json").write_text(json.dumps(trained), encoding="utf-8")
    tokenizer = bertkit.Tokenizer.load(place)
    tiny_folder(place / "model", tokenizer, "lm", family=GPT2, length=48, spread=0.4)
    return place / "model"


@pytest.fixture(scope="module")
def write(folder: Path) -> Generate:
    return bertkit.pipeline("generate", folder)


PROMPTS = ["The class statement", "", "a", "Übung 🙂"]
DRAWN = Decoding(temperature=1.5, max_tokens=30)


@pytest.mark.parametrize("decoding", [Decoding(), DRAWN, Decoding(temperature=3.0, seed=5)])
@pytest.mark.parametrize("stop", [(), ("e", "zzz")])
def test_a_stream_is_the_text_in_pieces(
    write: Generate, decoding: Decoding, stop: tuple[str, ...]
) -> None:
    for prompt, (answer,) in zip(PROMPTS, write(PROMPTS, decoding, stop=stop), strict=True):
        pieces = list(write.stream(prompt, decoding, stop=stop))
        assert "".join(pieces) == answer.text
        assert all(pieces)
        if not stop and answer.tokens > 20:
            assert len(pieces) > 5


def test_without_an_end_token_a_text_ends_by_its_length_or_a_stop_string(
    english: list[str], tmp_path: Path
) -> None:
    spec = json.loads(train(english[:50], kind="bpe", size=600, use="write").core.to_str())
    spec["added_tokens"] = []
    del spec["model"]["vocab"][END_OF_TEXT]
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec), encoding="utf-8")
    tokenizer = bertkit.Tokenizer.load(tmp_path)
    assert not tokenizer.ends
    shape = {"family": OPENAI_GPT, "length": 48, "intermediate": 64, "spread": 0.4}
    folder = tiny_folder(tmp_path / "model", tokenizer, "lm", **shape)
    write = bertkit.pipeline("generate", folder)
    for decoding in (Decoding(), Decoding(beams=3), DRAWN):
        ((answer,),) = write(["The class"], decoding)
        assert answer.ended == "length"
        stop = [letter for letter in answer.text if letter.isalpha()]
        ((cut,),) = write(["The class"], decoding, stop=stop)
        assert cut.ended == "stop"
    with pytest.raises(DataError, match="prompt: it is empty, and the tokenizer has no EOS token"):
        write([""])
    with pytest.raises(ConfigError, match="choices: the tokenizer has no EOS token"):
        write(["a"], choices=["b", "c"])


def test_a_text_ends_before_a_stop_string(write: Generate) -> None:
    (whole,) = write(["The class"], DRAWN)[0]
    assert whole.ended == "length"
    stop = whole.text[9:11]
    (cut,) = write(["The class"], DRAWN, stop=[stop, "not there"])[0]
    assert cut.ended == "stop"
    assert cut.text == whole.text[: whole.text.index(stop)]


def test_texts_come_in_the_order_of_their_prompts(write: Generate) -> None:
    prompts = [f"{'class ' * (n % 7)}{n}" for n in range(70)]
    few = write(prompts[:3], DRAWN) + write(prompts[3:], DRAWN)
    for (one,), (other,) in zip(write(prompts, DRAWN), few, strict=True):
        assert one.text == other.text
        assert one.score == pytest.approx(other.score, rel=1e-5)


def test_a_prompt_that_fills_the_model_is_refused(write: Generate) -> None:
    with pytest.raises(
        DataError,
        match="tokens, which leaves no space for new tokens within the maximum length of 48;",
    ):
        write(["one", "word " * 60])


def test_one_prompt_and_settings_as_plain_data(write: Generate) -> None:
    asked = Decoding(max_tokens=3)
    assert write("one two", {"max_tokens": 3}) == write(["one two"], asked)
    assert list(write.stream("one two", {"max_tokens": 3})) == list(write.stream("one two", asked))
    for wrong in (Decoding(temperature=-1.0), {"temperature": -1.0}):
        with pytest.raises(ConfigError, match=r"^temperature: expected `float` >= 0"):
            write(["one"], wrong)
    with pytest.raises(ConfigError, match=r"^generate: expected Decoding or a dict, got int"):
        write(["one"], 3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^max_tokens: expected `int` >= 1"):
        list(write.stream("one", Decoding(max_tokens=0)))


def test_what_cannot_be_asked(write: Generate, tiny: Path) -> None:
    with pytest.raises(ConfigError, match="an empty string ends every text"):
        write(["x"], stop=[""])
    with pytest.raises(ConfigError, match="not supported when streaming"):
        list(write.stream("x", Decoding(beams=2)))
    with pytest.raises(CheckpointError, match=r"has no lm head .*use a generative model"):
        bertkit.pipeline("generate", tiny)
