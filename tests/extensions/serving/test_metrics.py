"""Metrics of several workers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

WORKER = """
import os
from bertkit.extensions.serving.metrics import Metrics
metrics = Metrics()
metrics.requests.labels("/embed", "200").inc()
metrics.open.set(7)
if {killed}:
    os._exit(1)
print(metrics.text().decode())
"""


def test_metrics_omit_open_requests_of_killed_worker(tmp_path: Path) -> None:
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    for killed in (True, False):
        command = [sys.executable, "-c", WORKER.format(killed=killed)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "bertkit_open_requests 7.0" in done.stdout
    assert 'bertkit_requests_total{route="/embed",status="200"} 2.0' in done.stdout
