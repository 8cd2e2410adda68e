"""Pretraining on the CPU, MLM + NSP: bertkit against transformers' `BertForPreTraining`.

Both sides learn from samples of one prepared corpus of real English, at most 128 tokens long, and
real tokens are counted. bertkit takes one optimizer step of a shipped configuration, drawing and
masking its samples within the measured time. The peer takes some steps at its own batch size on
every nth of the same samples by length: they are in memory, its collator masks and pads them to
128, and it neither clips gradients nor schedules the learning rate, which bertkit does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks import harness, text
from benchmarks.embed import minilm
from bertkit.config import override, read_toml
from bertkit.data.collate import collate
from bertkit.data.corpus import Corpus
from bertkit.data.segments import Sample, Samples
from bertkit.models.model import build
from bertkit.nn.precision import resolve
from bertkit.objectives.loss import Objective
from bertkit.objectives.pretrain import pretrain as masked_words
from bertkit.objectives.replace import attach_generator, replaced_tokens
from bertkit.recipes.prepare import prepare
from bertkit.recipes.run_file import PretrainConfig, heads_of, read_config
from bertkit.text.tokenizer import Tokenizer
from bertkit.training.loop import steps
from bertkit.training.masters import Masters
from bertkit.training.optim import adamw
from bertkit.training.schedule import schedule

CONFIGS = Path(__file__).parents[1] / "configs"
LENGTH = 128
MEGABYTES = 1.5


@dataclass(frozen=True)
class Size:
    """One model to measure, and how its peer is fed."""

    config: str
    peer_batch: int
    peer_samples: int
    """Samples the peer learns from in a measured call: a few steps."""
    targets: tuple[float, float]
    """Against the peer in fp32, and under bf16 autocast."""


SIZES = (
    Size("bert-mini", peer_batch=32, peer_samples=64, targets=(10.0, 4.5)),
    Size("bert-base", peer_batch=8, peer_samples=16, targets=(5.0, 2.2)),
)


def main(*, quick: bool = False) -> None:
    with TemporaryDirectory() as folder:
        corpus = make_corpus(Path(folder))
        rows = [
            row for size in SIZES[: 1 if quick else None] for row in measure(size, corpus, quick)
        ]
    if quick:
        harness.show("pretrain, quick", rows)
    else:
        harness.write("pretrain", rows)


def make_corpus(folder: Path) -> Corpus:
    """Real documents, tokenized with BERT's own vocabulary of 30,522 pieces."""
    source = folder / "text.jsonl"
    lines = (json.dumps({"text": document}) for document in text.documents(MEGABYTES))
    source.write_text("\n".join(lines), encoding="utf-8")
    return prepare([source], tokenizer=Tokenizer.load(minilm()), out=folder / "corpus")


def measure(size: Size, corpus: Corpus, quick: bool) -> list[harness.Row]:
    """Our step against the peer's steps, in its default precision and under bf16 autocast."""
    config = settings(size, corpus)
    # one group of samples, again and again: every call then does the same work
    drawn = samples(config, corpus).batch(0, config.train.batch_size)
    fed = every_nth(drawn, size.peer_samples)
    return [
        harness.compare(
            f"pretraining step, {size.config}",
            ours(config, corpus),
            peer(config, fed, batch_size=size.peer_batch, autocast=autocast),
            peer_name=f"transformers, {'bf16 autocast' if autocast else 'fp32'}",
            unit="tokens/s",
            work=(sum(map(len, drawn)), sum(map(len, fed))),
            target=target,
            repeats=1 if quick else 3,
        )
        for autocast, target in zip((False, True), size.targets, strict=True)
    ]


def settings(size: Size, corpus: Corpus) -> PretrainConfig:
    """The shipped configuration, at samples of 128 tokens from the first step to the last."""
    data = read_toml(CONFIGS / f"{size.config}.toml")
    data["sampling"].pop("first_length", None)
    return read_config(override(data, [("sampling.length", str(LENGTH))]), corpus.tokenizer())


def samples(config: PretrainConfig, corpus: Corpus) -> Samples:
    return Samples(
        corpus, corpus.tokenizer(), config.sampling, config.masking, seed=config.train.seed
    )


def every_nth(drawn: Sequence[Sample], wanted: int) -> list[Sample]:
    """So many of the samples, spread evenly over their lengths, in the order they came."""
    by_length = sorted(range(len(drawn)), key=lambda place: len(drawn[place]))
    stride = len(drawn) / wanted
    return [drawn[place] for place in sorted(by_length[int(i * stride)] for i in range(wanted))]


def ours(config: PretrainConfig, corpus: Corpus) -> Callable[[], object]:
    """One optimizer step of the recipe a call, of the same samples: draw, mask, pack, learn."""
    train, heads, source = config.train, heads_of(config), samples(config, corpus)
    torch.manual_seed(0)
    model = build(config.model, heads)
    objective: Objective = masked_words
    if config.generator is not None:
        attach_generator(model, config.generator)
        objective = replaced_tokens(config.generator.weight)
    masters = Masters(model, resolve(train.precision, "cpu"))
    beside = next((head for head in heads if head in ("nsp", "sop", "rtd")), None)
    learning = steps(
        masters,
        objective,
        (
            collate(
                source.batch(0, train.batch_size), head=beside, budget_tokens=train.budget_tokens
            )
            for _ in count()
        ),
        adamw(masters.weights, learning_rate=1e-4, weight_decay=train.weight_decay),
        schedule("constant", steps=1, warmup_steps=0, decay_steps=0),
        clip=train.clip,
        seed=train.seed,
    )
    return lambda: next(learning)


def peer(
    config: PretrainConfig, fed: Sequence[Sample], *, batch_size: int, autocast: bool
) -> Callable[[], None]:
    """Steps of `BertForPreTraining` over the samples: mask, pad, learn."""
    from transformers import (
        AutoTokenizer,
        BertConfig,
        BertForPreTraining,
        DataCollatorForLanguageModeling,
    )

    shape = config.model
    torch.manual_seed(0)
    model = BertForPreTraining(
        BertConfig(
            vocab_size=shape.vocab,
            hidden_size=shape.hidden,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            intermediate_size=shape.intermediate,
            max_position_embeddings=shape.length,
            hidden_dropout_prob=shape.dropout,
            attention_probs_dropout_prob=shape.attention_dropout,
        )
    ).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    collator = DataCollatorForLanguageModeling(
        AutoTokenizer.from_pretrained(minilm()),
        mlm_probability=config.masking.rate,
        pad_to_multiple_of=LENGTH,
    )
    rows = [row_of(sample, ("mlm", "nsp")) for sample in fed]

    def call() -> None:
        for start in range(0, len(rows), batch_size):
            batch = collator(rows[start : start + batch_size])
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                loss = model(**batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    return call


def row_of(sample: Sample, heads: Sequence[str], *, types: int = 2) -> dict[str, object]:
    """A sample as the peer's collator wants it, with nothing masked yet."""
    ids = sample.ids.copy()
    ids[sample.places] = sample.labels
    row: dict[str, object] = {"input_ids": ids.tolist(), "attention_mask": [1] * len(ids)}
    if types:
        row["token_type_ids"] = sample.types.tolist()
    pairs = {"nsp": "next_sentence_label", "sop": "sentence_order_label"}
    return row | {pairs[head]: sample.pair for head in heads if head in pairs}
