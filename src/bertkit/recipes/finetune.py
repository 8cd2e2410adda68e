"""Fine-tune a model on labelled texts or pairs, keep its best epoch, and score it."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from msgspec import Meta

from bertkit.batch import Batch
from bertkit.checkpoint.folder import Loaded, load, save
from bertkit.config import Settings, plain
from bertkit.data.collate import cut_by_tokens
from bertkit.data.order import Permutation
from bertkit.data.tables import rows
from bertkit.engine.engine import pack
from bertkit.errors import BertkitError, ConfigError, DataError
from bertkit.models.config import Count, Rate
from bertkit.nn.precision import Precision, resolve
from bertkit.recipes.console import progress, say
from bertkit.storage import write_json
from bertkit.tasks.classify import Classify, Example, choose_columns, examples
from bertkit.text.tokenizer import Encoding
from bertkit.training.journal import Journal
from bertkit.training.loop import steps
from bertkit.training.masters import Masters
from bertkit.training.optim import adamw
from bertkit.training.schedule import schedule

SCORES = "scores.json"


class Finetune(Settings, frozen=True):
    """Defaults that work for most tasks of the BERT paper (appendix A.3)."""

    epochs: Count = 3
    batch_size: Count = 32
    learning_rate: Annotated[float, Meta(gt=0.0)] = 5e-5
    warmup: Rate = 0.1
    """Share of the steps."""
    weight_decay: Annotated[float, Meta(ge=0.0)] = 0.01
    clip: Annotated[float, Meta(gt=0.0)] = 1.0
    seed: Annotated[int, Meta(ge=0, lt=2**31)] = 0
    length: Count | None = None
    """Longest sequence in tokens; the model's own by default. Longer texts are cut, and said."""
    budget_tokens: Count = 8192
    precision: Precision = "auto"


def read_examples(
    path: Path,
    *,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    header: bool | None = None,
    labelled: bool = True,
) -> list[Example]:
    """The examples of a TSV, CSV or JSONL file; what was guessed is said.

    Raises: DataError as `rows` and `choose_columns` do.
    """
    table = rows(path, header=header)
    columns = choose_columns(table, text=text, pair=pair, label=label, labelled=labelled)
    say(f"{table.said}; {len(table.rows):,} rows; {columns}")
    return examples(table, columns)


def finetune(
    model: str | Path | Loaded,
    *,
    train: Sequence[Example],
    dev: Sequence[Example],
    out: Path,
    settings: Finetune | None = None,
    regression: bool | None = None,
    names: tuple[str, str] = ("train", "dev"),
) -> dict[str, float]:
    """Fit the `classify` task and return the dev scores of the best epoch, which `out` holds.

    `names` are the files, for error messages.
    Raises: ConfigError when `out` is in use, DataError for labels that do not fit, before work.
    """
    settings = settings or Finetune()
    for rows_of, name in ((train, names[0]), (dev, names[1])):
        if not rows_of:
            raise DataError(f"{name}: no rows")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out}: exists already; choose another --out, or remove it first")
    task = Classify.of(train, regression=regression)
    train_targets = [task.target(example, names[0]) for example in train]
    for example in dev:
        task.target(example, names[1])
    if (train[0].pair is None) != (dev[0].pair is None):
        have, lack = names if dev[0].pair is None else names[::-1]
        raise DataError(
            f"{have} has pairs and {lack} has not; name the columns with --text, --pair"
        )
    torch.manual_seed(settings.seed)
    loaded = (
        load(model, heads=("classify",), labels=task.labels)
        if not isinstance(model, Loaded)
        else model
    )
    if loaded.labels != task.labels:
        raise DataError(
            f"{loaded.folder}: opened for the labels {', '.join(loaded.labels) or 'none'}, but "
            f"{names[0]} has {', '.join(task.labels)}; give the folder's name instead"
        )
    longest = loaded.model.config.length
    if settings.length is not None and settings.length > longest:
        raise ConfigError(f"length: {settings.length} is longer than the model's {longest} tokens")
    network = copy.deepcopy(loaded.model)
    dtype = resolve(settings.precision, next(network.parameters()).device.type)
    masters = Masters(network, dtype)
    length = settings.length or loaded.length
    learn = _encode(loaded, train, length, names[0])
    check = _encode(loaded, dev, length, names[1])
    say(
        f"labels: {', '.join(task.labels)}"
        if not task.regression
        else "a regression: one number for each row"
    )

    per_epoch = -(-len(train) // settings.batch_size)
    total = per_epoch * settings.epochs
    optimizer = adamw(
        masters.weights,
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
    )
    plan = schedule(
        "linear", steps=total, warmup_steps=round(settings.warmup * total), decay_steps=0
    )
    out.mkdir(parents=True, exist_ok=True)
    journal = Journal(out)
    best: dict[str, float] = {}
    groups = _groups(task, learn, train_targets, settings)
    try:
        with progress() as bar:
            bar_task = bar.add_task("fine-tuning", total=total, note="")
            for step in steps(
                masters,
                task.loss,
                groups,
                optimizer,
                plan,
                clip=settings.clip,
                seed=settings.seed,
            ):
                bar.update(bar_task, completed=step.number, note=f"loss {step.loss:.3f}")
                journal.write({"step": step.number, "loss": step.loss})
                if step.number % per_epoch == 0:
                    epoch = step.number // per_epoch
                    scores = task.score(_outputs(task, masters, check, settings.budget_tokens), dev)
                    journal.write({"step": step.number, "epoch": epoch, "scores": scores})
                    say(f"epoch {epoch}: " + "  ".join(f"{k} {v:.4f}" for k, v in scores.items()))
                    if not best or _main(scores) > _main(best):
                        save(
                            out,
                            network,
                            loaded.tokenizer,
                            loaded.family,
                            labels=task.labels,
                            weights=masters.weights,
                        )
                        best = {**scores, "epoch": epoch}
    except BaseException as error:
        if not best:  # nothing of use is there yet
            shutil.rmtree(out, ignore_errors=True)
        elif isinstance(error, BertkitError):
            raise type(error)(f"{error}; {out} holds epoch {best['epoch']:.0f}, the best") from None
        raise
    write_json(
        out / SCORES,
        {"dev": best, "settings": plain(settings), "rows": {"train": len(train), "dev": len(dev)}},
    )
    return best


def _main(scores: dict[str, float]) -> float:
    """The score an epoch is chosen by: accuracy, or Pearson's correlation."""
    return scores.get("accuracy", scores.get("pearson", 0.0))


def _encode(loaded: Loaded, rows: Sequence[Example], length: int, name: str) -> list[Encoding]:
    pairs = [row.pair or "" for row in rows] if rows[0].pair is not None else None
    encodings = loaded.tokenizer.encode_batch(
        [row.text for row in rows], pairs, max_length=length, truncate="longest"
    )
    cut = sum(encoding.truncated for encoding in encodings)
    if cut:
        say(f"{name}: {cut:,} of {len(rows):,} rows are longer than {length} tokens and were cut")
    return encodings


def _groups(
    task: Classify, encodings: Sequence[Encoding], targets: Sequence[Any], settings: Finetune
) -> Iterator[list[Batch]]:
    """The batches of every step; the order depends on (seed, epoch) alone."""
    for epoch in range(settings.epochs):
        order = Permutation(len(encodings), settings.seed, epoch)(np.arange(len(encodings)))
        for start in range(0, len(order), settings.batch_size):
            places = sorted(
                order[start : start + settings.batch_size].tolist(),
                key=lambda place: len(encodings[place]),
            )
            yield [
                _batch(task, [encodings[p] for p in group], [targets[p] for p in group])
                for group in _cut(places, encodings, settings.budget_tokens)
            ]


def _cut(
    places: list[int], encodings: Sequence[Encoding], budget_tokens: int
) -> Iterator[list[int]]:
    for group in cut_by_tokens([len(encodings[p]) for p in places], budget_tokens):
        yield places[group]


def _batch(task: Classify, encodings: Sequence[Encoding], targets: Sequence[Any]) -> Batch:
    batch = pack(encodings)
    return Batch(batch.ids, batch.types, batch.layout, targets={"classify": task.targets(targets)})


@torch.no_grad()
def _outputs(
    task: Classify, masters: Masters, encodings: Sequence[Encoding], budget_tokens: int
) -> torch.Tensor:
    """The head's outputs for dev rows, in their order. Shapes: (S, L)."""
    model = masters.model.eval()
    device = next(model.parameters()).device
    places = sorted(range(len(encodings)), key=lambda place: len(encodings[place]))
    found = torch.empty(len(encodings), len(task.labels))
    for group in _cut(places, encodings, budget_tokens):
        batch = pack([encodings[place] for place in group]).to(device)
        found[group] = model(batch)["classify"].float().cpu()
    return found
