"""Pretraining on the CPU, MLM + NSP: bertkit against transformers' `BertForPreTraining`.

Both sides are trained on samples of the same corpus, of at most 128 tokens. Tokens without padding
are counted, for running text, whose samples are nearly full, and for short documents, whose samples
are not. Each call is one optimizer step with the same number of new samples. bertkit runs the step
of one of its run files; the time includes sampling, masking and packing. The samples of the
baseline are in memory, and its collator masks and pads them. Only bertkit clips gradients and
schedules the learning rate.

The baseline has the variants that a user would try:

- default: fp32, random order, padded to 128 tokens;
- grouped by length, as in `Trainer`;
- grouped, with bf16 autocast;
- grouped, with bf16 weights, which AdamW updates without fp32 master weights;
- grouped, with predictions only at masked positions, which transformers does not provide;
- `torch.compile` in one padded shape, only for the small model, because compiling the large one
  takes minutes.

All sides of a model and a text run alternately, and the medians are compared. The first five steps
of each side are not counted, because a pretraining run has thousands of steps.

Running text: novels in BERTKIT_DATA, else the Python language reference. Short documents:
docstrings.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch
from torch.nn import functional as F

from benchmarks import kept, text
from benchmarks.embed import minilm
from benchmarks.harness import Options, bf16_here, turns
from bertkit.config import override, read_toml
from bertkit.console import quietly
from bertkit.data.collate import collate
from bertkit.data.corpus import Corpus
from bertkit.data.document_readers import documents
from bertkit.data.samples import Sample, Samples
from bertkit.models.config import TransformerConfig
from bertkit.models.model import build
from bertkit.nn.precision import resolve
from bertkit.objectives.pretrain import pretrain as masked_words
from bertkit.recipes.prepare import prepare
from bertkit.recipes.pretrain_config import PretrainConfig, read_config
from bertkit.text.tokenizer import Tokenizer
from bertkit.training.loop import steps
from bertkit.training.master_weights import Masters
from bertkit.training.optimizer import adamw
from bertkit.training.schedule import schedule

CONFIGS = Path(__file__).parents[1] / "configs"
LENGTH = 128
MEGABYTES, PART = 1.5, 100_000
"""Size of a text, and maximum number of characters per novel."""
MEGA = 50
"""Number of batches among which samples are grouped by length, as in `Trainer`."""

WARM = 5
"""Number of warmup steps per side, in which the process allocates memory that later steps reuse."""

TEXTS = ("running text", "short documents")


@dataclass(frozen=True)
class Size:
    """One model to measure."""

    config: str
    samples: int
    """Number of samples per optimizer step. The run file's 256 take minutes with a large model."""
    peer_batch: int
    rounds: int
    compiled: bool = False


SIZES = (
    Size("bert-mini", samples=128, peer_batch=32, rounds=3, compiled=True),
    Size("bert-base", samples=32, peer_batch=8, rounds=2),
)
TINY = Size("bert-tiny", samples=16, peer_batch=8, rounds=1)
"""Model of a quick run."""


@dataclass(frozen=True)
class Way:
    """Variant of the baseline."""

    name: str
    target: float
    numbers: Literal["fp32", "autocast", "bf16"] = "fp32"
    grouped: bool = True
    masked_only: bool = False
    compiled: bool = False

    @property
    def settings(self) -> str:
        found = {
            "fp32": "fp32",
            "autocast": "bf16 autocast",
            "bf16": "bf16 weights and AdamW on them",
        }
        order = "grouped by length" if self.grouped else f"random order, padded to {LENGTH}"
        return f"{found[self.numbers]}, {'torch.compile, ' * self.compiled}{order}"


def ways(size: Size | None = None) -> list[Way]:
    """Return the variants that this processor supports, for some sizes with `torch.compile`."""
    found = [
        Way("transformers, fp32", 5.0, grouped=False),
        Way("transformers, fp32, grouped by length", 2.0),
    ]
    if bf16_here():
        found += [
            Way("transformers, bf16 autocast, grouped by length", 2.5, "autocast"),
            Way("transformers, bf16 weights, grouped by length", 1.0, "bf16"),
        ]
    best: Literal["autocast", "fp32"] = "autocast" if bf16_here() else "fp32"
    precision = "bf16 autocast" if bf16_here() else "fp32"
    name = f"transformers, {precision}, grouped by length, words at masked places only"
    found.append(Way(name, 1.0, best, masked_only=True))
    if size is not None and size.compiled and shutil.which("g++"):
        name = f"transformers, {precision}, torch.compile"
        found.append(Way(name, 1.0, best, grouped=False, compiled=True))
    return found


def main(options: Options) -> None:
    book = options.book("pretrain")
    if not bf16_here():
        book.leave_out("no bf16 peers: this processor has no bf16 instructions")
    book.leave_out("bert-base by torch.compile: not measured, compiling it takes minutes")
    if not shutil.which("g++"):
        book.leave_out("bert-mini by torch.compile: this machine has no C++ compiler")
    for size in (TINY,) if options.quick else SIZES:
        with TemporaryDirectory() as folder:
            for kind in TEXTS:
                title = f"pretraining step, {size.config}, {kind}"
                if book.needs(title, *(way.name for way in ways(size))) and not options.late:
                    corpus = make_corpus(Path(folder) / kind.replace(" ", "-"), kind)
                    book.add(*measure(title, size, corpus))
    book.close()


def make_corpus(folder: Path, kind: str) -> Corpus:
    """Prepare a corpus of documents with BERT's vocabulary of 30,522 tokens."""
    folder.mkdir()
    source = folder / "text.jsonl"
    found = running() if kind == TEXTS[0] else text.docstrings(MEGABYTES)
    lines = (json.dumps({"text": document}) for document in found)
    source.write_text("\n".join(lines), encoding="utf-8")
    with quietly():
        return prepare([source], tokenizer=Tokenizer.load(minilm()), out=folder / "corpus")


def running() -> Iterator[str]:
    """Yield novels, or the chapters of the Python language reference."""
    novels = Path(os.environ.get("BERTKIT_DATA", ".")) / "prose_novels"
    if not novels.is_dir():
        yield from text.reference()
        return
    left = MEGABYTES * 1e6
    for document in documents([novels]):
        part = document.text[:PART]  # NSP needs several documents for its random sentences.
        yield part
        left -= len(part.encode())
        if left <= 0:
            return


def measure(title: str, size: Size, corpus: Corpus) -> list[kept.Row]:
    """Time steps of bertkit and of all baselines in turn; return one row per baseline."""
    config = settings(size, corpus)
    peers = {way: Peer(config, corpus, size, way) for way in ways(size)}
    calls = {"ours": bertkit_step(config, corpus)}
    calls |= {way.name: peer.step for way, peer in peers.items()}
    times, tokens = turns(calls, size.rounds, warm=WARM)
    rates = {
        name: median(done / took for done, took in zip(tokens[name], times[name], strict=True))
        for name in calls
    }
    precision = "bf16 weights, fp32 masters" if bf16_here() else "fp32"
    step = f"a step of {size.samples} new samples"
    return [
        kept.row(
            title,
            rates["ours"],
            rates[way.name],
            peer_name=way.name,
            unit="tokens/s",
            target=way.target,
            better="higher",
            setups=(
                kept.Setup(f"{precision}, {step}", 1.0),  # bertkit computes no padding.
                kept.Setup(f"{way.settings}, {step}, {size.peer_batch} at a time", peer.fill),
            ),
        )
        for way, peer in peers.items()
    ]


def settings(size: Size, corpus: Corpus) -> PretrainConfig:
    """Return the settings of a run file, with samples of 128 tokens in all steps."""
    data = read_toml(CONFIGS / f"{size.config}.toml")
    data["sampling"].pop("first_length", None)
    changes = [("sampling.length", str(LENGTH)), ("train.batch_size", str(size.samples))]
    return read_config(override(data, changes), corpus.tokenizer())


def samples(config: PretrainConfig, corpus: Corpus) -> Samples:
    return Samples(
        corpus, corpus.tokenizer(), config.sampling, config.masking, seed=config.train.seed
    )


# ---- bertkit


def bertkit_step(config: PretrainConfig, corpus: Corpus) -> Callable[[], int]:
    """Return a function that runs a step, and returns its number of tokens without padding."""
    train, heads, source = config.train, config.heads, samples(config, corpus)
    torch.manual_seed(0)
    masters = Masters(build(config.model, heads), resolve(train.precision, "cpu"))
    tokens = 0

    def groups() -> Iterator[Any]:
        nonlocal tokens
        for number in count():
            part = source.batch(number * train.batch_size, train.batch_size)
            tokens = sum(map(len, part))
            yield collate(part, head="nsp", max_batch_tokens=train.max_batch_tokens)

    training = steps(
        masters,
        masked_words,
        groups(),
        adamw(masters.weights, learning_rate=1e-4, weight_decay=train.weight_decay),
        schedule("constant", steps=1, warmup_steps=0, decay_steps=0),
        max_grad_norm=train.max_grad_norm,
        seed=train.seed,
    )

    def step() -> int:
        next(training)
        return tokens

    return step


# ---- Baseline


class Peer:
    """`BertForPreTraining` of the same shape, trained on bertkit's first samples from memory."""

    def __init__(self, config: PretrainConfig, corpus: Corpus, size: Size, way: Way) -> None:
        from transformers import AutoTokenizer, DataCollatorForLanguageModeling

        self.way, self.parts = way, size.samples // size.peer_batch
        self.model = bert(config)
        if way.numbers == "bf16":
            self.model.to(torch.bfloat16)
        self.called = torch.compile(self.model, dynamic=False) if way.compiled else self.model
        self.rows = [row_of(s) for s in samples(config, corpus).batch(0, MEGA * size.peer_batch)]
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.collator = DataCollatorForLanguageModeling(
            AutoTokenizer.from_pretrained(minilm()),
            mlm_probability=config.masking.mlm_probability,
            pad_to_multiple_of=None if way.grouped else LENGTH,
        )
        lengths = [len(row["input_ids"]) for row in self.rows]
        self.batches = batches(lengths, size.peer_batch, way.grouped)
        self.real = self.all = 0

    def loss(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        if self.way.masked_only:
            return masked_loss(self.model, batch)
        loss: torch.Tensor = self.called(**batch).loss
        return loss

    def step(self) -> int:
        """Run an optimizer step; return its number of tokens without padding."""
        tokens = 0
        for indices in islice(self.batches, self.parts):
            batch = self.collator([self.rows[index] for index in indices])
            autocast = self.way.numbers == "autocast"
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                loss = self.loss(batch)
            (loss / self.parts).backward()
            tokens += int(batch["attention_mask"].sum())
            self.all += batch["attention_mask"].numel()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.real += tokens
        return tokens

    @property
    def fill(self) -> float:
        """Fraction of the computed tokens that are not padding."""
        return self.real / self.all


def batches(lengths: Sequence[int], size: int, grouped: bool) -> Iterator[list[int]]:
    """Yield the indices of the samples of each batch, in an endless loop."""
    from transformers.trainer_pt_utils import get_length_grouped_indices

    generator = torch.Generator().manual_seed(0)
    while True:
        order = torch.randperm(len(lengths), generator=generator)
        if grouped:
            found = get_length_grouped_indices(lengths, size, MEGA, generator=generator)
            order = torch.tensor(found)
        groups = order.view(-1, size)
        # Without shuffling, grouped batches would be sorted from long to short.
        yield from groups[torch.randperm(len(groups), generator=generator)].tolist()


def bert(config: PretrainConfig) -> Any:
    """Build a model of the same size in transformers, with random weights."""
    from transformers import BertConfig, BertForPreTraining

    shape = config.model
    assert isinstance(shape, TransformerConfig)
    torch.manual_seed(0)
    return BertForPreTraining(
        BertConfig(
            vocab_size=shape.vocab,
            hidden_size=shape.hidden,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            intermediate_size=shape.intermediate,
            max_position_embeddings=shape.max_positions,
            hidden_dropout_prob=shape.dropout,
            attention_probs_dropout_prob=shape.attention_dropout,
        )
    ).train()


def masked_loss(model: Any, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Compute the loss of `BertForPreTraining`, with predictions only at masked positions."""
    targets = ("labels", "next_sentence_label")
    found = model.bert(**{name: value for name, value in batch.items() if name not in targets})
    masked = batch["labels"] != -100
    words = model.cls.predictions(found.last_hidden_state[masked])
    pairs = model.cls.seq_relationship(found.pooler_output)
    return F.cross_entropy(words.float(), batch["labels"][masked]) + F.cross_entropy(
        pairs.float(), batch["next_sentence_label"].view(-1)
    )


def row_of(sample: Sample) -> dict[str, Any]:
    """Return a sample without masks, as the baseline's collator expects it."""
    ids = sample.ids.copy()
    ids[sample.masked_positions] = sample.labels
    return {
        "input_ids": ids.tolist(),
        "attention_mask": [1] * len(ids),
        "token_type_ids": sample.types.tolist(),
        "next_sentence_label": sample.pair,
    }
