"""ROUGE of generated summaries and of the lead baseline."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from tests.extensions.generation.tasks.test_seq2seq import ROWS, write_model

from bertkit.cli import run


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "t5", "t5")


def test_lead_baseline_matches_rouge_score(
    t5: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "texts.jsonl"
    references = [[target, "a cat"] for target in ROWS.values()]
    rows = zip(ROWS, references, strict=True)
    file.write_text(
        "".join(json.dumps({"text": t, "summary": json.dumps(r)}) + "\n" for t, r in rows)
    )
    assert run(["evaluate", "summaries", f"{t5}", f"{file}", "--max-tokens", "6"]) == 0
    score = msgspec.json.decode(capsys.readouterr().out)
    assert score["documents"] == 4
    assert score["lead_words"] == 2
    scorer = pytest.importorskip("rouge_score.rouge_scorer", reason="pip install 'bertkit[dev]'")
    rouge_scorer = scorer.RougeScorer(["rouge1", "rougeL"])
    total = 0.0
    for text, targets in zip(ROWS, references, strict=True):
        lead = " ".join(text.split()[:2])
        total += max(rouge_scorer.score(target, lead)["rouge1"].fmeasure for target in targets)
    assert score["lead_rouge1"] == pytest.approx(total / 4)
    assert run(["evaluate", "summaries", f"{t5}", f"{file}", "--lead-words", "9"]) == 0
    assert msgspec.json.decode(capsys.readouterr().out)["lead_words"] == 9
