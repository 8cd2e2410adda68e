"""Memory use: with glibc, freed memory stays in the process."""

import gc
import os
import platform
import subprocess
import sys

import pytest

from bertkit import memory

PROGRAM = """
import resource, torch
from bertkit import memory
def faults():
    for _ in range(20):
        torch.zeros(12_000_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        torch.zeros(12_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
given_back = faults()
memory.retain_freed()
print(given_back, faults())
"""


def test_peak_matches_allocated_memory() -> None:
    program = (
        "import numpy as np; from bertkit import memory; before = memory.peak(); "
        "held = np.ones(40_000_000); del held; print(memory.peak() - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) == pytest.approx(40e6 * 8 / 2**30, rel=0.15)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be asked")
def test_freed_memory_is_retained() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    given_back, held = map(int, done.stdout.split())
    assert held < given_back / 10


SHAPES = """
import sys, torch
from bertkit import memory
if sys.argv[1] == "few":
    memory.limit_onednn_cache()
weight = torch.ops.mkldnn._reorder_linear_weight(torch.randn(256, 256))
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1])
def run(rows):
    for n in rows:
        torch.ops.mkldnn._linear_pointwise(torch.randn(n, 256), weight, None, "none", [], "")
run(range(32, 96))
before = resident()
run(range(96, 240))
print(resident() - before)
"""


@pytest.mark.parametrize("enabled", [True, False])
def test_uncollected_restores_garbage_collector(enabled: bool) -> None:
    def read() -> None:
        with memory.uncollected():
            assert not gc.isenabled()
            raise ValueError("a row")

    if not enabled:
        gc.disable()
    try:
        with pytest.raises(ValueError, match="a row"):
            read()
        assert gc.isenabled() == enabled
    finally:
        gc.enable()


@pytest.mark.skipif(platform.system() != "Linux", reason="/proc tells how large a process is")
def test_onednn_cache_is_limited() -> None:
    def growth(mode: str) -> int:
        done = subprocess.run(
            [sys.executable, "-c", SHAPES, mode],
            capture_output=True,
            text=True,
            check=True,
            env={name: value for name, value in os.environ.items() if "CAPACITY" not in name},
        )
        return int(done.stdout)

    assert growth("few") < growth("all") / 2
