"""Progress of runs, read from their directories."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.view.conftest import html_of

from bertkit.errors import CheckpointError
from bertkit.extensions.serving.run_figures import run_figures
from bertkit.training.journal import Journal
from bertkit.view.runs import (
    MAX_POINTS,
    STOPPED_SECONDS,
    RunView,
    contains_runs,
    different_settings,
    draw,
    find_runs,
    read_run,
    thin,
)

DAMAGED = [
    b"\xff\xfe{}", b"{", b"[1]", b"3", b"null", b'"step"', b"{}", b'{"loss": 1.0}',
    b'{"step": "1"}', b'{"step": null}', b'{"step": true}', b'{"step": -1}', b'{"step": 1.5}',
    b'{"step": NaN}', b'{"step": 1' + b"0" * 30 + b"}", b'{"step": 1' + b"0" * 5000 + b"}",
    b'{"step": 1, "loss": "1.0"}', b'{"step": 1, "loss": null}', b'{"step": 1, "loss": [1]}',
    b'{"step": 1, "learning_rate": {}}', b'{"step": 1, "scores": 1}',
    b'{"step": 1, "scores": {"f1": "x"}}', b'{"step": 1, "held_out": [1.0]}',
    b'{"step": 1, "held_out": {"mlm": null}}', b'{"step": 1, "epoch": "1"}',
    b'{"step": 1, "more": ' + b"[" * 100_000 + b"}",
]  # fmt: skip

RECORDS = [
    b"", b"\xff", b"[]", b"1", b"null", b'{"config": 3}', b'{"config": {"train": [1]}}',
    b'{"corpus_folder": 1}', b"[" * 100_000,
    b'{"config": {"train": {"steps": 1' + b"0" * 5000 + b"}}}",
]  # fmt: skip


def shown(runs: list[RunView]) -> str:
    return html_of(*run_figures(runs), alerts=tuple(a for run in runs for a in run.damaged))


def folder(directory: Path, record: Any, *lines: Any) -> Path:
    (directory / "run.json").write_text(json.dumps(record), encoding="utf-8")
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (directory / "journal.jsonl").write_text(text, encoding="utf-8")
    return directory


def test_run_without_recent_records_has_stopped(tmp_path: Path) -> None:
    directory = folder(tmp_path, {"task": "classify"}, {"step": 3, "loss": 1.0})
    run = read_run(directory)
    assert (run.step, run.steps, run.learns) == (3, None, True)
    then = time.time() - STOPPED_SECONDS - 5
    os.utime(directory / "journal.jsonl", (then, then))
    assert not read_run(directory).learns
    assert "stopped or finished" in shown([read_run(directory)])


@pytest.mark.parametrize("seconds", [0, 3 * STOPPED_SECONDS])
def test_fine_tuning_with_scores_is_finished(seconds: int, tmp_path: Path) -> None:
    directory = folder(tmp_path, {"task": "classify"}, {"step": 3, "loss": 1.0})
    assert ">finished</td>" not in shown([read_run(directory)])  # the control
    (directory / "scores.json").write_text("{}", encoding="utf-8")
    then = time.time() - seconds
    os.utime(directory / "journal.jsonl", (then, then))
    run = read_run(directory)
    assert (run.finished, run.learns) == (True, False)
    assert ">finished</td>" in shown([run])


def test_epoch_scores_appear_in_chart(tmp_path: Path) -> None:
    lines = [{"step": n, "epoch": n, "scores": {"f1": 0.5 + n / 10}} for n in (1, 2)]
    html = shown([read_run(folder(tmp_path, {}, *lines))])
    assert "f1 0.700" in html
    assert html.count('class="chart"') == 1


def many(directory: Path, *names: str, **more: Any) -> list[RunView]:
    """Write runs of ten steps with different learning rates."""
    for number, name in enumerate(names):
        (directory / name).mkdir(parents=True)
        lines: list[Any] = [
            {"step": n, "loss": 5.0 - n / 10, "tokens": 100, "tokens_per_second": 50.0, **more}
            for n in range(1, 11)
        ]
        lines += [{"step": n, "held_out": {"mlm": 3.0, "nsp": 0.5}} for n in (5, 10)]
        train = {"steps": 10, "learning_rate": 10.0**-number}
        folder(directory / name, {"config": {"train": train}, "corpus": name}, *lines)
    return [read_run(directory / name, name) for name in names]


def test_runs_share_one_chart_per_metric(tmp_path: Path) -> None:
    html = shown(many(tmp_path, "a", "b", data_wait=0.5, mfu=0.25, peak_memory=1.5))
    charts = re.findall(r'<svg class="chart".*?</svg>', html, re.S)
    titles = [re.search('aria-label="(.*?) by step"', chart) for chart in charts]
    assert [title[1] for title in titles if title] == [
        *("loss", "held-out loss: mlm", "held-out loss: nsp"),
        *("tokens/s", "MFU", "seconds waiting for data", "memory, GiB"),
    ]
    for chart in charts:
        assert {"c0", "c1"} <= set(re.findall(r'class="line (c\d)"', chart))
    assert "25.0%" in html
    # Each step waits 0.5 s and computes 2 s.
    assert "20.0%" in html
    assert "1.5 GiB" in html
    assert "slowest" not in html
    assert "2 (100% of the steps)" in shown(many(tmp_path / "more", "a", slowest_rank=2))


def test_run_keeps_its_color_without_other_lines(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    new = read_run(folder(tmp_path / "new", {}))
    html = shown([new, *many(tmp_path, "old")])
    assert 'class="line c1" d="M56' in html
    assert 'class="line c0" d="M56' not in html


def test_metrics_of_one_run_share_a_chart(tmp_path: Path) -> None:
    html = shown(many(tmp_path, "a"))
    # Loss, held-out loss, and tokens/s.
    assert html.count('class="chart"') == 3
    assert ">mlm</text>" in html


def test_different_settings_are_listed(tmp_path: Path) -> None:
    runs = many(tmp_path, "a", "b")
    records = [run.record for run in runs]
    assert different_settings(records) == {"train.learning_rate": ["1.0", "0.1"]}
    assert different_settings(records[:1]) == {}
    other = {"settings": {"epochs": 3}, "task": "tag"}
    assert different_settings([records[0], other])["epochs"] == ["", "3"]
    architectures = [{"layers": 1, "heads": 2}, {"layers": 2, "recurrent": {"cell": "lstm"}}]
    configs = [{"config": {"model": model, "family": str(model)}} for model in architectures]
    assert list(different_settings(configs)) == ["family"]
    assert "train.learning_rate" in shown(runs)
    assert "train.learning_rate" not in shown(runs[:1])


def test_different_settings_describe_data_sources() -> None:
    train = {"file": "train.csv", "rows": 90, "sha256": "a"}
    held = {"share": 0.1, "seed": 0, "from": "train"}
    separate = {**held, "from": "this file, without dev"}
    records: list[dict[str, Any]] = [
        {"data": {"train": train, "dev": {"file": "dev.csv", "rows": 9, "sha256": "b"}}},
        {"data": {"train": {**train, "held_out": separate}, "dev": {**train, "held_out": held}}},
        {"data": {name: {"file": None, "rows": 1200} for name in ("train", "dev")}},
        {"data": {"train": train, "dev": {"file": None, "rows": 9, "held_out": held}}},
        {"data": {"train": "damaged"}},
    ]
    assert different_settings(records) == {
        "data.train": ["train.csv", "train.csv", "1,200 rows in memory", "train.csv", "damaged"],
        "data.dev": [
            "dev.csv",
            "10% of train.csv",
            "1,200 rows in memory",
            "10% of rows in memory",
            "",
        ],
    }
    assert different_settings([records[0], {"data": None}])["data.train"] == ["train.csv", ""]


def test_find_runs_searches_directories(tmp_path: Path) -> None:
    many(
        tmp_path, "sweep/a", "sweep/b", "tuned", "tuned/seed-0", "tuned/seed-1", "more/deep/down/c"
    )
    sweep, tuned = tmp_path / "sweep", tmp_path / "tuned"
    assert find_runs([sweep]) == [sweep / "a", sweep / "b"]
    assert find_runs([sweep / "a", sweep]) == [sweep / "a", sweep / "b"]
    assert find_runs([tuned]) == [tuned]
    inside = [sweep / "a", sweep / "b", tuned / "seed-0", tuned / "seed-1"]
    # Three levels down is too deep.
    assert find_runs([tmp_path]) == inside
    assert find_runs([tmp_path / "none"]) == [tmp_path / "none"]
    assert contains_runs(sweep)
    assert contains_runs(tuned)
    assert not contains_runs(tmp_path / "none")


def test_new_run_has_step_zero(tmp_path: Path) -> None:
    assert read_run(folder(tmp_path, {})).step == 0
    assert "chart-" not in shown([read_run(tmp_path)])


@pytest.mark.parametrize("missing", ["run.json", "journal.jsonl"])
def test_read_run_rejects_other_directories(missing: str, tmp_path: Path) -> None:
    folder(tmp_path, {})
    (tmp_path / missing).unlink()
    with pytest.raises(CheckpointError, match="not a run directory; pass out="):
        read_run(tmp_path)


@pytest.mark.parametrize("line", DAMAGED, ids=lambda given: repr(given[:40]))
def test_damaged_line_is_skipped_and_reported(line: bytes, tmp_path: Path) -> None:
    directory = folder(tmp_path, {}, {"step": 1, "loss": 2.0})
    with (directory / "journal.jsonl").open("ab") as file:
        file.write(line + b"\n" + b'{"step": 2, "loss": 1.0}\n')
    run = read_run(directory)
    assert [record["step"] for record in run.lines] == [1, 2]
    html = shown([run])
    assert '<p role="alert">' in html
    assert "journal.jsonl: skipped 1 damaged line" in html
    assert html.count('class="chart"') == 1
    assert not read_run(folder(tmp_path, {}, {"step": 1, "loss": 2.0})).damaged


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-1e308", "1e300", "9" * 300])
def test_non_finite_values_are_omitted(value: str, tmp_path: Path) -> None:
    directory = folder(tmp_path, {}, {"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0})
    sound = shown([read_run(directory)])
    with (directory / "journal.jsonl").open("a") as file:
        file.write(f'{{"step": 3, "loss": {value}, "learning_rate": {value}}}\n')
        file.write(f'{{"step": 3, "scores": {{"f1": {value}}}}}\n')
    html = shown([read_run(directory)])
    assert "values that are nan or too large are not drawn" in html
    chart = r'<svg class="chart".*?</svg>'
    assert re.findall(chart, html, re.S) == re.findall(chart, sound, re.S)


@pytest.mark.parametrize("record", RECORDS, ids=lambda given: repr(given[:40]))
def test_damaged_record_is_reported(record: bytes, tmp_path: Path) -> None:
    directory = folder(tmp_path, {}, {"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0})
    (directory / "run.json").write_bytes(record)
    run = read_run(directory)
    assert run.record == {}
    html = shown([run])
    assert "run.json: invalid; the settings of the run are not shown" in html
    assert html.count('class="chart"') == 1


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["step", "loss", "scores", "held_out", "f1"]), inner)
    ),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    record=json_values | st.fixed_dictionaries({"config": json_values}),
    lines=st.lists(json_values | st.fixed_dictionaries({"step": json_values, "loss": json_values})),
    cut=st.tuples(st.integers(0, 60), st.binary(max_size=3)),
)
def test_page_is_rendered_for_any_file_contents(
    record: Any, lines: list[Any], cut: tuple[int, bytes], tmp_path: Path
) -> None:
    folder(tmp_path, record, *lines)
    for name in ("run.json", "journal.jsonl"):
        offset, put = cut
        sound = (tmp_path / name).read_bytes()
        shown([read_run(tmp_path)])
        (tmp_path / name).write_bytes(sound[:offset] + put + sound[offset + 1 :])
    assert "<table" in shown([read_run(tmp_path)])


def test_nearly_constant_lines_appear_in_chart(tmp_path: Path) -> None:
    for low, high in ((0.0, 5e-324), (1e12, 1e12), (1.0, 1.0 + 2e-16), (-1e12, 1e12)):
        directory = folder(tmp_path, {}, {"step": 1, "loss": low}, {"step": 2**53, "loss": high})
        assert shown([read_run(directory)]).count('class="chart"') == 1


@given(st.integers(1, 5000))
def test_thin_keeps_first_and_last_points(count: int) -> None:
    line = [(float(n), 0.0) for n in range(count)]
    thinned = thin(line)
    assert len(thinned) <= MAX_POINTS + 1
    assert thinned[0] == line[0]
    assert thinned[-1] == line[-1]
    assert thinned == sorted(set(thinned))


def test_draw_is_deterministic(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    assert "nothing to draw yet" in draw(tmp_path).read_text(encoding="utf-8")
    for step in range(1, 6):
        journal.write({"step": step, "loss": 1.0 / step})
    journal.write({"step": 5, "held_out": {"mlm": 0.2, "nsp": 0.1}})
    picture = draw(tmp_path).read_bytes()
    assert draw(tmp_path).read_bytes() == picture
    # The loss curve, and its color next to the name.
    assert picture.count(b'class="line c0"') == 2
    assert picture.count(b'class="dot c1"') == 2
    assert len(list(tmp_path.iterdir())) == 2


def test_draw_ignores_damaged_lines(tmp_path: Path) -> None:
    sound = [b'{"step": 1, "loss": 2.0}', b'{"step": 2, "loss": 1.0}']
    pictures = []
    for damaged in ([], [b'{"step": 3, "loss": NaN}', b"\xff", b"[]", b'{"s']):
        (tmp_path / "journal.jsonl").write_bytes(b"\n".join([*sound, *damaged]))
        pictures.append(draw(tmp_path).read_bytes())
    assert pictures[0] == pictures[1]
    assert b"line c0" in pictures[0]
