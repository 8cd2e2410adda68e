"""Distributed training, in which each process computes some parts of every step.

torchrun starts the processes, on one or several machines, and sets their environment variables.
Only the first process (rank 0) writes to the run directory.
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
from bertkit.errors import BertkitError, ConfigError
from bertkit.nn.all_reduce import connection_errors

BUCKET_VALUES = 1 << 23
"""Maximum number of values per message (32 MB in fp32). Only a single tensor may be larger."""

MESSAGE_BYTES = 64
"""Maximum number of bytes of a message that `Ranks.gather` sends."""


@dataclass(frozen=True)
class Ranks:
    """Rank of this process, and methods to communicate with the other processes of a run.

    Every process must call the same methods in the same order. If another process has stopped, a
    method that communicates with it raises a TrainingError.
    """

    rank: int = 0
    world: int = 1
    writers: dist.ProcessGroup | None = None
    """Process group of the threads that write checkpoints while training continues."""

    @property
    def first(self) -> bool:
        """Whether this process writes to the run directory and prints messages."""
        return self.rank == 0

    def share(self, parts: int) -> range:
        """Return the indices of the parts of a step that this process computes.

        Args:
            parts: Number of parts of a step.

        Raises:
            ConfigError: If the number of processes does not divide the number of parts.
        """
        if parts % self.world:
            divisors = [n for n in range(1, parts + 1) if parts % n == 0]
            fewer = max(n for n in divisors if n <= self.world)
            more = -(-parts // self.world) * self.world
            raise ConfigError(
                f"train.parts = {parts} cannot be divided among {self.world} processes; "
                f"start {fewer}, or begin a new run with train.parts = {more}"
            )
        count = parts // self.world
        return range(self.rank * count, (self.rank + 1) * count)

    def sum(self, values: Sequence[float]) -> list[float]:
        """Sum each value over all processes.

        The sums have double precision, so that counts are exact.
        """
        if self.world == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64)
        with connection_errors():
            dist.all_reduce(total)
        return total.tolist()

    def sum_gradients(self, weights: Iterable[Tensor]) -> None:
        """Replace each gradient by the sum of the gradients of all processes.

        The sums are computed in the dtype of the gradients.
        """
        if self.world == 1:
            return
        with torch.no_grad(), connection_errors():
            for bucket in _buckets(weights):
                for weight in bucket:
                    if weight.grad is None:
                        weight.grad = torch.zeros_like(weight)
                grads = [weight.grad for weight in bucket if weight.grad is not None]
                flat = torch.cat([grad.view(-1) for grad in grads])
                dist.all_reduce(flat)
                _copy_from(flat, grads)

    def assign(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Distribute items over the processes, so that the items of each have a similar total size.

        Args:
            sizes: Size of each item, by name.

        Returns:
            The rank that owns each item, by name.
        """
        loads = [0] * self.world
        owners = {}
        for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
            owners[name] = loads.index(min(loads))
            loads[owners[name]] += sizes[name]
        return owners

    def broadcast(self, weights: Iterable[Tensor], owner: int) -> None:
        """Copy the values of the weights from the process `owner` to all other processes."""
        with torch.no_grad(), connection_errors():
            for bucket in _buckets(weights):
                flat = torch.cat([weight.view(-1) for weight in bucket])
                dist.broadcast(flat, owner)
                if owner != self.rank:
                    _copy_from(flat, bucket)

    def gather(self, message: bytes) -> list[bytes]:
        """Return the messages of all processes.

        Only the threads that write checkpoints call this method.

        Args:
            message: Message of this process, of at most `MESSAGE_BYTES` bytes.
        """
        if self.world == 1:
            return [message]
        sent = torch.frombuffer(bytearray(message.ljust(MESSAGE_BYTES, b"\0")), dtype=torch.uint8)
        received = [torch.empty_like(sent) for _ in range(self.world)]
        with connection_errors():
            dist.all_gather(received, sent, group=self.writers)
        return [bytes(tensor.tolist()).rstrip(b"\0") for tensor in received]

    def value_of_first(self, value: int) -> int:
        """Broadcast a value from the first process, and return it in every process."""
        return int(self.sum([value if self.first else 0])[0])

    def check_same(self, record: Mapping[str, Any]) -> None:
        """Check that all processes have the same record.

        Raises:
            ConfigError: If the records differ. All processes raise the error. Its message contains
                the ranks of the processes whose record differs from the record of rank 0.
        """
        if self.world == 1:
            return
        encoded = json.dumps(record, sort_keys=True, default=str).encode()
        # A double represents integers of 6 bytes exactly.
        digest = int.from_bytes(hashlib.sha256(encoded).digest()[:6], "big")
        digests = self.sum([digest if self.rank == rank else 0 for rank in range(self.world)])
        different = [str(rank) for rank, value in enumerate(digests) if value != digests[0]]
        if different:
            raise ConfigError(
                f"rank {', '.join(different)}: settings or corpus differ from rank 0; use the same "
                "settings and corpus in all processes"
            )


SINGLE_PROCESS = Ranks()


@contextmanager
def connect() -> Iterator[Ranks]:
    """Connect to the other processes that torchrun has started, if any.

    All processes except the first print only errors, which begin with the rank of the process.

    Yields:
        The rank of this process, and the connection to the other processes.

    Raises:
        ConfigError: If `WORLD_SIZE` is set, but other variables of torchrun are missing.
    """
    if os.environ.get("WORLD_SIZE", "1") == "1":
        yield SINGLE_PROCESS
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    with connection_errors():
        try:
            store, rank, world = next(rendezvous("env://"))
        except ValueError as error:
            raise ConfigError(f"{error}; use torchrun, or unset WORLD_SIZE") from None
        # torchrun keeps its store when it restarts processes. Because of the prefix, new processes
        # do not read the addresses of the stopped processes.
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
        # torchrun would treat another exit code as a failure, and restart the processes.
        raise SystemExit(0) from None
    except BertkitError as error:
        if ranks.first:
            raise
        raise type(error)(f"rank {ranks.rank}: {error}") from None
    finally:
        dist.destroy_process_group()


def _copy_from(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    """Copy consecutive parts of `flat` to the tensors."""
    parts = flat.split([tensor.numel() for tensor in tensors])
    torch._foreach_copy_([tensor.view(-1) for tensor in tensors], parts)


def _buckets(weights: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Yield groups of consecutive weights. The weights of a group are sent in one message."""
    bucket: list[Tensor] = []
    for weight in weights:
        if bucket and sum(w.numel() for w in bucket) + weight.numel() > BUCKET_VALUES:
            yield bucket
            bucket = []
        bucket.append(weight)
    if bucket:
        yield bucket
