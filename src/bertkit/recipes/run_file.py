"""Run files of pretraining, and their settings of the training loop."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta

from bertkit.config import Count, Positive, Seed, Settings, read_toml_by_name
from bertkit.nn.precision import Precision
from bertkit.training.optimizer import MUON_MOMENTUM
from bertkit.training.trackers import Track

CONFIGS = Path(__file__).parents[1] / "configs"
"""The run files that come with bertkit."""

Beta = Annotated[float, Meta(ge=0.0, lt=1.0)]

FIRST_WINDOW_SHARE = 0.5


class Train(Settings, frozen=True):
    """How long, how fast, how often."""

    steps: Count
    """Optimizer steps."""
    batch_size: Count = 256
    """Samples a step."""
    first_batch_size: Count | None = None
    """Samples of the first step, where their number grows; `batch_size` by default."""
    batch_warmup_steps: Annotated[int, Meta(ge=0)] = 0
    """Steps in which it grows, evenly."""
    parts: Count = 1
    """Number of parts of a step's samples for distributed training (guide "More than one
    process"). Any number of processes that divides it gets the same samples, masks and dropout.
    With several processes, their number by default."""
    max_batch_tokens: Count = 8192
    """Tokens per forward pass. A larger step uses gradient accumulation: it is split into several
    batches, whose gradients add up in fp32. It changes memory and speed, and of the result only the
    last digits of the precision and the draws of dropout."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """Muon moves the matrices of the layers, and AdamW all else."""
    learning_rate: Positive = 1e-4
    adamw_learning_rate: Positive | None = None
    """Learning rate of the weights that AdamW updates next to Muon; by default
    `learning_rate`."""
    embedding_learning_rate: Positive | None = None
    """Learning rate of the token, position and segment embeddings; by default that of the other
    weights that AdamW updates."""
    schedule: Literal["linear", "wsd", "constant"] = "linear"
    """Learning rate scheduler."""
    warmup_steps: Annotated[int, Meta(ge=0)] = 0
    decay_steps: Annotated[int, Meta(ge=0)] = 0
    """Steps of the final decay of `wsd`; 0 is two fifths of all."""
    weight_decay: Annotated[float, Meta(ge=0.0)] = 0.01
    adamw_weight_decay: Annotated[float, Meta(ge=0.0)] | None = None
    """Weight decay of the weights that AdamW updates next to Muon; by default `weight_decay`."""
    momentum: Beta = MUON_MOMENTUM
    """How much Muon keeps at each step of the mean gradient."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """How much AdamW keeps at each step of the mean gradient and of its square."""
    eps: Positive = 1e-6
    """What AdamW adds to the root of the mean square that it divides by."""
    max_grad_norm: Annotated[float, Meta(ge=0.0)] = 1.0
    """Gradient clipping: the largest norm of the gradient; 0 is none."""
    first_window: Count | None = None
    """Tokens on each side that a token attends to at the start of a run, in every layer; by default
    as many as ever."""
    first_window_share: Annotated[float, Meta(gt=0.0, lt=1.0)] = FIRST_WINDOW_SHARE
    """Share of the steps that this lasts."""
    zero_init: bool = False
    """Whether the last matrices of attention and feed-forward networks begin at 0, so that a layer
    adds nothing at first."""
    seed: Seed = 0
    precision: Precision = "auto"
    """Mixed precision (bf16 with fp32 master weights) or fp32; fp16 is not supported. Auto uses
    bf16 if it is faster: on GPUs, AMD and ARM that have the instructions, and Intel with AMX."""
    device: str = "auto"
    compile: bool = False
    """Compile the layers (torch.compile): minutes at the start, and fewer kernels on a GPU."""
    loader_processes: Annotated[int, Meta(ge=0)] | None = None
    """Processes that make batches ahead; 0 is a thread. By default up to 4 for a GPU, else none."""
    shard_optimizer: bool = False
    """Whether each of several processes keeps the optimizer's state of its share of the weights
    alone, and writes it (ZeRO-1): less memory, and the same weights."""
    log_every: Count = 10
    label_smoothing: Annotated[float, Meta(ge=0.0, lt=1.0)] = 0.0
    """Share of each word's target that is spread over all pieces (0.1 in translation)."""
    z_loss: Annotated[float, Meta(ge=0.0)] = 0.0
    """What the square of log Z of each predicted word weighs in the loss, Z being the sum that
    softmax divides by (1e-4 in PaLM)."""
    evaluate_every: Count = 500
    evaluate_samples: Annotated[int, Meta(ge=0)] = 512
    save_every: Count = 500
    average_steps: Annotated[int, Meta(ge=0)] = 0
    """The last so many steps whose weights are averaged, evenly; the mean is what is scored and
    saved after the last."""
    keep: Count = 2
    """Checkpoints kept; the newest complete one always is."""
    track: Track = "none"
    """Experiment tracker that records the numbers of the journal."""
    peak_flops: Positive | None = None
    """FLOP/s that the device can do at most, by which MFU is said; those of known GPUs in bf16 by
    default."""

    def __post_init__(self) -> None:
        if (self.first_batch_size is None) != (self.batch_warmup_steps == 0):
            raise ValueError(
                "first_batch_size and batch_warmup_steps say together how the batch grows; set "
                "both, or neither"
            )
        if self.first_batch_size is not None and self.first_batch_size > self.batch_size:
            raise ValueError(
                f"first_batch_size = {self.first_batch_size} is more than batch_size = "
                f"{self.batch_size}, to which it grows"
            )
        if self.first_window is None and self.first_window_share != FIRST_WINDOW_SHARE:
            raise ValueError(
                "first_window_share: says how long first_window lasts, and there is none; set it, "
                "or leave both out"
            )
        if self.decay_steps and self.schedule != "wsd":
            raise ValueError(
                f'decay_steps = {self.decay_steps}: is for schedule = "wsd", and it is '
                f"{self.schedule}; leave it out"
            )
        if self.average_steps > self.steps:
            raise ValueError(
                f"average_steps = {self.average_steps}: the run has {self.steps} steps; average as "
                "many at most"
            )
        given = {
            "adamw_learning_rate": self.adamw_learning_rate is not None,
            "adamw_weight_decay": self.adamw_weight_decay is not None,
            "momentum": self.momentum != MUON_MOMENTUM,
        }
        for name in (name for name, value in given.items() if value and self.optimizer != "muon"):
            raise ValueError(f'{name}: is for optimizer = "muon", and it is adamw; leave it out')
        fewest = self.first_batch_size or self.batch_size
        if fewest < self.parts:
            raise ValueError(f"parts = {self.parts}: a step of {fewest} samples has not as many")

    def samples(self, step: int) -> tuple[int, int]:
        """Index of the step's first sample, and its batch size."""
        if self.first_batch_size is None:
            return step * self.batch_size, self.batch_size
        growth = self.batch_size - self.first_batch_size
        sizes = self.first_batch_size + growth * np.arange(step + 1) // self.batch_warmup_steps
        sizes = np.minimum(sizes, self.batch_size)
        return int(sizes[:-1].sum()), int(sizes[-1])

    def window(self, step: int) -> int | None:
        """How far the tokens of a step may see, the first step being 0; None is as far as ever."""
        begun = step < round(self.first_window_share * self.steps)
        return self.first_window if begun else None

    def samples_of(self, step: int, part: int) -> tuple[int, int]:
        """Index of the first sample of a part of a step, and how many it has."""
        first, size = self.samples(step)
        begin, end = (size * number // self.parts for number in (part, part + 1))
        return first + begin, end - begin


FREE = (
    "loader_processes",
    "shard_optimizer",
    "log_every",
    "evaluate_every",
    "save_every",
    "keep",
    "track",
    "peak_flops",
    "max_batch_tokens",
)
"""Settings of `train` that may differ when a run is resumed."""


def read_run_file(path: str | Path) -> dict[str, Any]:
    """Read a run file, or the run file of bertkit with a bare name, as plain data.

    Raises:
        ConfigError: If it is missing or malformed.
    """
    return read_toml_by_name(path, CONFIGS)
