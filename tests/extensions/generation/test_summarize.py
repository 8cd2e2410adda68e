"""Abstractive summaries, with the interface of extractive summaries."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.extensions.generation.tasks.test_seq2seq import ROWS, write_model

import bertkit
from bertkit.checkpoint.directory import load, resave
from bertkit.cli import run
from bertkit.errors import CheckpointError, ConfigError, DataError
from bertkit.extensions.generation.decoding import Decoding
from bertkit.extensions.generation.summarize import WriteSummaries, summaries
from bertkit.recipes.finetune import Finetune, finetune
from bertkit.tasks.inference import Work
from bertkit.tasks.summarize import SummaryAnswer

SHORT = Decoding(max_tokens=6)


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a T5 model whose config contains a prompt for summaries."""
    folder = write_model(tmp_path_factory.mktemp("models") / "t5", "t5")
    config = json.loads((folder / "config.json").read_text())
    config["task_specific_params"] = {"summarization": {"prefix": "summarize: "}}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_summary_matches_generated_text_of_prompted_document(t5: Path) -> None:
    summarize = bertkit.pipeline("summarize", t5)
    assert isinstance(summarize, WriteSummaries)
    documents = [*ROWS, "the cat " * 100]
    answers = summarize(documents, SHORT)
    assert [answer.truncated for answer in answers] == [False] * len(ROWS) + [True]
    texts = bertkit.pipeline("generate", t5)([f"summarize: {text}" for text in ROWS], SHORT)
    assert [a.text for a in answers[:-1]] == [best.text.strip() for best, *_ in texts]
    unprompted = bertkit.pipeline("generate", t5)(list(ROWS), SHORT)
    assert [best.text for best, *_ in unprompted] != [best.text for best, *_ in texts]
    # Other documents do not change a summary.
    assert [summarize([document], SHORT)[0] for document in documents] == answers


def test_resaved_model_generates_same_summaries(t5: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(t5, tmp_path / "model"))
    settings = json.loads((model / "generation_config.json").read_text())
    settings |= {"num_beams": 3, "no_repeat_ngram_size": 2}
    (model / "generation_config.json").write_text(json.dumps(settings))
    loaded = load(model)
    assert loaded.generation.decoding.num_beams == 3
    resave(loaded, loaded.model, tmp_path / "again")
    resaved = load(tmp_path / "again")
    assert resaved.generation == loaded.generation
    summaries = [
        bertkit.pipeline("summarize", directory)(list(ROWS))
        for directory in (model, resaved.folder)
    ]
    assert summaries[0] == summaries[1]
    assert summaries[0] != bertkit.pipeline("summarize", t5)(list(ROWS))  # control


def test_documents_are_summarized_in_batches_of_limited_size(
    t5: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summarize = bertkit.pipeline("summarize", t5)
    assert isinstance(summarize, WriteSummaries)
    documents = [*ROWS, *reversed(ROWS)]
    together, sizes, run = summarize(documents, SHORT), [], summarize.run

    def counted(works: Sequence[Work]) -> list[SummaryAnswer]:
        sizes.append(sum(work.tokens for work in works))
        return run(works)

    monkeypatch.setattr(summarize, "run", counted)
    monkeypatch.setattr("bertkit.extensions.generation.summarize.CACHE_TOKENS", 100)
    assert summarize(documents, SHORT) == together
    assert len(sizes) > 1
    assert max(sizes) <= 100


def test_extractive_model_rejects_generation_settings(tmp_path: Path, tiny: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"text": "a b c. d e f.", "summary": "a b c."}) + "\n")
    finetune(
        "summarize", tiny, train=rows, dev=rows, out=tmp_path / "m", settings=Finetune(epochs=1)
    )
    extractive = bertkit.pipeline("summarize", tmp_path / "m")
    assert summaries(extractive, ["a b c. d e f."])[0].sentences
    with pytest.raises(ConfigError, match="selects sentences and does not generate text"):
        summaries(extractive, ["a b c. d e f."], SHORT)


def test_summarize_rejects_empty_and_too_long_documents(t5: Path, tmp_path: Path) -> None:
    summarize = bertkit.pipeline("summarize", t5)
    with pytest.raises(DataError, match="the document is empty"):
        summarize(["a cat", " "])
    assert isinstance(summarize, WriteSummaries)
    with pytest.raises(DataError, match="the limit is 64; shorten it"):
        summarize(["the cat " * 100], long="error")
    folder = tmp_path / "odd"
    shutil.copytree(t5, folder)
    config = json.loads((folder / "config.json").read_text())
    config["task_specific_params"] = {"summarization": {"prefix": 7}}
    (folder / "config.json").write_text(json.dumps(config))
    odd = bertkit.pipeline("summarize", folder)
    assert isinstance(odd, WriteSummaries)
    assert odd.prompt == ""


def test_summarize_rejects_model_without_lm_head(tiny: Path) -> None:
    with pytest.raises(CheckpointError):
        bertkit.pipeline("summarize", tiny)
    with pytest.raises(CheckpointError, match="no lm head"):
        WriteSummaries(bertkit.load(tiny))


def test_command_prints_one_line_per_document(
    t5: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [*ROWS, "the cat " * 100]
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(json.dumps({"id": n, "text": t}) + "\n" for n, t in enumerate(rows)))
    assert run(["generate", f"{t5}", "--file", f"{file}", "--max-tokens", "6"]) == 0
    out, err = capsys.readouterr()
    summarize = bertkit.pipeline("summarize", t5)
    assert isinstance(summarize, WriteSummaries)
    expected = [" ".join(answer.text.split()) for answer in summarize(rows, SHORT)]
    assert out.splitlines() == expected
    assert f"{file}:5: longer than the model" in err

    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(rows[:2]) + "\n"))
    assert run(["generate", f"{t5}", "--max-tokens", "6"]) == 0
    assert capsys.readouterr().out.splitlines() == expected[:2]
    assert run(["generate", f"{t5}", "--text-column", "body"]) == 2
    assert "--text-column requires --file" in capsys.readouterr().err


def test_prompt_option_replaces_model_prompt(t5: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summarize = bertkit.pipeline("summarize", t5)
    summarize.prompt = "a dog "
    text = next(iter(ROWS))
    (expected,) = summarize([text], SHORT)
    assert run(["generate", f"{t5}", text, "--max-tokens", "6", "--prompt", "a dog "]) == 0
    assert capsys.readouterr().out.strip() == " ".join(expected.text.split())


@pytest.mark.parametrize("option", ["--scores", "--stream", "--stop=a", "--prefix=a", "--choice=a"])
def test_options_of_other_models_are_rejected(
    option: str, t5: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["generate", f"{t5}", "a text", option]) == 2
    name = option.partition("=")[0]
    assert f"{name}: not supported by a model that summarizes" in capsys.readouterr().err
