"""Models side by side: what waits for what, and what there is to draw by length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bertkit.extensions.classic.recurrent_config import RecurrentConfig
from bertkit.extensions.generation.translation_report import sequential_steps, write_columns
from bertkit.metrics import spread
from bertkit.models.config import TransformerConfig


def test_steps_that_wait() -> None:
    """By hand: layers × tokens for LSTMs; layers alone for attention, until it writes."""
    lstm = RecurrentConfig(vocab=8, hidden=8, layers=2)
    assert sequential_steps(lstm, lstm, 10, 7) == {"learning": 34, "writing": 34}
    stack = TransformerConfig(vocab=8, hidden=8, layers=2, heads=1, intermediate=8)
    assert sequential_steps(stack, stack, 10, 7) == {"learning": 4, "writing": 16}
    assert sequential_steps(stack, stack, 100, 7) == {"learning": 4, "writing": 16}


def result_of(groups: list[tuple[int, int, int]]) -> dict[str, Any]:
    """Two models, of which the second is better by 10 everywhere."""
    about = {"encoder": "LSTM", "decoder": "LSTM", "interaction": "<b>", "parameters": 1234,
             "steps": {"learning": 20.0, "writing": 30.0}}  # fmt: skip
    rows = [
        {"low": low, "high": high, "pairs": pairs, "score": f"BLEU, {low}"}
        for low, high, pairs in groups
    ]
    scores = {
        name: {
            "BLEU": spread([base, base + 2.0]),
            **{row["score"]: spread([base + n]) for n, row in enumerate(rows)},
            "seconds": spread([60.0]),
        }
        for name, base in (("one", 10.0), ("two", 20.0))
    }
    return {
        "origin": {"train": "a.txt", "dev": "b.txt"}, "pairs": {"train": 1000, "dev": 60},
        "dev_in_train": 0, "tokens": {"source": 9.0, "target": 11.0}, "settings": {"steps": 5},
        "metric": "BLEU", "groups": rows, "models": dict.fromkeys(("one", "two"), about),
        "scores": scores,
    }  # fmt: skip


def test_the_page_has_a_row_for_each_model_and_each_length(tmp_path: Path) -> None:
    write_columns(tmp_path, result_of([(1, 10, 40), (11, 20, 20)]))
    page = (tmp_path / "compare.html").read_text(encoding="utf-8")
    assert "11.000 ± 1.414" in page
    assert "&lt;b&gt;" in page
    assert '<th scope="row">11\N{EN DASH}20</th>' in page
    picture = (tmp_path / "compare.svg").read_text(encoding="utf-8")
    assert picture.count('class="line c1"') == 2  # its line, and its sample above
    assert "stand in both" not in page
    write_columns(tmp_path, result_of([(1, 10, 40), (11, 20, 20)]) | {"dev_in_train": 7})
    assert "7 of them stand in both" in (tmp_path / "compare.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("group", "reason"),
    [((4, 4, 60), "all sources have 4 words"), ((3, 9, 12), "there are too few pairs")],
)
def test_one_length_is_told_and_not_drawn(
    group: tuple[int, int, int], reason: str, tmp_path: Path
) -> None:
    write_columns(tmp_path, result_of([group]))
    for file in ("compare.html", "compare.svg"):
        content = (tmp_path / file).read_text(encoding="utf-8")
        assert f"No scores by length: {reason}." in content
        assert 'class="line' not in content
