"""GPU checks: parity, packed versus single sequences, and the speedup of each optimization.

BERT-base is trained with MLM and NSP on samples of at most 128 tokens, in bf16 with fp32 master
weights. The optimizations of a GPU step are added one after another, each measured in a new process
after warmup steps:

1. the paper's settings: attention dropout, batches prepared by a thread, 16,384 tokens per forward
   pass;
2. no attention dropout, so that the kernel for packed sequences is used;
3. batches prepared by processes;
4. compiled layers;
5. 65,536 tokens per forward pass;
6. FlashAttention 3, if `flash_attn_interface` is installed.

Tokens/s do not include padding. MFU is computed by `bertkit.models.flops`: (6 Σ weights · rows + 12
L H K Σ T²) / (seconds · peak). transformers' `BertForPreTraining` is trained on the same samples,
grouped by length under bf16 autocast, and with `torch.compile` in one padded shape.

Without a GPU, `--quick` tests the script on the CPU with bert-tiny's size.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks import kept, pretrain
from benchmarks.embed import minilm
from benchmarks.harness import Options, run_in_process
from bertkit.batch import Batch
from bertkit.checkpoint.directory import load
from bertkit.config import override, read_toml
from bertkit.data.collate import collate
from bertkit.data.corpus import Corpus
from bertkit.data.samples import Sample
from bertkit.models.flops import Flops, peak_of
from bertkit.models.model import build
from bertkit.objectives.pretrain import pretrain as masked_words
from bertkit.recipes.pretrain_config import PretrainConfig, read_config
from bertkit.threads import cores
from bertkit.training.compiled import compile_blocks
from bertkit.training.data_loader import prefetched
from bertkit.training.loop import steps
from bertkit.training.master_weights import Masters
from bertkit.training.optimizer import adamw

LOGITS = "fp32, largest difference of logits from those of transformers"
PACKING = "largest difference of states of a sequence packed with others and alone"
PEER_SETTINGS = "bf16 autocast, grouped by length, batches made beforehand"
LEAST = 1e-9
"""Value that replaces a difference of 0, for which there is no ratio."""

CONFIG = "bert-base" if torch.cuda.is_available() else "bert-tiny"
STEP, MFU = f"{CONFIG}, pretraining step", f"{CONFIG}, pretraining step, MFU"
PEERS = EAGER, COMPILED = "transformers", "transformers, torch.compile"


@dataclass(frozen=True)
class Way:
    """Settings of bertkit's step."""

    name: str
    attention_dropout: float = 0.1
    loader_processes: int = 0
    compiled: bool = False
    max_batch_tokens: int = 16_384
    flash3: bool = False


def ways() -> Iterator[Way]:
    """Yield the settings, each with one more optimization."""
    yield (way := Way("the paper's settings"))
    yield (way := replace(way, name="no dropout of attention", attention_dropout=0.0))
    few = min(4, max(cores() - 1, 1))
    yield (way := replace(way, name=f"{few} loader processes", loader_processes=few))
    if device() == "cuda":
        yield (way := replace(way, name="compiled layers", compiled=True))
    yield (way := replace(way, name="65,536 tokens at a time", max_batch_tokens=65_536))
    if device() == "cuda" and importlib.util.find_spec("flash_attn_interface"):
        yield replace(way, name="FlashAttention 3", flash3=True)


def main(options: Options) -> None:
    if device() == "cpu" and not options.quick:
        raise SystemExit("no GPU is available; use --quick to test the script on the CPU")
    book = options.book("gpu")
    with TemporaryDirectory() as folder:
        corpus = pretrain.make_corpus(Path(folder) / "running", pretrain.TEXTS[0])
        if book.needs(LOGITS, kept.LIMIT):
            book.add(logits(corpus, Path(folder) / "theirs"))
        book.add(*packing(corpus))
        if book.needs(STEP, *PEERS) and not options.late:
            for row in speed(corpus, quick=options.quick):
                book.add(row)
    book.close()


def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def training_dtype() -> torch.dtype:
    """Return the precision of training."""
    return torch.bfloat16 if device() == "cuda" else torch.float32


def settings(corpus: Corpus, *, attention_dropout: float) -> PretrainConfig:
    """Return the settings of bertkit's run file, with one sample length."""
    data = read_toml(pretrain.CONFIGS / f"{CONFIG}.toml")
    data["sampling"].pop("first_length", None)
    changes = [
        ("sampling.length", str(pretrain.LENGTH)),
        ("model.attention_dropout", str(attention_dropout)),
    ]
    return read_config(override(data, changes), corpus.tokenizer())


# ---- Correctness


def logits(corpus: Corpus, folder: Path) -> kept.Row:
    """Compare the logits of bertkit and transformers for the same weights and sequences."""
    from transformers import AutoTokenizer

    config = settings(corpus, attention_dropout=0.0)
    hf_model = pretrain.bert(config).eval()
    hf_model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(minilm()).save_pretrained(folder)
    model, hf_model = load(folder).model.to(device()).eval(), hf_model.to(device())
    head: Any = model.heads["mlm"]
    largest = 0.0
    for sample in pretrain.samples(config, corpus).batch(0, 8):
        (batch,) = collate([sample], head="nsp", max_batch_tokens=10**6)
        batch = batch.to(device())
        rows = {"input_ids": batch.ids[None], "token_type_ids": batch.types[None]}
        with torch.no_grad():
            values = head(model.states(batch), batch)
            hf_values = hf_model(**rows).prediction_logits[0][batch.token_indices]
        largest = max(largest, float((values - hf_values).abs().max()))
    return kept.row(
        LOGITS,
        max(largest, LEAST),
        1e-3,
        peer_name=kept.LIMIT,
        unit="nats",
        target=1.0,
        better="lower",
    )


def packing(corpus: Corpus) -> Iterator[kept.Row]:
    """Compare the states of packed and single sequences, in fp32 and, on a GPU, in bf16."""
    config = settings(corpus, attention_dropout=0.0)
    sequences = sorted(pretrain.samples(config, corpus).batch(0, 64), key=len)
    torch.manual_seed(0)
    model = build(config.model, config.heads).to(device()).eval()

    def states(samples: Sequence[Sample]) -> torch.Tensor:
        (batch,) = collate(samples, head="nsp", max_batch_tokens=10**6)
        with torch.no_grad():
            return model.states(batch.to(device()))[: batch.layout.total].float()

    for dtype, name, limit in (
        (torch.float32, "fp32", 1e-4),
        *([(torch.bfloat16, "bf16", 0.1)] if device() == "cuda" else []),
    ):
        model.to(dtype)
        packed = states(sequences).split([len(sample) for sample in sequences])
        single = [states([sample]) for sample in sequences]
        largest = max(float((a - b).abs().max()) for a, b in zip(packed, single, strict=True))
        yield kept.row(
            f"{PACKING}, {name}", max(largest, LEAST), limit, peer_name=kept.LIMIT, unit="",
            target=1.0, better="lower",
        )  # fmt: skip


# ---- Speed


@dataclass(frozen=True)
class Work:
    """Numbers of samples per step and per batch of the baseline, and of warmup and timed steps."""

    samples: int = 1024
    peer_batch: int = 256
    warm: int = 10
    counted: int = 20


def speed(corpus: Corpus, *, quick: bool) -> Iterator[kept.Row]:
    work = Work(64, 16, 2, 4) if quick else Work()
    before = mfu = rate = 0.0
    for way in ways():
        rate, mfu = run_in_process(run_bertkit, corpus, way, work)
        if before:
            yield kept.row(
                f"{STEP}, {way.name}", rate, before, peer_name="without it", unit="tokens/s",
                target=1.0, better="higher",
                setups=(
                    kept.Setup(f"MFU {mfu:.1%}" if mfu else "MFU unknown"),
                    kept.Setup("otherwise equal"),
                ),
            )  # fmt: skip
        before = rate
    for peer in PEERS:
        if peer != COMPILED or device() == "cuda":
            yield kept.row(
                STEP, rate, run_in_process(run_transformers, corpus, peer == COMPILED, work),
                peer_name=peer, unit="tokens/s", target=1.5, better="higher",
                setups=(
                    kept.Setup("all of the above"),
                    kept.Setup(f"{PEER_SETTINGS}, {work.peer_batch} at a time"),
                ),
            )  # fmt: skip
    if mfu:
        yield kept.row(
            MFU, 100 * mfu, 50.0, peer_name=kept.LIMIT, unit="%", target=1.0, better="higher"
        )


def run_bertkit(corpus: Corpus, way: Way, work: Work) -> tuple[float, float]:
    """Return tokens/s without padding, and MFU, or 0 if the device's peak is unknown."""
    config = settings(corpus, attention_dropout=way.attention_dropout)
    if way.flash3:
        from torch.nn.attention import activate_flash_attention_impl

        activate_flash_attention_impl("FA3")
    torch.manual_seed(0)
    model = build(config.model, config.heads).to(device())
    flops = Flops(model)
    masters = Masters(model, training_dtype())
    if way.compiled:
        compile_blocks(model)
    source = pretrain.samples(config, corpus)

    def batches(number: int) -> list[Batch]:
        part = source.batch(number * work.samples, work.samples)
        return collate(part, head="nsp", max_batch_tokens=way.max_batch_tokens)

    def count(groups: Iterator[list[Batch]]) -> Iterator[list[Batch]]:
        for group in groups:
            operations.append(sum(map(flops, group)))
            yield group

    operations: list[int] = []
    optimizer = adamw(masters.weights, learning_rate=1e-4, weight_decay=0.01)
    last, tokens, began = work.warm + work.counted, 0, 0.0
    with prefetched(batches, range(last), processes=way.loader_processes) as groups:
        for step in steps(
            masters, masked_words, count(groups), optimizer, lambda _: 1.0,
            max_grad_norm=1.0, seed=0,
        ):  # fmt: skip
            tokens += step.tokens if step.number > work.warm else 0
            if step.number == work.warm:
                began = now()
        seconds = now() - began
    peak = peak_of(device(), masters.dtype)
    return tokens / seconds, sum(operations[work.warm :]) / seconds / peak if peak else 0.0


def run_transformers(corpus: Corpus, compiled: bool, work: Work) -> float:
    """Return tokens/s of transformers, without the time of sampling, masking and padding."""
    from transformers import AutoTokenizer, DataCollatorForLanguageModeling

    config = settings(corpus, attention_dropout=0.0)
    model = pretrain.bert(config).to(device())
    called: Any = torch.compile(model, dynamic=False) if compiled else model
    samples = pretrain.samples(config, corpus).batch(0, 12 * work.peer_batch)
    rows = [pretrain.row_of(sample) for sample in samples]
    tokenizer = AutoTokenizer.from_pretrained(minilm())
    collator = DataCollatorForLanguageModeling(
        tokenizer, pad_to_multiple_of=pretrain.LENGTH if compiled else 8
    )
    order = pretrain.batches([len(row["input_ids"]) for row in rows], work.peer_batch, not compiled)
    batches = [collator([rows[index] for index in next(order)]) for _ in range(10)]
    real = [int(batch["attention_mask"].sum()) for batch in batches]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    parts, began, tokens = work.samples // work.peer_batch, 0.0, 0
    for number in range((work.warm + work.counted) * parts):
        if number == work.warm * parts:
            began, tokens = now(), 0
        batch = {name: value.to(device()) for name, value in batches[number % 10].items()}
        with torch.autocast(device(), dtype=torch.bfloat16, enabled=device() == "cuda"):
            (called(**batch).loss / parts).backward()
        tokens += real[number % 10]
        if (number + 1) % parts == 0:
            optimizer.step()
            optimizer.zero_grad()
    return tokens / (now() - began)


def now() -> float:
    """Return the time after the device has finished its work."""
    if device() == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()
