"""Distribution of parts and communication between processes; tests/faults covers failures."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertkit.errors import ConfigError
from bertkit.training import distributed
from bertkit.training.distributed import SINGLE_PROCESS, Ranks, connect


@given(per_rank=st.integers(1, 8), world=st.integers(1, 16))
def test_parts_are_distributed_once(per_rank: int, world: int) -> None:
    parts = per_rank * world
    shares = [list(Ranks(rank, world).share(parts)) for rank in range(world)]
    assert sorted(itertools.chain(*shares)) == list(range(parts))
    assert {len(share) for share in shares} == {per_rank}


@given(parts=st.integers(1, 64), world=st.integers(2, 16))
def test_indivisible_parts_error_suggests_process_counts(parts: int, world: int) -> None:
    if parts % world == 0:
        return
    with pytest.raises(
        ConfigError, match=rf"train.parts = {parts} cannot be divided among {world} processes"
    ) as error:
        Ranks(0, world).share(parts)
    *_, fewer, more = map(int, re.findall(r"\d+", str(error.value)))
    assert parts % fewer == 0
    assert fewer < world
    assert more % world == 0
    assert more > parts


def test_single_process_operations_return_their_input() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.full((2,), 3.0)
    SINGLE_PROCESS.sum_gradients([weight])
    SINGLE_PROCESS.check_same({"seed": 1})
    assert weight.grad.tolist() == [3.0, 3.0]
    assert SINGLE_PROCESS.sum([1.5, 2]) == [1.5, 2]
    assert SINGLE_PROCESS.value_of_first(7) == 7
    assert SINGLE_PROCESS.gather(b"hash") == [b"hash"]
    assert SINGLE_PROCESS.first
    with connect() as ranks:
        assert ranks is SINGLE_PROCESS


@given(st.dictionaries(st.text(), st.integers(1, 100), max_size=30), st.integers(1, 8))
def test_weights_are_assigned_evenly(sizes: dict[str, int], world: int) -> None:
    owners = Ranks(0, world).assign(sizes)
    assert owners == Ranks(world - 1, world).assign(dict(reversed(sizes.items())))
    assert owners.keys() == sizes.keys()
    held = [sum(sizes[n] for n in sizes if owners[n] == rank) for rank in range(world)]
    assert max(held) - min(held) <= max(sizes.values(), default=0)


@given(st.lists(st.integers(1, 9), max_size=8))
def test_buckets_contain_all_weights_in_order(sizes: list[int]) -> None:
    weights = [torch.zeros(size) for size in sizes]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distributed, "BUCKET_VALUES", 10)
        buckets = list(distributed._buckets(weights))
    assert [len(w) for bucket in buckets for w in bucket] == sizes
    assert all(sum(len(w) for w in bucket) <= 10 for bucket in buckets)


SCRIPT = """
import json, sys, torch
from bertkit.errors import ConfigError
from bertkit.training.distributed import connect

with connect() as ranks:
    big, small, missing = (torch.nn.Parameter(torch.zeros(n)) for n in (9 << 20, 3, 2))
    big.grad = torch.full_like(big, float(ranks.rank + 1))
    small.grad = torch.arange(3.0)
    if ranks.first:
        missing.grad = torch.ones(2)
    ranks.sum_gradients([big, small, missing])
    given = [torch.nn.Parameter(torch.full((n,), float(ranks.rank))) for n in (9 << 20, 3)]
    ranks.broadcast(given, 1)
    result = {
        "given": [sorted({*each.tolist()}) for each in given],
        "words": [word.decode() for word in ranks.gather(b"a" * 64 * ranks.rank)],
        "sum": ranks.sum([1.0, 2**40 + ranks.rank, float("nan") if ranks.first else 0.0]),
        "first": ranks.value_of_first(5 + ranks.rank),
        "grads": [float(big.grad.min()), float(big.grad.max()), small.grad.tolist(),
                  missing.grad.tolist()],
    }
    ranks.check_same({"a": 1})
    try:
        ranks.check_same({"a": ranks.rank})
    except ConfigError as error:
        result["rejected"] = str(error)
    with open(f"{sys.argv[1]}/{ranks.rank}.json", "w") as file:
        json.dump(result, file)
"""


def test_collectives_of_two_processes(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    subprocess.run([*command, str(tmp_path / "script.py"), str(tmp_path)], check=True, timeout=120)
    for rank in (0, 1):
        result = json.loads((tmp_path / f"{rank}.json").read_text(encoding="utf-8"))
        assert result["sum"][:2] == [2.0, 2**41 + 1]
        assert result["sum"][2] != result["sum"][2]
        assert result["first"] == 5
        assert result["given"] == [[1.0], [1.0]]
        assert result["words"] == ["", "a" * 64]
        assert result["grads"] == [3.0, 3.0, [0.0, 2.0, 4.0], [1.0, 1.0]]
        assert result["rejected"].startswith("rank 1: settings or corpus differ from rank 0")
