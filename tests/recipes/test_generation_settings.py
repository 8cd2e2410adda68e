"""Each command that writes a generative model keeps the generation settings of its base model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.extensions.generation.tasks.test_seq2seq import EXAMPLES, write_model
from tests.extensions.generation.test_chat_format import TALK, vocabulary
from tests.factories import tiny_folder

import bertkit
from bertkit.extensions.generation.generation_config import FILE
from bertkit.extensions.generation.messages import Conversation
from bertkit.families import FAMILIES
from bertkit.recipes.finetune import finetune

SETTINGS: dict[str, Any] = {
    "num_beams": 4, "length_penalty": 0.0, "no_repeat_ngram_size": 3, "early_stopping": True,
    "repetition_penalty": 1.3, "max_length": 40, "min_length": 3, "suppress_tokens": [9],
    "begin_suppress_tokens": [10, 11], "bad_words_ids": [[12], [13, 14]],
}  # fmt: skip
FAST = {"epochs": 1, "precision": "fp32", "batch_size": 4}


@pytest.fixture(scope="module", params=["generation_config.json", "config.json"])
def bart(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_model(tmp_path_factory.mktemp("settings") / "bart", "bart")
    tokenizer = bertkit.Tokenizer.load(folder)
    first = {"forced_bos_token_id": tokenizer.cls, "forced_eos_token_id": tokenizer.eos}
    path = folder / FILE
    before = json.loads(path.read_text())
    if request.param == "config.json":
        path.unlink()
        path = folder / "config.json"
        before = json.loads(path.read_text())
    path.write_text(json.dumps({**before, **SETTINGS, **first}))
    return folder


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("settings") / "llama"
    shape = {"length": 128, "layers": 1}
    tiny_folder(folder, vocabulary("chatml"), "lm", family=FAMILIES["llama"], **shape)
    settings = {"eos_token_id": 2, "do_sample": True, "temperature": 0.7, "top_k": 20}
    (folder / FILE).write_text(json.dumps({**settings, "repetition_penalty": 1.05}))
    return folder


def seq2seq(base: Path, out: Path, **options: Any) -> None:
    finetune("seq2seq", base, train=EXAMPLES, dev=EXAMPLES, out=out, settings={**FAST, **options})


def chat(base: Path, out: Path) -> None:
    talks = [Conversation(tuple(TALK), "a:1"), Conversation(tuple(TALK[:2]), "a:2")]
    finetune("chat", base, train=talks, dev=talks, out=out, settings=FAST)


COMMANDS: dict[str, Callable[[Path, Path], object]] = {
    "save": lambda base, out: bertkit.load(base).save(out),
    "finetune": seq2seq,
    "lora": lambda base, out: seq2seq(base, out, lora={"rank": 2}),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_command_keeps_generation_settings(name: str, bart: Path, tmp_path: Path) -> None:
    COMMANDS[name](bart, tmp_path / "out")
    base, result = bertkit.load(bart).generation, bertkit.load(tmp_path / "out").generation
    assert base.decoding.num_beams == 4
    assert result == base


def test_finetune_chat_keeps_generation_settings(llama: Path, tmp_path: Path) -> None:
    chat(llama, tmp_path / "out")
    base, result = bertkit.load(llama).generation, bertkit.load(tmp_path / "out").generation
    assert base.decoding.temperature == 0.7
    assert result == base


def test_evaluate_returns_the_score_of_the_run(bart: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    lines = [json.dumps({"text": e.document, "target": e.references[0]}) for e in EXAMPLES]
    rows.write_text("\n".join(lines))
    finetune("seq2seq", bart, train=rows, dev=rows, out=tmp_path / "out", settings=FAST)
    scores = json.loads((tmp_path / "out" / "scores.json").read_text())
    found = bertkit.evaluate(str(tmp_path / "out"), rows)["perplexity"]
    assert found == pytest.approx(scores["dev"]["perplexity"], rel=1e-4)
