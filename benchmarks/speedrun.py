"""The best BERT of a given time: minutes to the loss that tuned transformers has after an hour.

Both sides learn masked words from the same training documents, `prose_novels` and `prose_reviews`
(12 million words), cut by bert-base-uncased's vocabulary; a model is at most as large as BERT-mini
and its folder opens in transformers. They are scored by the same held-out samples of 128 tokens,
whose masks (15 % of the tokens, 80/10/10) are the same bytes for all, in fp32: loss a masked token.

The peers are transformers' `BertForMaskedLM` at BERT-mini's shape, its samples in memory:

- H0, what people copy: `run_mlm.py`'s defaults (batches of 8, 5e-5, no warm-up, fp32);
- H1, the same code tuned in good faith: bf16 autocast where the processor gains by it, batches of
  64, warm-up over 5 % of the steps, β₂ 0.98, and the best of several rates. It rules.

Ours is a run file that comes with bertkit, as `bertkit pretrain` runs it: its minutes are those of
the whole process, corpus prepared. A learning rate that falls to zero at the end of the minutes
asked for belongs to both.

Needs BERTKIT_DATA. What was measured is not measured again; --fresh does.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from benchmarks.embed import minilm
from benchmarks.harness import once
from bertkit.console import quietly
from bertkit.data.collate import collate
from bertkit.data.corpus import Corpus
from bertkit.data.masking import Masking
from bertkit.data.segments import Sample, Samples, Sampling, split_documents
from bertkit.models.model import Model
from bertkit.recipes.prepare import prepare
from bertkit.text.tokenizer import Tokenizer

LENGTH = 128
HELD_OUT = 0.01
"""Of the tokens, in whole documents; bertkit's run files hold out the same ones."""
FILLED = Sampling(
    pairs="none", cross_documents=True, length=LENGTH, short_seq_probability=0.0, held_out=HELD_OUT
)
EXAM = 2048
"""Samples that are scored at most."""
PLACE = Path("runs") / "speedrun"
SHAPE = {"layers": 4, "hidden": 256, "heads": 4, "intermediate": 1024}


@dataclass(frozen=True)
class Peer:
    """How transformers learns."""

    batch: int = 64
    learning_rate: float = 1e-3
    warmup: float = 0.05
    beta2: float = 0.98
    autocast: bool = True
    dropout: float = 0.1


H0 = Peer(batch=8, learning_rate=5e-5, warmup=0.0, beta2=0.999, autocast=False)
H1 = Peer()
RATES = (5e-4, 1e-3, 2e-3)
"""Among which H1's is chosen."""


def corpus(place: Path = PLACE) -> Corpus:
    """Prepared once."""
    data = os.environ.get("BERTKIT_DATA")
    if data is None:
        sys.exit("BERTKIT_DATA: names no folder of data sets, and the novels are among them")
    texts = [Path(data) / "prose_novels", Path(data) / "prose_reviews"]

    def made(folder: Path) -> None:
        with quietly():
            prepare(texts, tokenizer=Tokenizer.load(minilm()), out=folder)

    return Corpus.open(once(place / "corpus", made))


# ---- the exam


def exam(text: Corpus, half: int | None = None) -> list[Sample]:
    """Held-out samples; a half of them is for choosing (0), the other for scoring (1)."""
    _, held_out = split_documents(text, HELD_OUT)
    samples = Samples(text, text.tokenizer(), FILLED, Masking(), documents=held_out)
    drawn = samples.evaluation(EXAM)
    return list(drawn) if half is None else list(drawn)[half::2]


@torch.no_grad()
def loss_of(model: Model, samples: Sequence[Sample]) -> float:
    """A masked token's, in fp32."""
    head: Any = model.heads["mlm"]
    device = next(model.parameters()).device
    model.eval()
    total = count = 0.0
    for batch in collate(samples, head=None, max_batch_tokens=8192):
        batch = batch.to(device)
        logits = head(model.states(batch), batch).float()
        total += float(F.cross_entropy(logits, batch.targets["mlm"], reduction="sum"))
        count += len(logits)
    return total / count


# ---- the peer


def learned_by_peer(
    text: Corpus, out: Path, way: Peer, *, steps: int, seed: int, device: str = "cpu"
) -> float:
    """A folder of transformers' model after so many steps; answers its tokens/s."""
    from transformers import AutoTokenizer, BertForMaskedLM, DataCollatorForLanguageModeling
    from transformers import BertConfig, get_linear_schedule_with_warmup  # isort: skip

    tokenizer = AutoTokenizer.from_pretrained(minilm())
    torch.manual_seed(seed)
    model: Any = BertForMaskedLM(
        BertConfig(
            vocab_size=text.tokenizer().vocab_size,
            hidden_size=SHAPE["hidden"],
            num_hidden_layers=SHAPE["layers"],
            num_attention_heads=SHAPE["heads"],
            intermediate_size=SHAPE["intermediate"],
            hidden_dropout_prob=way.dropout,
            attention_probs_dropout_prob=way.dropout,
        )
    )
    model.to(device)
    rows = _rows(text, steps * way.batch, seed)
    collator = DataCollatorForLanguageModeling(tokenizer)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=way.learning_rate, betas=(0.9, way.beta2), weight_decay=0.01
    )
    rate = get_linear_schedule_with_warmup(optimizer, int(way.warmup * steps), steps)
    model.train()
    began = time.perf_counter()
    for _ in range(steps):
        drawn = [next(rows) for _ in range(way.batch)]
        batch = {name: value.to(device) for name, value in collator(drawn).items()}
        with torch.autocast(device, dtype=torch.bfloat16, enabled=way.autocast):
            loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rate.step()
        optimizer.zero_grad()
    took = time.perf_counter() - began
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return steps * way.batch * LENGTH / took


def _rows(text: Corpus, count: int, seed: int) -> Iterator[dict[str, list[int]]]:
    """Of the training documents, before anything is masked."""
    learned, _ = split_documents(text, HELD_OUT)
    samples = Samples(text, text.tokenizer(), FILLED, Masking(), documents=learned, seed=seed)
    for start in range(0, count, 64):
        for sample in samples.batch(start, 64):
            ids = sample.ids.copy()
            ids[sample.masked_positions] = sample.labels
            yield {"input_ids": ids.tolist(), "attention_mask": [1] * len(ids)}
