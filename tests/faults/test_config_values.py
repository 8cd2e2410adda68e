"""A `config.json` with one wrong value is loaded or raises a BertkitError."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.factories import tiny_config, tiny_folder

import bertkit
from bertkit.checkpoint.directory import save
from bertkit.extensions.generation.families.openai_gpt import OPENAI_GPT
from bertkit.families import FAMILIES
from bertkit.models.model import build
from bertkit.text.vocabulary_training import train

WRONG: list[Any] = [0, -1, 3, 2**31, 10**30, -0.5, 1e300, "", "text", [], [0], {}, True, None]
OTHER_KEYS = ("decoder_start_token_id", "eos_token_id", "id2label", "num_labels", "problem_type")


@pytest.fixture(scope="module")
def tokenizer(english: list[str]) -> bertkit.Tokenizer:
    return train(english[:20], kind="bpe", size=300)


@pytest.mark.parametrize("half", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", FAMILIES)
def test_wrong_value_in_config_is_rejected_or_loaded(
    name: str, half: int, tokenizer: bertkit.Tokenizer, tmp_path: Path
) -> None:
    """Each key gets one half of the values; keys and families alternate between the halves."""
    family = FAMILIES[name]
    head = "lm" if "lm" in family.heads else "mlm"
    options: dict[str, Any] = {"intermediate": 64} if family is OPENAI_GPT else {}
    if family.decoder is None:
        tiny_folder(tmp_path, tokenizer, head, family=family, **options)
    else:
        stacks = [tiny_config(tokenizer, family=stack) for stack in (family, family.decoder)]
        save(tmp_path, build(stacks[0], [head], decoder=stacks[1]), tokenizer, family)
    path = tmp_path / "config.json"
    right = json.loads(path.read_text(encoding="utf-8"))
    num_rejected = 0
    keys = sorted({*family.keys.applied, *OTHER_KEYS} - {"auto_map", "model_type"})
    for number, key in enumerate(keys, half + [*FAMILIES].index(name)):
        for value in WRONG[number % 2 :: 2]:
            path.write_text(json.dumps({**right, key: value}), encoding="utf-8")
            try:
                bertkit.load(tmp_path)
            except bertkit.BertkitError as error:
                assert len(str(error).splitlines()) == 1, (key, value)  # noqa: PT017
                num_rejected += 1
            except Exception as error:
                raise AssertionError(f"{key} = {value!r}: {error!r}") from error
    assert num_rejected > 25
