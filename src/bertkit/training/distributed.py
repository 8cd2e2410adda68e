"""The processes of one run: each learns from its share of every step, and the first one writes.

torchrun starts them, on one machine or many, and says by the environment which one a process is.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.rendezvous import rendezvous

from bertkit.console import console, say
from bertkit.errors import BertkitError, ConfigError, TrainingError

BUCKET_NUMBERS = 1 << 23
"""Numbers that are sent in one message: 32 MB."""

MESSAGE_BYTES = 64
"""Bytes that `tell` sends at most."""


@dataclass(frozen=True)
class Ranks:
    """Which process this is, and what it says to the others.

    Every process calls the same methods in the same order. Raises: TrainingError where another has
    ended.
    """

    rank: int = 0
    world: int = 1
    writers: dist.ProcessGroup | None = None
    """By which threads that write talk, while those that learn do."""

    @property
    def first(self) -> bool:
        """Whether this process writes the run's folder and speaks."""
        return self.rank == 0

    def share(self, parts: int) -> range:
        """Which parts of a step are this process's. Raises: ConfigError where they do not deal."""
        if parts % self.world:
            near = [n for n in range(1, parts + 1) if parts % n == 0]
            below = max(n for n in near if n <= self.world)
            above = -(-parts // self.world) * self.world
            raise ConfigError(
                f"train.parts = {parts}: cannot be dealt evenly to {self.world} processes; start "
                f"{below}, or begin a run with train.parts = {above}"
            )
        each = parts // self.world
        return range(self.rank * each, (self.rank + 1) * each)

    def sum(self, numbers: Sequence[float]) -> list[float]:
        """Of each number over all processes, in double precision: counts are exact."""
        if self.world == 1:
            return list(numbers)
        total = torch.tensor(numbers, dtype=torch.float64)
        with _others():
            dist.all_reduce(total)
        return total.tolist()

    def sum_gradients(self, weights: Iterable[Tensor]) -> None:
        """Replace the gradients of these weights by their sums, in their own precision."""
        if self.world == 1:
            return
        with torch.no_grad(), _others():
            for bucket in _buckets(weights):
                for weight in bucket:
                    if weight.grad is None:
                        weight.grad = torch.zeros_like(weight)
                grads = [weight.grad for weight in bucket if weight.grad is not None]
                flat = torch.cat([grad.view(-1) for grad in grads])
                dist.all_reduce(flat)
                _copy_from(flat, grads)

    def owners(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Whose each of these is, where all get about the same size."""
        held = [0] * self.world
        owners = {}
        for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
            owners[name] = held.index(min(held))
            held[owners[name]] += sizes[name]
        return owners

    def give(self, weights: Iterable[Tensor], owner: int) -> None:
        """Replace these weights by those of the process `owner`."""
        with torch.no_grad(), _others():
            for bucket in _buckets(weights):
                flat = torch.cat([weight.view(-1) for weight in bucket])
                dist.broadcast(flat, owner)
                if owner != self.rank:
                    _copy_from(flat, bucket)

    def tell(self, word: bytes) -> list[bytes]:
        """What each process says, in at most `MESSAGE_BYTES` bytes; for threads that write."""
        if self.world == 1:
            return [word]
        own = torch.frombuffer(bytearray(word.ljust(MESSAGE_BYTES, b"\0")), dtype=torch.uint8)
        told = [torch.empty_like(own) for _ in range(self.world)]
        with _others():
            dist.all_gather(told, own, group=self.writers)
        return [bytes(each.tolist()).rstrip(b"\0") for each in told]

    def of_first(self, number: int) -> int:
        """What the first process says."""
        return int(self.sum([number if self.first else 0])[0])

    def agree(self, record: Mapping[str, Any]) -> None:
        """Raises: ConfigError in all processes that names those with another record than the
        first.
        """
        if self.world == 1:
            return
        said = json.dumps(record, sort_keys=True, default=str).encode()
        own = int.from_bytes(hashlib.sha256(said).digest()[:6], "big")  # a double holds it
        told = self.sum([own if self.rank == rank else 0 for rank in range(self.world)])
        others = [str(rank) for rank, digest in enumerate(told) if digest != told[0]]
        if others:
            raise ConfigError(
                f"rank {', '.join(others)}: other settings or another corpus than rank 0; start "
                "all processes with the same"
            )


ALONE = Ranks()


@contextmanager
def joined() -> Iterator[Ranks]:
    """Meet the other processes that torchrun has started; without it there are none.

    All but the first are silent from then on, but for errors, which say whose they are.
    Raises: ConfigError where the environment names other processes, and not how to meet them.
    """
    if os.environ.get("WORLD_SIZE", "1") == "1":
        yield ALONE
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    with _others():
        try:
            store, rank, world = next(rendezvous("env://"))
        except ValueError as error:
            raise ConfigError(f"{error}; start by torchrun, or unset WORLD_SIZE") from None
        # torchrun keeps its store when it starts processes again, and in it where the ended ones
        # could be reached
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
            store=dist.PrefixStore(f"{attempt} of {world}", store),  # type: ignore[attr-defined]
            rank=rank,
            world_size=world,
        )
    ranks = Ranks(rank, world, dist.new_group(backend="gloo"))
    console().quiet = console().quiet or not ranks.first
    try:
        yield ranks
    except KeyboardInterrupt as stop:
        say(str(stop))
        # torchrun would take another code for a fault, and begin again
        raise SystemExit(0) from None
    except BertkitError as error:
        if ranks.first:
            raise
        raise type(error)(f"rank {ranks.rank}: {error}") from None
    finally:
        dist.destroy_process_group()


@contextmanager
def _others() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise TrainingError(
            "another process of the run has ended or cannot be reached, and says why; start the "
            f"same command again with --resume auto ({str(error).splitlines()[0]})"
        ) from None


def _copy_from(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    """Give tensors what lies one behind the other in `flat`."""
    parts = flat.split([tensor.numel() for tensor in tensors])
    torch._foreach_copy_([tensor.view(-1) for tensor in tensors], parts)


def _buckets(weights: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    bucket: list[Tensor] = []
    for weight in weights:
        if bucket and sum(w.numel() for w in bucket) + weight.numel() > BUCKET_NUMBERS:
            yield bucket
            bucket = []
        bucket.append(weight)
    if bucket:
        yield bucket
