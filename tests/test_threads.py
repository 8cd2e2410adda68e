"""Thread counts: limits of containers and environment variables."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bertkit import threads


@pytest.mark.parametrize(
    ("text", "share"),
    [("50000 100000\n", 0.5), ("250000 100000\n", 2.5), ("max 100000\n", None), ("?", None)],
)
def test_quota_reads_control_group(tmp_path: Path, text: str, share: float | None) -> None:
    (tmp_path / "cpu.max").write_text(text)
    assert threads.quota(tmp_path, own=tmp_path / "none") == share


def test_quota_uses_tightest_parent_group(tmp_path: Path) -> None:
    inner = tmp_path / "jobs" / "one"
    inner.mkdir(parents=True)
    (inner / "cpu.max").write_text("max 100000")
    (inner.parent / "cpu.max").write_text("150000 100000")
    (tmp_path / "own").write_text("0::/jobs/one\n")
    assert threads.quota(tmp_path, own=tmp_path / "own") == 1.5


def test_quota_reads_control_groups_version_1(tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("200000")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000")
    assert threads.quota(tmp_path, own=tmp_path / "none") == 2.0
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1")
    assert threads.quota(tmp_path, own=tmp_path / "none") is None


def test_half_a_core_counts_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    # The environment changes only in this test.
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setattr(threads, "quota", lambda: 0.5)
    monkeypatch.setattr(threads, "bound", lambda: 2)
    assert threads.cores() == 1
    threads.settle(lasting=True)
    assert os.environ["OMP_NUM_THREADS"] == "1"
    assert os.environ["GOMP_SPINCOUNT"] == threads.SPIN_COUNT


def test_large_quota_sets_no_thread_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setattr(threads, "quota", lambda: 4.0)
    monkeypatch.setattr(threads, "bound", lambda: 2)
    threads.settle(lasting=True)
    assert "OMP_NUM_THREADS" not in os.environ


def test_environment_variables_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "quota", lambda: 0.5)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    threads.settle(lasting=True)
    assert os.environ["OMP_NUM_THREADS"] == "7"
    assert "GOMP_SPINCOUNT" not in os.environ


@pytest.mark.parametrize("lasting", [False, True])
def test_spin_count_is_set_for_lasting_processes(
    lasting: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", {})
    threads.settle(lasting=lasting)
    assert os.environ.get("GOMP_SPINCOUNT") == (threads.SPIN_COUNT if lasting else None)


def test_cli_sets_spin_count_before_importing_torch() -> None:
    code = (
        "import sys, os\nfrom bertkit import cli\nassert 'torch' not in sys.modules\n"
        "cli.run(['serve', '--help'])\nsys.exit(os.environ['GOMP_SPINCOUNT'] != '1000')"
    )
    free = {n: v for n, v in os.environ.items() if n not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    assert subprocess.run([sys.executable, "-c", code], env=free).returncode == 0


@pytest.mark.parametrize(("workers", "most"), [(1, 6), (2, 3), (4, 1), (9, 1)])
def test_workers_share_the_cores(workers: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "cores", lambda: 6)
    monkeypatch.setattr(threads, "_workers", 1)
    assert threads.own_cores() == 6
    threads.share_cores(workers)
    assert threads.own_cores() == most


@pytest.mark.parametrize(
    ("setting", "most"),
    [("1", 1), ("4", 4), ("9", 6), (" 2, 3", 2), ("0", 6), ("-1", 6), ("many", 6), ("", 6)],
)
def test_omp_num_threads_limits_own_cores(
    setting: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "cores", lambda: 6)
    monkeypatch.setattr(threads, "_workers", 1)
    monkeypatch.setenv("OMP_NUM_THREADS", setting)
    assert threads.own_cores() == threads.thread_limit() == most
    threads.share_cores(2)
    # The variable also limits each worker.
    # The variable also limits each worker.
    assert threads.own_cores() == min(3, most)
