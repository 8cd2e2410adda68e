"""Prefixes, lengths, sampling, and arguments of text generation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.extensions.transformers_pipelines.cases import LONG, LOWER
from tests.extensions.transformers_pipelines.models import byte_tokenizer
from tests.factories import tiny_model

import bertkit
from bertkit.checkpoint.directory import save
from bertkit.errors import CheckpointError, ConfigError, DataError
from bertkit.families import FAMILIES


def test_languages_select_the_prefix(models: Path) -> None:
    texts = [
        bertkit.pipeline(name, models / "t5")(LOWER, max_new_tokens=9)[0]["translation_text"]
        for name in ("translation_en_to_de", "translation_en_to_fr", "translation")
    ]
    # Without languages, the first pair in config.json is used.
    assert texts[0] == texts[2] != texts[1]


def test_max_length_of_a_call_limits_the_text(models: Path) -> None:
    """In transformers 4.57, the default of `max_new_tokens` takes precedence over it."""
    generate = bertkit.pipeline("text2text-generation", models / "bart")
    assert generate(LOWER, max_length=7) == generate(LOWER, max_new_tokens=6)
    assert generate(LOWER, max_length=7, max_new_tokens=9) == generate(LOWER, max_new_tokens=9)


def test_sampling_depends_on_the_seed_only(models: Path) -> None:
    sampling = {"do_sample": True, "num_beams": 1, "temperature": 2.0, "max_new_tokens": 9}
    generate = bertkit.pipeline("text2text-generation", models / "t5", **sampling)
    assert generate(LOWER) == generate(LOWER)
    assert generate(LOWER) != generate(LOWER, do_sample=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_beam": 3}, "num_beam: no such generation setting; did you mean 'num_beams'"),
        ({"num_beam_groups": 2}, "num_beam_groups = 2 .*not supported by bertkit"),
        ({"do_sample": True}, r"num_beams = 4 \(set num_beams = 1\): not supported by bertkit"),
        ({"return_tensors": True}, "return_tensors = true is not supported"),
        ({"generation_config": {}}, "generation_config: no such generation setting"),
        ({"num_beams": "many"}, "num_beams|beams"),
        ({"eos_token_id": -1}, "eos_token_id must be an integer of at least 0"),
        ({"forced_bos_token_id": 9999}, "token id 9999, but the vocabulary has"),
        ({"max_length": 1}, "max_length"),
    ],
)
def test_invalid_arguments_are_rejected(
    arguments: dict[str, Any], message: str, models: Path
) -> None:
    translate = bertkit.pipeline("translation", models / "t5")
    with pytest.raises(ConfigError, match=message):
        translate(LOWER, **arguments)
    with pytest.raises(ConfigError, match=message):
        bertkit.pipeline("translation", models / "t5", **arguments)


def test_name_without_two_languages_is_rejected(models: Path) -> None:
    with pytest.raises(ConfigError, match="task: expected `str` matching regex"):
        bertkit.pipeline("translation_de", models / "t5")


def test_long_and_empty_texts_are_rejected(models: Path) -> None:
    summarize = bertkit.pipeline("summarization", models / "bart", max_new_tokens=3)
    with pytest.raises(DataError, match=r"tokens"):
        summarize(LONG)
    assert len(summarize(LONG, truncation=True)) == 1
    with pytest.raises(DataError, match=r"inputs\[0\]: the text is empty"):
        summarize([""])


def test_causal_model_is_rejected(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    model = tiny_model(tokenizer, "lm", family=FAMILIES["gpt2"])
    save(tmp_path / "gpt2", model, tokenizer, FAMILIES["gpt2"])
    with pytest.raises(CheckpointError, match="requires an encoder-decoder model; use T5, BART"):
        bertkit.pipeline("summarization", tmp_path / "gpt2")
