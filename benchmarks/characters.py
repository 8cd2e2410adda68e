"""A GPT of characters: how soon ours comes to the held-out loss of nanoGPT's recipe for a CPU.

The peer is that recipe in plain torch: 4 layers, 4 heads, 128 wide, blocks of 64 characters, 12 a
step, no dropout, 2,000 steps of AdamW (1e-3 to 1e-4 by a cosine, 100 steps of warm-up, β of 0.9 and
0.99, decay 0.1 of matrices, gradients clipped at 1). Source: its README, "I only have a MacBook",
and Radford et al. 2019 for the shape. Ours is `bertkit pretrain` of the same shape by settings of
our choice, a byte a piece: fewer steps, Muon for the matrices.

Both learn from the same characters: a novel's first 1.1 million, white space as single spaces,
ASCII alone. The last tenth is scored, block after block, by nats a character; settings were chosen
on the tenth before it, learning from what is before that (as --quick does). The seconds mean
something where our held-out loss is no higher. Learning is timed without an evaluation; the whole
process with the start of Python and torch, and the score. Needs BERTKIT_DATA.
"""

from __future__ import annotations

import gzip
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

import bertkit
from benchmarks import kept
from benchmarks.harness import Options, apart, bf16_here
from bertkit.config import override
from bertkit.console import quietly
from bertkit.data.blocks import Block, block
from bertkit.data.collate import collate
from bertkit.objectives.pretrain import pretrain as next_words
from bertkit.recipes.prepare import prepare
from bertkit.recipes.pretrain import pretrain
from bertkit.recipes.run_file import read_run_file
from bertkit.recipes.vocabulary import train_vocabulary
from bertkit.training.loop import evaluate

NOVEL = Path("prose_novels", "Dickens_Bleak_1853.txt.gz")
CHARACTERS, BYTES = 1_100_000, 256
LAYERS, HEADS, HIDDEN, LENGTH = 4, 4, 128, 64
STEPS, BATCH, WARMUP, RATES = 2000, 12, 100, (1e-3, 1e-4)
"""The peer's."""
WHATS = tuple(
    f"a GPT of characters, {what}" for what in ("held-out loss", "learning", "whole process")
)
SHAPE = [
    ("model.layers", str(LAYERS)),
    ("model.heads", str(HEADS)),
    ("model.hidden", str(HIDDEN)),
    ("model.intermediate", str(4 * HIDDEN)),
    ("model.max_positions", str(LENGTH)),
    ("model.dropout", "0.0"),
    ("model.attention_dropout", "0.0"),
    ("sampling.length", str(LENGTH)),
    ("sampling.held_out", "0.0"),
]
OURS = {
    "train.steps": "400",
    "train.batch_size": "16",
    "train.optimizer": "muon",
    "train.learning_rate": "2e-2",
    "train.warmup_steps": "20",
    "train.betas": "[0.9, 0.99]",
}
"""Chosen on other text than what is scored: notes/2026-11.md has what was tried."""
TOLD = ("steps", "batch_size", "optimizer", "learning_rate")

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Learned:
    """What a side came to. Units: nats a character, seconds."""

    loss: float
    seconds: float
    process: float = 0.0
    """With the start of its process, and the loss's computation."""


def main(options: Options) -> None:
    data = os.environ.get("BERTKIT_DATA")
    if data is None:
        sys.exit("BERTKIT_DATA: names no folder of data sets, and novels are among them")
    book = options.book("characters")
    steps, changed = (50, {"train.steps": "50"}) if options.quick else (STEPS, {})
    with TemporaryDirectory() as place:
        learned, scored = prepared(Path(data), Path(place), choosing=options.quick)
        for name, autocast in (
            ("fp32", False),
            *([("bf16 autocast", True)] if bf16_here() else []),
        ):
            peer_name = f"nanoGPT's recipe, {name}"
            if options.late or not any(book.wanted(what, peer_name) for what in WHATS):
                continue
            peer = timed(recipe, learned, scored, steps, autocast)
            own = timed(ours, Path(place), scored, OURS | changed)
            how = (
                kept.How(told(OURS | changed)),
                kept.How(f"{steps:,} steps of {BATCH} × {LENGTH}"),
            )
            figures = (
                (own.loss, peer.loss, "nats", 1.0),
                (own.seconds, peer.seconds, "s", 3.0),
                (own.process, peer.process, "s", 3.0),
            )
            for what, (mine, other, unit, target) in zip(WHATS, figures, strict=True):
                book.add(
                    kept.row(
                        what, mine, other, peer_name=peer_name,
                        unit=unit, target=target, better="lower", how=how,
                    )
                )  # fmt: skip
    book.close()


def told(settings: Mapping[str, str]) -> str:
    steps, batch, optimizer, rate = (settings[f"train.{name}"] for name in TOLD)
    return f"{steps} steps of {batch} × {LENGTH}, {optimizer} at {rate}"


def prepared(data: Path, folder: Path, *, choosing: bool) -> tuple[Ids, Ids]:
    """The characters to learn from, prepared as a corpus too, and those that are scored."""
    raw = gzip.decompress((data / NOVEL).read_bytes()).decode("utf-8-sig")
    text = " ".join(raw.encode("ascii", "ignore").decode().split())[:CHARACTERS]
    tenth = len(text) // 10
    first, last = (8, 9) if choosing else (9, 10)
    learned, scored = text[: first * tenth].strip(), text[first * tenth : last * tenth].strip()
    (folder / "text.txt").write_text(learned, encoding="ascii")
    # as many pieces as there are bytes, and the end of a text: nothing is joined
    vocabulary = train_vocabulary(
        [folder / "text.txt"], out=folder / "bytes", kind="bpe", use="write", size=BYTES + 1
    )
    corpus = prepare([folder / "text.txt"], tokenizer=vocabulary, out=folder / "corpus")
    ids = corpus.slice(0, int(corpus.document_starts[1]))
    assert vocabulary.decode(ids) == learned, "both sides read the same"
    return ids.astype(np.int64), vocabulary.ids([scored])[0]


def timed(call: Callable[..., Learned], *given: object) -> Learned:
    """What a side came to, in a process of its own."""
    start = time.perf_counter()
    found = apart(call, *given)
    return replace(found, process=time.perf_counter() - start)


def blocks(ids: Ids) -> Iterator[Block]:
    """Blocks that are scored; before the first there is a character too."""
    for start in range(LENGTH, len(ids) - LENGTH, LENGTH):
        yield block(ids, start, LENGTH, end=-1)


def ours(folder: Path, scored: Ids, changed: Mapping[str, str]) -> Learned:
    """`bertkit pretrain`, from its corpus to its folder."""
    settings = override(read_run_file("gpt-mini"), [*SHAPE, *changed.items()])
    with TemporaryDirectory() as place:
        out = Path(place, "run")
        start = time.perf_counter()
        with quietly():
            pretrain(settings, corpus=folder / "corpus", out=out)
        seconds = time.perf_counter() - start
        model = bertkit.load(out).model
    losses, _ = evaluate(
        model, next_words, collate([*blocks(scored)], head="lm", max_batch_tokens=8192)
    )
    return Learned(losses["lm"], seconds)


# ---- the peer


def recipe(learned: Ids, scored: Ids, steps: int, autocast: bool) -> Learned:
    """nanoGPT's: blocks from anywhere in the text, 12 a step."""
    torch.manual_seed(1337)
    known = np.unique(np.concatenate([learned, scored]))  # its vocabulary: what there is
    learned, scored = np.searchsorted(known, learned), np.searchsorted(known, scored)
    text, model = torch.from_numpy(learned), GPT(len(known))
    matrices = [weight for weight in model.parameters() if weight.ndim > 1]
    others = [weight for weight in model.parameters() if weight.ndim == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        lr=RATES[0],
        betas=(0.9, 0.99),
    )
    offsets, start = torch.arange(LENGTH + 1), time.perf_counter()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate(step, steps)
        block = text[torch.randint(len(text) - LENGTH, (BATCH, 1)) + offsets]
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            loss = model.loss(block[:, :-1], block[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    seconds = time.perf_counter() - start
    rows = [*blocks(scored)]
    ids, labels = (torch.from_numpy(np.stack([getattr(row, side) for row in rows]))
                   for side in ("ids", "labels"))  # fmt: skip
    with torch.inference_mode():
        losses = [model.loss(*part) for part in zip(ids.split(256), labels.split(256), strict=True)]
    weights = torch.tensor([len(part) for part in ids.split(256)]) / len(ids)
    return Learned(float((torch.stack(losses) * weights).sum()), seconds)


def rate(step: int, steps: int) -> float:
    """The learning rate: up in a line, down in a cosine."""
    most, least = RATES
    if step < WARMUP:
        return most * (step + 1) / (WARMUP + 1)
    share = (step - WARMUP) / (steps - WARMUP)
    return least + (most - least) * (1 + math.cos(math.pi * share)) / 2


class Layer(nn.Module):
    """Attention to what is before, and a feed-forward, each behind a norm; no biases."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(HIDDEN, bias=False) for _ in range(2)])
        self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN, bias=False)
        self.out = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.up = nn.Linear(HIDDEN, 4 * HIDDEN, bias=False)
        self.down = nn.Linear(4 * HIDDEN, HIDDEN, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        batch, length, _ = states.shape
        heads = self.qkv(self.norms[0](states)).view(batch, length, 3, HEADS, HIDDEN // HEADS)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        read = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        states = states + self.out(read.transpose(1, 2).reshape(batch, length, HIDDEN))
        states = states + self.down(F.gelu(self.up(self.norms[1](states))))
        return states


class GPT(nn.Module):
    """GPT-2's shape and initialization, the embedding shared with the output."""

    def __init__(self, vocab: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, HIDDEN), nn.Embedding(LENGTH, HIDDEN)
        self.layers = nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(HIDDEN, bias=False)
        for name, weight in self.named_parameters():
            if weight.ndim > 1:
                last = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * LAYERS) if last else 0.02)

    def loss(self, ids: Tensor, labels: Tensor) -> Tensor:
        states = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        logits = F.linear(self.norm(self.layers(states)), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
