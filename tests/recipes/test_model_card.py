"""Model cards: data, scores, settings, and usage."""

from pathlib import Path
from typing import Any

import pytest

from bertkit.recipes.model_card import AUTO, COMMANDS, EXAMPLES, write_card
from bertkit.tasks import TASKS


def run(name: str, **options: Any) -> dict[str, Any]:
    return {
        "task": {"name": name, "options": options},
        "model": "a-model",
        "settings": {"epochs": 2, "seed": 7},
        "data": {
            "train": {"file": "train.tsv", "rows": 1000, "sha256": "a" * 64},
            "dev": {"file": None, "rows": 20, "sha256": "b" * 64},
        },
        "metric": "f1",
        "dev": {"f1": 0.5, "epoch": 1},
        "epochs": [{"epoch": 1, "f1": 0.5}, {"epoch": 2, "f1": 0.4}],
    }


@pytest.mark.parametrize("name", TASKS)
def test_card_of_each_task_contains_usage_and_scores(name: str, tmp_path: Path) -> None:
    write_card(tmp_path, run(name))
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    if name in COMMANDS:
        assert f"\n{COMMANDS[name].format(tmp_path.name)}\n" in card
    else:
        assert f'bertkit.pipeline("{name}", "{tmp_path.name}")' in card
        assert EXAMPLES.get(name, '"A text."') in card
    assert f"`{AUTO[name]}`" in card
    for fact in ("a-model", "train.tsv, 1,000 examples", "given in Python, 20", "| f1 | 0.5000 |"):
        assert fact in card
    assert "Epoch 1 of 2, the best by f1" in card
    assert "- seed = 7" in card


def test_card_states_that_hugging_face_ignores_the_crf(tmp_path: Path) -> None:
    write_card(tmp_path, run("tag", crf=True))
    assert "without the CRF" in (tmp_path / "README.md").read_text(encoding="utf-8")
    write_card(tmp_path, run("tag", crf=False))
    assert "CRF" not in (tmp_path / "README.md").read_text(encoding="utf-8")


def test_card_of_custom_task_names_its_code(tmp_path: Path) -> None:
    write_card(tmp_path, run("mine.stars:Rate"))
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "loading the model requires its code" in card
    assert f'bertkit.pipeline("mine.stars:Rate", "{tmp_path.name}")' in card
    assert card.count("```") == 2
