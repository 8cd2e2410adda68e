"""The web page of runs shows their curves and samples."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tests.extensions.conftest import Server
from tests.extensions.serving.test_pages import rows

from bertkit.extensions.serving.models import ModelRegistry
from bertkit.extensions.serving.training_page import REFRESH_SECONDS
from bertkit.recipes.prepare import prepare
from bertkit.recipes.pretrain import pretrain
from bertkit.text.vocabulary_training import train


def make_run(run_dir: Path, lines: list[dict[str, Any]], steps: int = 100) -> Path:
    run_dir.mkdir()
    record = {"config": {"train": {"steps": steps}}}
    (run_dir / "run.json").write_text(json.dumps(record), encoding="utf-8")
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (run_dir / "journal.jsonl").write_text(text, encoding="utf-8")
    return run_dir


def test_training_page_shows_curves_of_runs(server: Server, tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [
        {"step": n, "loss": 5 - n / 50, "learning_rate": 1e-4} for n in (10, 20, 30)
    ]
    lines += [{"step": n, "held_out": {"mlm": 4.0 - n / 100}} for n in (20, 30)]
    first_run = make_run(tmp_path / "one", lines)
    second_run = make_run(tmp_path / "two <b>", lines[:2], steps=20)
    client = server(at=ModelRegistry([], None), runs=[first_run, second_run])
    assert client.get("/", follow_redirects=False).headers["location"] == "/training"
    word_page = client.get("/word", params={"word": "a", "texts": "a\nb a"})
    assert word_page.url.path == "/training"
    assert client.get("/ask", params={"text": "a"}).url.path == "/training"
    page = client.get("/training").text
    assert f'<meta http-equiv="refresh" content="{REFRESH_SECONDS}">' in page
    assert rows(page) == [
        ["one", "30 of 100", "running", "4.400", "mlm 3.700"],
        ["two &lt;b&gt;", "20 of 20", "finished", "4.600", ""],
        ["train.steps", "100", "20"],
    ]
    # The charts show the training loss, the held-out loss, and the learning rate.
    assert page.count('class="chart"') == 3
    assert "two <b>" not in page
    with (first_run / "journal.jsonl").open("a", encoding="utf-8") as file:
        # The last line is incomplete.
        file.write(json.dumps({"step": 100, "loss": 3.0}) + '\n{"step": 1')
    finished_page = client.get("/training").text
    assert "refresh" not in finished_page
    assert rows(finished_page)[0][:3] == ["one", "100 of 100", "finished"]
    (first_run / "run.json").unlink()
    missing_run_page = client.get("/training")
    assert missing_run_page.status_code == 422
    assert "not a run directory" in missing_run_page.text


def test_training_page_shows_samples_of_run(
    server: Server, english: list[str], tmp_path: Path
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(english[:8]), encoding="utf-8")
    tokenizer = train([text.read_text(encoding="utf-8")], kind="wordpiece", size=200)
    corpus = prepare([text], tokenizer=tokenizer, out=tmp_path / "corpus", processes=1).folder
    settings = {
        "model": {"layers": 1, "hidden": 16, "heads": 2, "intermediate": 32, "max_positions": 32},
        "sampling": {"length": 24, "pairs": "none"},
        "train": {"steps": 4, "batch_size": 4, "log_every": 1, "precision": "fp32"},
    }
    pretrain(settings, corpus=corpus, out=tmp_path / "run")
    client = server(at=ModelRegistry([], None), runs=[tmp_path / "run"])
    page = client.get("/training").text
    assert "Samples of run" in page
    assert rows(page)[0][:3] == ["run", "4 of 4", "finished"]
    record = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    for config in ({"train": {"steps": "4"}}, {"sampling": 3}, {"model": [1]}, {"family": "x"}):
        damaged = json.dumps({**record, "config": {**record["config"], **config}})
        (tmp_path / "run" / "run.json").write_text(damaged, encoding="utf-8")
        shown = server(at=ModelRegistry([], None), runs=[tmp_path / "run"]).get("/training")
        assert shown.status_code == 200
        assert "cannot show training samples (" in shown.text
    (tmp_path / "run" / "run.json").write_bytes(b"\xff")
    (tmp_path / "run" / "journal.jsonl").write_bytes(b'[1]\n{"step": "1"}\n{"step": 3}\n')
    shown = server(at=ModelRegistry([], None), runs=[tmp_path / "run"]).get("/training")
    assert shown.status_code == 200
    assert "skipped 2 damaged lines" in shown.text
    (tmp_path / "run" / "run.json").write_text(json.dumps(record), encoding="utf-8")
    shutil.rmtree(corpus)
    page_without_corpus = server(at=ModelRegistry([], None), runs=[tmp_path / "run"])
    assert "Samples of run" not in page_without_corpus.get("/training").text
