"""Training a model that translates: target tokens/s of ours, transformers' `Trainer`, joeynmt.

All sides learn from the same pairs in the same pieces, as many pairs a step, with the same shape,
dropout and label smoothing. Their words and ends of texts are counted in the steps behind a
warm-up. Each is measured in processes of its own, in turn, and the medians count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks import kept
from benchmarks.harness import apart, bf16_here
from benchmarks.joey import Joey, installed
from benchmarks.trainer import Padding, Rows
from bertkit.batch import Batch
from bertkit.data.collate import collate
from bertkit.data.pairs import Pair, Pairs, PairSamples
from bertkit.families import FAMILIES
from bertkit.models.model import build
from bertkit.nn.precision import resolve
from bertkit.objectives.pretrain import pretrain as next_words
from bertkit.recipes.run_file import PretrainConfig, Train, heads_of, read_config
from bertkit.training.loader import prefetched
from bertkit.training.loop import steps
from bertkit.training.masters import Masters
from bertkit.training.optim import adamw
from bertkit.training.schedule import schedule

WHAT = "training, target tokens"
PEERS = {
    "Trainer and MarianMT, grouped by length": 2.0,
    "joeynmt": 3.0,
}
"""What is aimed at beside each."""


def rows(settings: dict[str, Any], pairs: Path, joey: Joey, *, quick: bool) -> Iterator[kept.Row]:
    """A row for each peer that is here."""
    warm, counted, rounds = (2, 5, 1) if quick else (20, 100, 3)
    trainer, joeynmt = PEERS
    sides: dict[str, Callable[[], Any]] = {
        "ours": partial(apart, ours, settings, pairs, warm, counted),
        trainer: partial(apart, theirs, settings, pairs, warm, counted),
    }
    if installed():
        sides[joeynmt] = partial(joey.learn, warm=warm, steps=counted)
    rates: dict[str, list[float]] = {name: [] for name in sides}
    fills = {"ours": 1.0}
    for _ in range(rounds):
        for name, call in sides.items():
            answer = call()
            rate, fills[name] = answer if isinstance(answer, tuple) else (answer, None)
            rates[name].append(rate)
    step = f"{joey.config.train.batch_size} pairs a step"
    numbers = "bf16" if bf16_here() else "fp32"
    for name, target in PEERS.items():
        if name in sides:
            how = f"{numbers} autocast" if name == trainer and bf16_here() else "fp32"
            yield kept.row(
                WHAT, median(rates["ours"]), median(rates[name]), peer_name=name,
                unit="tokens/s", target=target, better="higher",
                how=(
                    kept.How(f"{numbers}, {step}", 1.0),
                    kept.How(f"{how}, {step}", fills[name]),
                ),
            )  # fmt: skip


def samples(config: PretrainConfig, pairs: Pairs) -> PairSamples:
    tokenizer = pairs.tokenizer()
    start = getattr(tokenizer, FAMILIES[config.family].start)
    return PairSamples(
        pairs, tokenizer, start=start, length=config.sampling.length, seed=config.train.seed
    )


def ours(settings: dict[str, Any], folder: Path, warm: int, counted: int) -> tuple[float, float]:
    """Target tokens/s of the recipe's steps: draw, pack, learn, beside the next one's drawing."""
    pairs = Pairs.open(folder)
    config = read_config(settings, pairs.tokenizer())
    train, source = config.train, samples(config, pairs)
    torch.manual_seed(0)
    model = build(config.model, heads_of(config), decoder=config.decoder)
    masters = Masters(model, resolve(train.precision, "cpu"))
    tokens: list[int] = []

    def group(number: int) -> list[Batch]:
        drawn = source.batch(*train.samples(number))
        tokens.append(sum(len(pair.labels) for pair in drawn))
        return collate(drawn, head="lm", max_batch_tokens=train.max_batch_tokens)

    with prefetched(group, range(warm + counted)) as each:
        learning = steps(
            masters,
            partial(next_words, smoothing=train.label_smoothing),
            each,
            adamw(
                masters.weights,
                learning_rate=train.learning_rate,
                weight_decay=train.weight_decay,
                betas=train.betas,
            ),
            schedule("linear", steps=train.steps, warmup_steps=train.warmup_steps, decay_steps=0),
            max_grad_norm=train.max_grad_norm,
            seed=train.seed,
        )
        for _ in islice(learning, warm):
            pass
        start = time.perf_counter()
        for _ in learning:
            pass
        took = time.perf_counter() - start
    return sum(tokens[warm:]) / took, 1.0


def theirs(settings: dict[str, Any], folder: Path, warm: int, counted: int) -> tuple[float, float]:
    """Target tokens/s of `Trainer`, and the share of the sources it reads that is no padding."""
    import transformers

    began: list[tuple[float, int]] = []
    """When each step begins, and its target tokens."""

    class Learner(transformers.Trainer):
        def training_step(self, model: Any, inputs: Any, *rest: Any) -> Any:
            began.append((time.perf_counter(), int((inputs["labels"] != -100).sum())))
            return super().training_step(model, inputs, *rest)

    transformers.utils.logging.set_verbosity_error()
    pairs = Pairs.open(folder)
    config = read_config(settings, pairs.tokenizer())
    drawn = samples(config, pairs)
    torch.manual_seed(0)
    shape = FAMILIES["marian"].write_config(config.model, config.decoder)
    model = transformers.MarianMTModel(transformers.MarianConfig(**shape))
    collator = Padding(partial(padded, pad=pairs.tokenizer().pad))
    with TemporaryDirectory() as place:
        learner = Learner(
            model=model,
            args=arguments(config.train, place, warm + counted),
            data_collator=collator,
            train_dataset=Rows([row(drawn.sample(0, i)) for i in range(len(drawn))]),
        )
        learner.remove_callback(transformers.PrinterCallback)
        learner.train()
        took = time.perf_counter() - began[warm][0]
    return sum(tokens for _, tokens in began[warm:]) / took, collator.fill()


def arguments(train: Train, place: str, count: int) -> Any:
    """Those of `Trainer` that mean what ours do."""
    import transformers

    return transformers.TrainingArguments(
        output_dir=place,
        max_steps=count,
        per_device_train_batch_size=train.batch_size,
        learning_rate=train.learning_rate,
        warmup_steps=train.warmup_steps,
        adam_beta1=train.betas[0],
        adam_beta2=train.betas[1],
        weight_decay=train.weight_decay,
        max_grad_norm=train.max_grad_norm,
        label_smoothing_factor=train.label_smoothing,
        train_sampling_strategy="group_by_length",
        bf16=bf16_here(),
        seed=train.seed,
        use_cpu=True,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
    )


def row(pair: Pair) -> dict[str, Any]:
    return {"input_ids": pair.source, "decoder_input_ids": pair.ids, "labels": pair.labels}


def padded(rows: Sequence[dict[str, Any]], *, pad: int) -> dict[str, torch.Tensor]:
    """A batch of `Trainer`: no loss where a label is -100."""

    def filled(name: str, value: int) -> torch.Tensor:
        each = [torch.from_numpy(row[name]) for row in rows]
        return torch.nn.utils.rnn.pad_sequence(each, batch_first=True, padding_value=value)

    ids = filled("input_ids", pad)
    lengths = torch.tensor([len(row["input_ids"]) for row in rows])
    return {
        "input_ids": ids,
        "attention_mask": (torch.arange(ids.shape[1]) < lengths[:, None]).long(),
        "decoder_input_ids": filled("decoder_input_ids", pad),
        "labels": filled("labels", -100),
    }
