"""Benchmarks: the two sides take turns, ratios mean the same everywhere, kept results agree."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from benchmarks import harness, report, text

KEPT = sorted(harness.RESULTS.glob("*.json"))


def test_sides_take_turns_after_one_unmeasured_call_each() -> None:
    called: list[str] = []
    harness.compare(
        "turns",
        lambda: called.append("A"),
        lambda: called.append("B"),
        peer_name="B",
        unit="calls/s",
        work=1,
        target=1.0,
        repeats=3,
    )
    assert "".join(called) == "AB" + "ABABAB"


def test_a_ratio_says_how_many_times_better_whichever_way_the_unit_counts() -> None:
    rate = harness.row("", 30.0, 10.0, peer_name="", unit="x/s", target=3.0, better="higher")
    time = harness.row("", 10.0, 30.0, peer_name="", unit="s", target=3.5, better="lower")
    assert (rate.ratio, rate.holds) == (3.0, True)
    assert (time.ratio, time.holds) == (3.0, False)


def test_unequal_work_is_compared_by_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(100))
    # by this clock every call takes a second
    monkeypatch.setattr("benchmarks.harness.time.perf_counter", lambda: float(next(ticks)))

    def compare(work: tuple[float, float] | None) -> harness.Row:
        return harness.compare(
            "", lambda: 0, lambda: 0, peer_name="", unit="", work=work, target=1.0
        )

    row = compare((400.0, 100.0))
    assert (row.ours, row.peer, row.ratio) == (400.0, 100.0, 4.0)
    row = compare(None)
    assert (row.ours, row.peer, row.ratio) == (1.0, 1.0, 1.0)


def test_a_result_is_kept_whole_and_drawn(tmp_path: Path) -> None:
    fast = harness.row("a <b>", 30, 10, peer_name="peer", unit="x/s", target=2, better="higher")
    close = harness.row("c", 2.1, 2.2, peer_name="limit", unit="b", target=1, better="lower")
    path = harness.write("toy", [fast, close], folder=tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["toy.json"]
    kept = json.loads(path.read_text(encoding="utf-8"))
    assert kept["rows"][0]["ratio"] == 3.0
    assert {"python", "torch", "bertkit"} <= set(kept["versions"])
    page = report.page(report.read(tmp_path))
    assert "a &lt;b&gt;" in page
    assert page.count("<svg") == 1
    assert "http" not in page.replace("http://www.w3.org", "")  # names of the SVG language
    assert "src=" not in page


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_kept_results_agree_with_themselves(path: Path) -> None:
    result = msgspec.json.decode(path.read_bytes(), type=harness.Result)
    assert result.name == path.stem
    assert result.rows
    for row in result.rows:
        assert row.ratio == pytest.approx(row.ours / row.peer) or row.ratio == pytest.approx(
            row.peer / row.ours
        )
        assert row.holds == (row.ratio >= row.target)


def test_text_is_the_same_every_time() -> None:
    found = text.sentences(1024)
    assert found == text.sentences(1024)
    assert len(set(map(len, found))) > 100
    with pytest.raises(ValueError, match="sentences"):
        text.sentences(10**6)
