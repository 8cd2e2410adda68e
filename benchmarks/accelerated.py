"""A pretraining as accelerate's examples have it, beside `bertkit pretrain` under torchrun.

`BertForPreTraining` under DDP, samples grouped by length, a batch at a time with gradients that add
up; the state is saved every few steps, and a process that is started again goes on after it.
Started by `benchmarks/scale.py`, as `torchrun -m benchmarks.accelerated`.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from benchmarks import pretrain
from benchmarks.embed import minilm
from benchmarks.harness import bf16_here
from bertkit.config import override, read_toml
from bertkit.data.corpus import Corpus
from bertkit.recipes.run_file import read_config


def main(config: str, corpus: Path, out: Path, steps: int, samples: int, batch: int) -> None:
    from accelerate import Accelerator
    from transformers import AutoTokenizer, DataCollatorForLanguageModeling

    accelerator = Accelerator(cpu=True, mixed_precision="bf16" if bf16_here() else "no")
    text = Corpus.open(corpus)
    changed = [("sampling.length", str(pretrain.LENGTH))]
    settings = read_config(override(read_toml(Path(config)), changed), text.tokenizer())
    drawn = pretrain.samples(settings, text).batch(
        0, pretrain.MEGA * batch * accelerator.num_processes
    )
    rows = [pretrain.row_of(sample, ("mlm", "nsp")) for sample in drawn]
    model = pretrain.bert(settings)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model, optimizer = accelerator.prepare(model, optimizer)
    collator = DataCollatorForLanguageModeling(
        AutoTokenizer.from_pretrained(minilm()),
        mlm_probability=settings.masking.mlm_probability,
    )
    order = pretrain.batches([len(row["input_ids"]) for row in rows], batch, grouped=True)
    start = 0
    if (out / "state").exists():
        accelerator.load_state(str(out / "state"))
        start = int((out / "state" / "step").read_text(encoding="utf-8"))
    parts = samples // batch // accelerator.num_processes
    for _ in range(start * parts * accelerator.num_processes):
        next(order)
    for step in range(start + 1, steps + 1):
        began, tokens = time.perf_counter(), 0
        for part in range(parts):
            mine = [next(order) for _ in range(accelerator.num_processes)]
            places = mine[accelerator.process_index]
            given = collator([rows[place] for place in places])
            last = part == parts - 1
            with accelerator.autocast(), model.no_sync() if not last else nullcontext():
                loss = model(**given).loss / parts
                accelerator.backward(loss)
            tokens += int(given["attention_mask"].sum())
        optimizer.step()
        optimizer.zero_grad()
        total = accelerator.reduce(torch.tensor(tokens), "sum").item()
        if accelerator.is_main_process:
            record = {"step": step, "tokens_per_second": total / (time.perf_counter() - began)}
            with (out / "journal.jsonl").open("a", encoding="utf-8") as journal:
                journal.write(json.dumps(record) + "\n")
        if step % 5 == 0:
            save(accelerator, out, step)
    accelerator.end_training()


def save(accelerator: Any, out: Path, step: int) -> None:
    """The state under another name, then renamed, so that a kill leaves all of it or nothing."""
    accelerator.save_state(str(out / "new"))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        (out / "new" / "step").write_text(str(step), encoding="utf-8")
        shutil.rmtree(out / "state", ignore_errors=True)
        (out / "new").rename(out / "state")
    accelerator.wait_for_everyone()


if __name__ == "__main__":
    named, corpus, out, *numbers = sys.argv[1:]
    main(named, Path(corpus), Path(out), *map(int, numbers))
