"""Freed memory is fetched from the kernel once: where glibc is what allocates."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys, torch
from bertkit import memory
if sys.argv[1] == "held":
    memory.hold()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    torch.zeros(12_000_000)
before = faults()
for _ in range(10):
    torch.zeros(12_000_000)
print(faults() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be asked")
def test_memory_is_held() -> None:
    def faults(which: str) -> int:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, which], capture_output=True, text=True, check=True
        )
        return int(done.stdout)

    assert faults("held") < faults("given back") / 10
