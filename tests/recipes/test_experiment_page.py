"""HTML page of an experiment."""

from __future__ import annotations

from pathlib import Path

from tests.factories import tiny_folder, tiny_tokenizer

import bertkit

WORDS = "abcdefghij"
ROWS = [{"text": f"{word} {word}", "label": "xy"[i % 2]} for i, word in enumerate(WORDS)]


def test_page_shows_scores_runs_and_failures(tmp_path: Path) -> None:
    base = tiny_folder(tmp_path / "base", tiny_tokenizer(WORDS))
    settings = {"task": "classify", "model": str(base), "epochs": 1, "precision": "fp32"}
    plan = {
        "settings": {**settings, "train": ROWS, "dev": ROWS, "test": ROWS},
        "variants": {"small": {}, "large": {"batch_size": 4}},
        "grid": {"learning_rate": [1e-4, 1e30]},
        "seeds": 2,
    }

    bertkit.experiment(plan, out=tmp_path / "out")
    page = (tmp_path / "out" / "experiment.html").read_text("utf-8")
    assert page.index("accuracy on dev") < page.index("accuracy on test") < page.index("All runs")
    assert "small/learning_rate=0.0001 (2 seeds)" in page
    assert "large/learning_rate=1e+30" in page[page.index("Failed runs") :]
    assert "settings.epochs" in page
