"""Run files, which contain the settings of pretraining, and the settings of the training loop."""

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
"""Directory of the run files that are part of bertkit."""

Beta = Annotated[float, Meta(ge=0.0, lt=1.0)]

FIRST_WINDOW_SHARE = 0.5


class Train(Settings, frozen=True):
    """Settings of the training loop of pretraining."""

    steps: Count
    """Number of optimizer steps."""
    batch_size: Count = 256
    """Number of samples per step."""
    first_batch_size: Count | None = None
    """Number of samples in the first step, from which the batch size grows. Requires
    `batch_warmup_steps`."""
    batch_warmup_steps: Annotated[int, Meta(ge=0)] = 0
    """Number of steps during which the batch size grows linearly to `batch_size`."""
    parts: Count = 1
    """Number of parts into which the samples of a step are divided, to distribute them to several
    processes. If the number of processes divides `parts`, the samples, masks and dropout do not
    depend on it. Default: the number of processes."""
    max_batch_tokens: Count = 8192
    """Maximum number of tokens per forward pass. A step with more tokens is split into several
    passes, whose gradients are accumulated in fp32. The setting affects memory and speed. Results
    differ only because of rounding and dropout."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """Optimizer. Muon updates the weight matrices of all layers, and AdamW the other weights."""
    learning_rate: Positive = 1e-4
    """Peak learning rate, which is reached after warmup."""
    adamw_learning_rate: Positive | None = None
    """Peak learning rate of the weights that AdamW updates if the optimizer is Muon. Default:
    `learning_rate`."""
    embedding_learning_rate: Positive | None = None
    """Peak learning rate of the token, position and segment embeddings. Default: the rate of the
    other weights that AdamW updates."""
    schedule: Literal["linear", "wsd", "constant"] = "linear"
    """Learning rate schedule: linear decay after warmup (linear), decay only in the last
    `decay_steps` steps (wsd), or no decay (constant)."""
    warmup_steps: Annotated[int, Meta(ge=0)] = 0
    """Number of warmup steps, in which the learning rate increases linearly from 0."""
    decay_steps: Annotated[int, Meta(ge=0)] = 0
    """Number of steps, at the end of the run, in which the schedule `wsd` decays the learning rate.
    0 means two fifths of all steps."""
    weight_decay: Annotated[float, Meta(ge=0.0)] = 0.01
    """Weight decay of matrices. Biases and normalization weights are not decayed."""
    adamw_weight_decay: Annotated[float, Meta(ge=0.0)] | None = None
    """Weight decay of the matrices that AdamW updates if the optimizer is Muon. Default:
    `weight_decay`."""
    momentum: Beta = MUON_MOMENTUM
    """Momentum of Muon."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """β₁ and β₂ of AdamW: decay rates of the first and second moments of the gradient."""
    eps: Positive = 1e-6
    """ε of AdamW, which is added to the denominator of an update."""
    max_grad_norm: Annotated[float, Meta(ge=0.0)] = 1.0
    """Maximum gradient norm for clipping; 0 disables clipping."""
    first_window: Count | None = None
    """Number of tokens on each side to which a token attends, in every layer, in the first part of
    the run. By default, all steps use the attention of the model."""
    first_window_share: Annotated[float, Meta(gt=0.0, lt=1.0)] = FIRST_WINDOW_SHARE
    """Fraction of the steps in which `first_window` applies."""
    zero_init: bool = False
    """Whether to initialize the output matrices of attention and feed-forward networks with 0, so
    that layers do not change the hidden states at first."""
    seed: Seed = 0
    """Random seed for the initial weights, the order of samples, masking and dropout."""
    precision: Precision = "auto"
    """Mixed precision (bf16 with fp32 master weights) or fp32; fp16 is not supported. Auto uses
    bf16 if it is faster: on GPUs and AMD or ARM processors with bf16 instructions, and Intel
    processors with AMX."""
    device: str = "auto"
    """Device, such as cpu or cuda:1; auto uses a GPU if one is available."""
    compile: bool = False
    """Whether to compile the layers with torch.compile. Compilation takes minutes at the start, and
    reduces the number of GPU kernels."""
    loader_processes: Annotated[int, Meta(ge=0)] | None = None
    """Number of processes that prepare batches. If it is 0, a thread prepares them. Default: up to
    4 on a GPU, and 0 otherwise."""
    shard_optimizer: bool = False
    """Whether each process stores only its part of the optimizer state (ZeRO-1). This reduces
    memory and does not change results."""
    log_every: Count = 10
    """Number of steps between journal records."""
    label_smoothing: Annotated[float, Meta(ge=0.0, lt=1.0)] = 0.0
    """Label smoothing: fraction of the target probability that is spread over the complete
    vocabulary (0.1 in translation)."""
    z_loss: Annotated[float, Meta(ge=0.0)] = 0.0
    """Weight of the z-loss, which is the squared logarithm of the softmax denominator of each
    predicted token (1e-4 in PaLM)."""
    evaluate_every: Count = 500
    """Number of steps between evaluations on held-out text."""
    evaluate_samples: Annotated[int, Meta(ge=0)] = 512
    """Maximum number of held-out samples per evaluation; 0 disables evaluation."""
    save_every: Count = 500
    """Number of steps between checkpoints. The last step is always saved."""
    average_steps: Annotated[int, Meta(ge=0)] = 0
    """Number of steps, at the end of the run, over which the weights are averaged. After the last
    step, the averaged weights are evaluated and saved."""
    keep: Count = 2
    """Number of checkpoints to keep. The newest complete checkpoint is never deleted."""
    track: Track = "none"
    """Experiment tracker that receives all journal records."""
    peak_flops: Positive | None = None
    """Peak FLOP/s of the device, from which the model FLOPS utilization (MFU) is computed. Default:
    the known value in bf16, for common GPUs."""

    def __post_init__(self) -> None:
        if (self.first_batch_size is None) != (self.batch_warmup_steps == 0):
            raise ValueError(
                "first_batch_size and batch_warmup_steps require each other; set both, or remove "
                "both"
            )
        if self.first_batch_size is not None and self.first_batch_size > self.batch_size:
            raise ValueError(
                f"first_batch_size must be at most batch_size = {self.batch_size}, got "
                f"{self.first_batch_size}"
            )
        if self.first_window is None and self.first_window_share != FIRST_WINDOW_SHARE:
            raise ValueError(
                "first_window_share requires first_window; set first_window, or remove "
                "first_window_share"
            )
        if self.decay_steps and self.schedule != "wsd":
            raise ValueError(
                f'decay_steps requires schedule = "wsd", got "{self.schedule}"; remove decay_steps'
            )
        if self.average_steps > self.steps:
            raise ValueError(
                f"average_steps must be at most the {self.steps} steps of the run, got "
                f"{self.average_steps}"
            )
        given = {
            "adamw_learning_rate": self.adamw_learning_rate is not None,
            "adamw_weight_decay": self.adamw_weight_decay is not None,
            "momentum": self.momentum != MUON_MOMENTUM,
        }
        for name in (name for name, value in given.items() if value and self.optimizer != "muon"):
            raise ValueError(f'{name} requires optimizer = "muon", got "adamw"; remove {name}')
        fewest = self.first_batch_size or self.batch_size
        if fewest < self.parts:
            raise ValueError(f"parts must be at most the batch size of {fewest}, got {self.parts}")

    def samples(self, step: int) -> tuple[int, int]:
        """Return the index of the first sample of a step (from 0), and its number of samples."""
        if self.first_batch_size is None:
            return step * self.batch_size, self.batch_size
        growth = self.batch_size - self.first_batch_size
        sizes = self.first_batch_size + growth * np.arange(step + 1) // self.batch_warmup_steps
        sizes = np.minimum(sizes, self.batch_size)
        return int(sizes[:-1].sum()), int(sizes[-1])

    def window(self, step: int) -> int | None:
        """Return `first_window` if it applies to a step, or None. Steps count from 0."""
        applies = step < round(self.first_window_share * self.steps)
        return self.first_window if applies else None

    def samples_of(self, step: int, part: int) -> tuple[int, int]:
        """Return, for a part of a step, the index of its first sample and its number of samples."""
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
"""Settings of `train` that may change when a run is resumed."""


def read_run_file(path: str | Path) -> dict[str, Any]:
    """Read a run file, given by its path or by the name of a built-in run file, as plain data.

    Raises:
        ConfigError: If the file is missing or malformed.
    """
    return read_toml_by_name(path, CONFIGS)
