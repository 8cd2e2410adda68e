"""Tests that a generation option changes only one setting of the model directory."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.extensions.generation.tasks.test_seq2seq import write_model

import bertkit
from bertkit import cli
from bertkit.errors import ConfigError
from bertkit.extensions.generation import routes
from bertkit.extensions.generation.decoding import Decoding
from bertkit.extensions.generation.openai_types import CompletionAsk
from bertkit.extensions.generation.pipeline import Generate, merge_decoding
from bertkit.extensions.generation.summarize import WriteSummaries

Captured = pytest.CaptureFixture[str]
SETTINGS = {"num_beams": 3, "no_repeat_ngram_size": 2, "length_penalty": 2.0, "max_new_tokens": 9}
OPTIONS: dict[str, Any] = {
    "max_tokens": 4, "min_tokens": 3, "num_beams": 2, "length_penalty": 0.5, "early_stopping": True,
    "no_repeat_ngram_size": 1, "repetition_penalty": 2.0, "num_return_sequences": 2,
    "seed": 3, "top_k": 5, "top_p": 0.5, "min_p": 0.5,
}  # fmt: skip
PROMPT = "the cat"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_model(tmp_path_factory.mktemp("options") / "bart", "bart")
    path = folder / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **SETTINGS}))
    return folder


@pytest.fixture(scope="module")
def writer(folder: Path) -> Generate:
    return Generate(bertkit.load(folder))


def expected(writer: Generate, **changes: Any) -> Decoding:
    return msgspec.structs.replace(writer.loaded.generation.decoding, **changes)


@pytest.mark.parametrize("name", OPTIONS)
def test_option_keeps_other_settings_of_model_directory(
    name: str, writer: Generate, capsys: Captured
) -> None:
    whole = expected(writer, **{name: OPTIONS[name]})
    assert merge_decoding(writer.loaded.generation.decoding, {name: OPTIONS[name]}) == whole
    texts = writer([PROMPT], whole)
    assert writer([PROMPT], {name: OPTIONS[name]}) == texts
    flag, value = f"--{name.replace('_', '-')}", OPTIONS[name]
    words = [flag] if value is True else [flag, str(value)]
    assert cli.run(["generate", str(writer.loaded.folder), PROMPT, *words]) == 0
    assert capsys.readouterr().out == " ".join(texts[0][0].text.split()) + "\n"


def test_object_replaces_all_settings(writer: Generate) -> None:
    greedy = writer([PROMPT], Decoding(max_tokens=5))
    assert greedy == writer([PROMPT], {**OPTIONS, **msgspec.to_builtins(Decoding(max_tokens=5))})
    assert greedy != writer([PROMPT], {"max_tokens": 5})


def test_summaries_keep_settings_of_model_directory(folder: Path) -> None:
    pipeline = WriteSummaries(bertkit.load(folder))
    whole = expected(pipeline.writer, max_tokens=3)
    assert pipeline([PROMPT], {"max_tokens": 3}) == pipeline([PROMPT], whole)
    (work,) = pipeline.writer.prepare([PROMPT], long="error")
    assert work.item[2] == pipeline.loaded.generation.decoding


def test_options_that_contradict_settings_are_rejected(writer: Generate) -> None:
    with pytest.raises(ConfigError, match="set num_beams to 1, or temperature to 0"):
        writer([PROMPT], {"temperature": 1.0})
    with pytest.raises(ConfigError, match="set num_beams to 1"):
        writer([PROMPT], {"prompt_lookup_num_tokens": 2})
    with pytest.raises(ConfigError, match="max_token: no such setting"):
        writer([PROMPT], {"max_token": 2})


@pytest.mark.parametrize("given", [{}, {"max_tokens": 4}, {"temperature": 0.5}, {"top_p": 0.3}])
def test_request_keeps_settings_of_model_directory(given: dict[str, Any]) -> None:
    base = Decoding(
        temperature=0.7, top_k=9, repetition_penalty=1.2, no_repeat_ngram_size=3, max_tokens=7
    )
    pipeline: Any = SimpleNamespace(
        loaded=SimpleNamespace(generation=SimpleNamespace(decoding=base))
    )
    ask = msgspec.convert({"prompt": "a", **given}, CompletionAsk)
    found = routes._decoding(ask, pipeline)
    assert found == msgspec.structs.replace(base, **given)


def test_request_samples_like_openai_by_default() -> None:
    loaded = SimpleNamespace(generation=SimpleNamespace(decoding=Decoding()))
    pipeline: Any = SimpleNamespace(loaded=loaded)
    ask = msgspec.convert({"prompt": "a"}, CompletionAsk)
    assert routes._decoding(ask, pipeline) == Decoding(temperature=1.0, max_tokens=256)
