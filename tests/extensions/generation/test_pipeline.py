"""Text generation pipeline: streams, stop strings, order, and settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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
    """Directory of a randomly initialized GPT-2 whose tokenizer adds no special tokens."""
    directory = tmp_path_factory.mktemp("gpt2")
    trained = json.loads(train(english[:50], kind="bpe", size=600).core.to_str())
    trained["post_processor"] = None
    (directory / "tokenizer.json").write_text(json.dumps(trained), encoding="utf-8")
    tokenizer = bertkit.Tokenizer.load(directory)
    tiny_folder(directory / "model", tokenizer, "lm", family=GPT2, length=48, spread=0.4)
    return directory / "model"


@pytest.fixture(scope="module")
def write(folder: Path) -> Generate:
    return bertkit.pipeline("generate", folder)


PROMPTS = ["The class statement", "", "a", "Übung 🙂"]
SAMPLED = Decoding(temperature=1.5, max_tokens=30)


@pytest.mark.parametrize("decoding", [Decoding(), SAMPLED, Decoding(temperature=3.0, seed=5)])
@pytest.mark.parametrize("stop", [(), ("e", "zzz")])
def test_stream_parts_concatenate_to_the_text(
    write: Generate, decoding: Decoding, stop: tuple[str, ...]
) -> None:
    for prompt, (answer,) in zip(PROMPTS, write(PROMPTS, decoding, stop=stop), strict=True):
        parts = list(write.stream(prompt, decoding, stop=stop))
        assert "".join(parts) == answer.text
        assert all(parts)
        if not stop and answer.tokens > 20:
            assert len(parts) > 5


def test_generation_without_eos_ends_by_length_or_stop(english: list[str], tmp_path: Path) -> None:
    spec = json.loads(train(english[:50], kind="bpe", size=600, use="write").core.to_str())
    spec["added_tokens"] = []
    del spec["model"]["vocab"][END_OF_TEXT]
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec), encoding="utf-8")
    tokenizer = bertkit.Tokenizer.load(tmp_path)
    assert not tokenizer.ends
    shape = {"family": OPENAI_GPT, "length": 48, "intermediate": 64, "spread": 0.4}
    folder = tiny_folder(tmp_path / "model", tokenizer, "lm", **shape)
    write = bertkit.pipeline("generate", folder)
    for decoding in (Decoding(), Decoding(num_beams=3), SAMPLED):
        ((answer,),) = write(["The class"], decoding)
        assert answer.ended == "length"
        stop = [letter for letter in answer.text if letter.isalpha()]
        ((stopped,),) = write(["The class"], decoding, stop=stop)
        assert stopped.ended == "stop"
    with pytest.raises(DataError, match=r"prompt: must not be empty, because .* has no EOS token"):
        write([""])
    with pytest.raises(ConfigError, match="choices: the tokenizer has no EOS token"):
        write(["a"], choices=["b", "c"])


def test_text_ends_before_stop_string(write: Generate) -> None:
    (full,) = write(["The class"], SAMPLED)[0]
    assert full.ended == "length"
    stop = full.text[9:11]
    (stopped,) = write(["The class"], SAMPLED, stop=[stop, "not there"])[0]
    assert stopped.ended == "stop"
    assert stopped.text == full.text[: full.text.index(stop)]


def test_texts_keep_the_order_of_prompts(write: Generate) -> None:
    prompts = [f"{'class ' * (n % 7)}{n}" for n in range(70)]
    few = write(prompts[:3], SAMPLED) + write(prompts[3:], SAMPLED)
    for (answer,), (expected,) in zip(write(prompts, SAMPLED), few, strict=True):
        assert answer.text == expected.text
        assert answer.score == pytest.approx(expected.score, rel=1e-5)


def test_pipeline_rejects_too_long_prompt(write: Generate) -> None:
    with pytest.raises(DataError, match=r"leaves no space for new tokens within .* of 48;"):
        write(["one", "word " * 60])


def test_pipeline_accepts_dict_and_rejects_invalid_settings(write: Generate) -> None:
    decoding = Decoding(max_tokens=3)
    assert write("one two", {"max_tokens": 3}) == write(["one two"], decoding)
    streams = [write.stream("one two", settings) for settings in ({"max_tokens": 3}, decoding)]
    assert list(streams[0]) == list(streams[1])
    for invalid in (Decoding(temperature=-1.0), {"temperature": -1.0}):
        with pytest.raises(ConfigError, match=r"^temperature: expected `float` >= 0"):
            write(["one"], invalid)
    with pytest.raises(ConfigError, match=r"^generate: expected Decoding or a dict, got int"):
        write(["one"], 3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^max_tokens: expected `int` >= 1"):
        list(write.stream("one", Decoding(max_tokens=0)))


def test_pipeline_rejects_unsupported_options(write: Generate, tiny: Path) -> None:
    with pytest.raises(ConfigError, match="an empty string would end every text"):
        write(["x"], stop=[""])
    with pytest.raises(ConfigError, match="not supported for streaming"):
        list(write.stream("x", Decoding(num_beams=2)))
    with pytest.raises(CheckpointError, match=r"has no lm head .*use a generative model"):
        bertkit.pipeline("generate", tiny)


def test_settings_by_the_names_of_transformers_match_decoding(write: Generate) -> None:
    before, decoding = write(PROMPTS), Decoding(max_tokens=12, num_beams=3, no_repeat_ngram_size=2)
    changed = write.with_settings({"max_new_tokens": 12, "num_beams": 3, "no_repeat_ngram_size": 2})
    assert changed(PROMPTS) == write(PROMPTS, decoding)
    assert changed(PROMPTS) != before
    greedy = changed.with_settings({"num_beams": None, "no_repeat_ngram_size": 0})
    assert greedy(PROMPTS) == write(PROMPTS, Decoding(max_tokens=12))
    assert write(PROMPTS) == before


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beams": 3}, "beams: no such generation setting; did you mean 'num_beams'"),
        ({"penalty_alpha": 0.6}, "generation settings: penalty_alpha = 0.6 .*not supported"),
        ({"num_beams": 0}, "generation settings: num_beams: expected `int` >= 1"),
        ({"suppress_tokens": [9999]}, "token id 9999, but the vocabulary has 600 tokens"),
    ],
)
def test_invalid_settings_are_rejected(
    write: Generate, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        write.with_settings(settings)
