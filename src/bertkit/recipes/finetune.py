"""Fine-tune a model on labelled examples of any task, keep its best epoch, and score it."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from msgspec import Meta

from bertkit import tasks
from bertkit.batch import Batch, by_length
from bertkit.checkpoint import hub
from bertkit.checkpoint.folder import Loaded, load, save
from bertkit.checkpoint.pooling import read_pooling
from bertkit.config import Count, Rate, Seed, Settings, decode, plain
from bertkit.console import progress, say
from bertkit.data.order import Permutation
from bertkit.engine.engine import Engine
from bertkit.errors import BertkitError, CheckpointError, ConfigError, DataError
from bertkit.metrics import spread
from bertkit.models.model import Model
from bertkit.nn.precision import Precision, resolve, resolve_device
from bertkit.objectives.loss import Objective
from bertkit.recipes.card import write_card
from bertkit.recipes.mistakes import write_mistakes
from bertkit.storage import (
    link_or_copy,
    read_json,
    refuse_used,
    sha256,
    sweep,
    used,
    write_json,
    writing,
)
from bertkit.tasks.task import Feature, Reading, Task, group
from bertkit.training.interrupt import Interrupt
from bertkit.training.journal import RUN, Journal, left_out
from bertkit.training.loop import steps
from bertkit.training.masters import Masters
from bertkit.training.optim import adamw
from bertkit.training.schedule import schedule
from bertkit.training.state import FOLDER, recover, restore, save_checkpoint

SCORES, SEEDS = "scores.json", "seeds.json"

BEST = "best_"
"""Begins the names of scores on rows to which the task was tuned: the best that it can have there.
So does SQuAD's script (`best_f1`)."""


class Finetune(Settings, frozen=True):
    """Defaults that work for most tasks of the BERT paper (appendix A.3)."""

    epochs: Count = 3
    batch_size: Count = 32
    """Examples a step (windows, where a task reads long texts in windows)."""
    learning_rate: Annotated[float, Meta(gt=0.0)] = 5e-5
    warmup: Rate = 0.1
    """Share of the steps."""
    weight_decay: Annotated[float, Meta(ge=0.0)] = 0.01
    layer_decay: Annotated[float, Meta(gt=0.0, le=1.0)] = 1.0
    """How much slower each layer learns than the one above it; 1 is no slower."""
    frozen_layers: Annotated[int, Meta(ge=0)] = 0
    """Layers from the bottom that do not learn, and the embeddings with them."""
    clip: Annotated[float, Meta(gt=0.0)] = 1.0
    """Largest norm of the gradient."""
    patience: Count | None = None
    """Stop after as many epochs without a better dev score."""
    seed: Seed = 0
    length: Count | None = None
    """Longest sequence in tokens; the model's own by default."""
    budget_tokens: Count = 8192
    """Tokens that go through the model at a time."""
    precision: Precision = "auto"
    device: str = "auto"
    save_minutes: Annotated[float, Meta(ge=0.0)] = 5.0
    """Minutes between the checkpoints that --resume goes on from."""


FREE = ("save_minutes", "budget_tokens")
"""Settings that may differ when a run is resumed."""


@dataclass(frozen=True)
class Data:
    """Labelled examples, and by what a run knows them again."""

    examples: Sequence[Any]
    file: str | None
    sha256: str


Rows = Path | str | Sequence[Any] | Data
"""A labelled file, or its examples."""


def read_examples(
    task: type[Task[Any, Any]],
    path: Path | str,
    reading: Reading | None = None,
    *,
    labelled: bool = True,
) -> list[Any]:
    """The examples of a file; how it was read is said. Raises: DataError naming file and line."""
    found, said = task.read(Path(path), reading or Reading(), labelled=labelled)
    say(said)
    if not found:
        raise DataError(f"{path}: no rows")
    return found


Teach = Callable[[Task[Any, Any], Model, list[Feature]], Objective]
"""What makes the objective of a student, from its task and itself; to its training features it may
add what is taught of them."""


def finetune(
    task: str | type[Task[Any, Any]],
    model: str | Path | Loaded,
    *,
    train: Rows,
    dev: Rows,
    out: Path | str,
    settings: Finetune | None = None,
    options: Settings | Mapping[str, Any] | None = None,
    reading: Reading | None = None,
    resume: bool = False,
    teach: Teach | None = None,
    more: Mapping[str, Any] | None = None,
) -> dict[str, float]:
    """Fit a task and return the dev scores of the best epoch, whose weights `out` holds.

    Where dev taught the task something, such as a threshold, their names begin with `best_`.
    `task` is a name, module:Class, or a class; `options` are the task's own; `train` and `dev`
    files, or examples. A model that is open already stays as it is. `teach` makes another
    objective than the task's, and `more` is what `run.json` says of it. The same command with
    `resume` goes on after a kill, to the same weights.
    Raises: ConfigError when `out` is in use, DataError for examples that do not fit, before work.
    """
    settings, out = settings or Finetune(), Path(out)
    kind = tasks.find(task) if isinstance(task, str) else task
    if options is None or isinstance(options, Mapping):
        options = decode(kind.Options, dict(options or {}))
    _refuse_used(out, resume)
    device = resolve_device(settings.device)
    dtype = resolve(settings.precision, device)
    train, dev = _data(kind, train, reading, "train"), _data(kind, dev, reading, "dev")
    learn, check = train.examples, dev.examples
    ready = kind.from_examples(learn, options)
    ready.check(learn)
    ready.check(check)
    held = model.pooling if isinstance(model, Loaded) else read_pooling(hub.resolve(model))[0]
    ready = ready.with_pooling(held)
    record = {
        "task": ready.settings()["bertkit"]["task"],
        "model": str(model.folder if isinstance(model, Loaded) else model),
        **(more or {}),
        "settings": plain(settings),
        "reading": plain(reading or Reading()),
        "data": {
            name: {"file": d.file, "rows": len(d.examples), "sha256": d.sha256}
            for name, d in (("train", train), ("dev", dev))
        },
    }
    if resume:
        _check_resumed(out, record)
        if (out / SCORES).exists():
            say(f"{out}: this run is finished")
            ended = _read(out / SCORES)
            _check_published(out, ended.get("sha256", {}))
            finished: dict[str, float] = ended["dev"]
            return finished
    torch.manual_seed(settings.seed)
    if isinstance(model, Loaded):
        loaded = replace(model, model=copy.deepcopy(model.model))
    else:
        loaded = load(model, heads={ready.head: ready.build_head}, labels=ready.labels)
    network = loaded.model.to(device)
    student = Model(network.encoder, {ready.head: network.heads[ready.head]})
    length = _length(settings, loaded.length, network.config.length)
    frozen = _freeze(network, settings.frozen_layers)
    policy = ready.long_of_files()
    features = {
        name: ready.features(rows, loaded.tokenizer, length, long=policy, labelled=name == "train")
        for name, rows in (("train", learn), ("dev", check))
    }
    for name, rows in features.items():
        cut = len({f.example for f in rows if f.encoding.truncated}) if policy == "truncate" else 0
        if cut:
            say(f"{name}: {cut:,} examples are longer than {length} tokens and were cut")
    say(_told(ready, features["train"], learn))
    loss = ready.loss if teach is None else teach(ready, network, features["train"])
    network.to(device)  # with what the objective added

    units = (
        [[f] for f in features["train"]]
        if ready.batching == "sequence"
        else group(features["train"])
    )
    per_epoch = math.ceil(len(units) / settings.batch_size)
    total = per_epoch * settings.epochs
    masters = Masters(network, dtype)
    optimizer = adamw(
        {name: w for name, w in masters.weights.items() if name not in frozen},
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
        layer_decay=settings.layer_decay,
    )
    plan = schedule(
        "linear", steps=total, warmup_steps=round(settings.warmup * total), decay_steps=0
    )
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / RUN, record)
    journal, start = Journal(out), 0
    if resume:
        folder, damaged = recover(out)
        for sentence in damaged:
            say(sentence)
        start = restore(folder, masters, optimizer, loaded.family) if folder else 0
        say(f"going on after step {start} of {total}")
    if damaged_lines := journal.rewind(start):
        say(left_out(journal.path, damaged_lines))
    scored = (r for r in journal.records() if "epoch" in r and "scores" in r)
    epochs = [r for r in scored if _metric(ready, r["scores"]) in r["scores"]]
    best = max(epochs, key=lambda r: _chosen_by(ready, r), default=None)
    saved = time.monotonic()
    answers: Sequence[Any] | None = None

    try:
        with progress() as bar, Interrupt() as interrupt:
            shown = bar.add_task("fine-tuning", total=total, completed=start, note="")
            for step in steps(
                masters,
                loss,
                _groups(ready, units, settings, start),
                optimizer,
                plan,
                clip=settings.clip,
                seed=settings.seed,
                start=start,
            ):
                bar.update(shown, completed=step.number, note=f"loss {step.loss:.3f}")
                journal.write({"step": step.number, "loss": step.loss})
                if step.number % per_epoch == 0:
                    tuned, given = _asked(ready, masters.whole(), features["dev"], check, settings)
                    scores = tuned.score(given, check)
                    if tuned is not ready:
                        scores = {BEST + name: score for name, score in scores.items()}
                    epoch: dict[str, Any] = {
                        "step": step.number,
                        "epoch": step.number // per_epoch,
                        "scores": scores,
                    }
                    epochs.append(epoch)
                    say(f"epoch {epoch['epoch']}: {_written(scores)}")
                    if best is None or _chosen_by(ready, epoch) > _chosen_by(ready, best):
                        save(
                            out,
                            student,
                            loaded.tokenizer,
                            loaded.family,
                            labels=tuned.labels,
                            settings=tuned.settings(),
                            length=length,
                            weights={n: masters.weights[n] for n, _ in student.named_parameters()},
                        )
                        epoch["sha256"] = _published(out)
                        best, answers = epoch, given
                    journal.write(epoch)
                    waited = epoch["epoch"] - best["epoch"]
                    if settings.patience is not None and waited >= settings.patience:
                        say(f"no better for {waited} epochs: stopped")
                        break
                due = time.monotonic() - saved >= 60 * settings.save_minutes
                if (due or interrupt.asked) and step.number < total:
                    save_checkpoint(out, step.number, masters, optimizer, loaded.family, keep=1)
                    saved = time.monotonic()
                if interrupt.asked and step.number < total:
                    raise KeyboardInterrupt(
                        f"stopped after step {step.number}, which is saved; go on with --resume"
                    )
    except BaseException as error:
        if best is None and not (out / FOLDER).exists():  # nothing of use is there yet
            shutil.rmtree(out, ignore_errors=True)
        elif isinstance(error, BertkitError):
            kept = f"{out} holds epoch {best['epoch']}, the best" if best else f"go on in {out}"
            raise type(error)(f"{error}; {kept}") from None
        raise
    assert best is not None
    if answers is None:  # the best epoch was before the resumption
        _check_published(out, best.get("sha256", {}))
        again = load(out, heads={ready.head: ready.build_head}, labels=ready.labels)
        tuned = kind.restore(ready.labels, again.settings)
        _, answers = _asked(tuned, again.model, features["dev"], check, settings)
    scores = _finish(out, ready, record, epochs, best, answers, check)
    shutil.rmtree(out / FOLDER, ignore_errors=True)
    return scores


def finetune_seeds(
    count: int,
    task: str | type[Task[Any, Any]],
    model: str | Path | Loaded,
    *,
    train: Rows,
    dev: Rows,
    out: Path | str,
    settings: Finetune | None = None,
    reading: Reading | None = None,
    resume: bool = False,
    **rest: Any,
) -> dict[str, dict[str, Any]]:
    """`finetune` with `count` seeds from settings.seed on: mean, sd and each of every score.

    Each run is a folder seed-N in `out`; `out` itself becomes the model of the best.
    """
    settings, out = settings or Finetune(), Path(out)
    if count < 1:
        raise ConfigError(f"seeds: {count}; run one at least")
    _refuse_used(out, resume)
    kind = tasks.find(task) if isinstance(task, str) else task
    train, dev = _data(kind, train, reading, "train"), _data(kind, dev, reading, "dev")
    runs = {}
    for seed in range(settings.seed, settings.seed + count):
        say(f"seed {seed}")
        run = out / f"seed-{seed}"
        one = decode(Finetune, {**plain(settings), "seed": seed})
        going = resume and (run / RUN).exists()
        runs[run] = finetune(
            kind,
            model,
            train=train,
            dev=dev,
            out=run,
            settings=one,
            reading=reading,
            resume=going,
            **rest,
        )
    metric = _read(next(iter(runs)) / SCORES)["metric"]
    best = max(runs, key=lambda run: runs[run][metric])
    for file in (file for file in best.rglob("*") if file.is_file()):
        place = out / file.relative_to(best)
        place.parent.mkdir(exist_ok=True)
        with writing(place) as partial:
            link_or_copy(file, partial)
    summary = {name: spread([scores[name] for scores in runs.values()]) for name in runs[best]}
    write_json(out / SEEDS, {"best": best.name, "scores": summary})
    write_card(out, _read(out / SCORES), summary)
    return summary


def _finish(
    out: Path,
    task: Task[Any, Any],
    record: dict[str, Any],
    epochs: list[dict[str, Any]],
    best: dict[str, Any],
    answers: Sequence[Any],
    dev: Sequence[Any],
) -> dict[str, float]:
    """What stands in the folder beside the model: scores, errors and the card."""
    scores = {**best["scores"], "epoch": best["epoch"]}
    kept = {
        **record,
        "metric": _metric(task, scores),
        "dev": scores,
        "epochs": [{"epoch": e["epoch"], **e["scores"]} for e in epochs],
        "sha256": best.get("sha256", {}),
    }
    kept["digest"] = _digest(kept)
    write_mistakes(out, task, answers, dev)
    write_json(out / SCORES, kept)
    write_card(out, kept)
    return scores


def _metric(task: Task[Any, Any], scores: Mapping[str, float]) -> str:
    return task.metric if task.metric in scores else BEST + task.metric


def _chosen_by(task: Task[Any, Any], epoch: Mapping[str, Any]) -> float:
    score: float = epoch["scores"][_metric(task, epoch["scores"])]
    return score


def _asked(
    task: Task[Any, Any],
    model: Model,
    features: Sequence[Feature],
    dev: Sequence[Any],
    settings: Finetune,
) -> tuple[Task[Any, Any], Sequence[Any]]:
    """The task with what dev teaches it, and its answers to the dev examples, in fp32."""
    engine = Engine(model, budget_tokens=settings.budget_tokens)
    outputs, head = task.run(engine, features), engine.model.heads[task.head]
    answers = task.answers(outputs, features, dev, head)
    tuned = task.calibrated(answers, dev)
    if tuned is not task:
        answers = tuned.answers(outputs, features, dev, head)
    return tuned, answers


def _read(path: Path) -> dict[str, Any]:
    """Scores that were written. Raises: CheckpointError when they are damaged."""
    remedy = "start over in another --out"
    found: dict[str, Any] = read_json(path, CheckpointError, remedy)
    whole = found.get("digest") in (None, _digest(found)) if isinstance(found, dict) else False
    match found:
        case {"metric": str(name), "dev": {**scores}} if whole and name in scores:
            return found
    raise CheckpointError(f"{path}: damaged; {remedy}")


def _digest(kept: Mapping[str, Any]) -> str:
    """A hash of all that scores.json says beside it."""
    rest = {name: value for name, value in kept.items() if name != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _published(out: Path) -> dict[str, str]:
    """The hashes of the model's files, by their places in a run's folder."""
    own = {out / name for name in (RUN, SCORES, SEEDS)}
    return {
        path.relative_to(out).as_posix(): sha256(path)
        for path in sorted(out.rglob("*"))
        if path.suffix in (".json", ".txt", ".safetensors")
        if path not in own and out / FOLDER not in path.parents
    }


def _check_published(out: Path, hashes: Mapping[str, str]) -> None:
    """Raises: CheckpointError for a file of the model that is not as its epoch wrote it."""
    for name, hashed in hashes.items():
        if not (out / name).is_file() or sha256(out / name) != hashed:
            raise CheckpointError(
                f"{out / name}: damaged, or changed since; run again in another --out"
            )


def _data(kind: type[Task[Any, Any]], rows: Rows, reading: Reading | None, name: str) -> Data:
    if isinstance(rows, Data):
        return rows
    if isinstance(rows, str | Path):
        found = read_examples(kind, rows, reading)
        return Data(found, str(rows), sha256(Path(rows)))
    if not rows:
        raise DataError(f"{name}: no rows")
    text = "\n".join(map(repr, rows)).encode("utf-8", "surrogatepass")
    return Data(rows, None, hashlib.sha256(text).hexdigest())


def _refuse_used(out: Path, resume: bool) -> None:
    if out.is_dir():
        sweep(out)
    if not resume:
        refuse_used(out, resumable=True)
    elif not used(out):
        raise ConfigError(f"{out}: no run to resume here; leave out --resume")


def _check_resumed(out: Path, record: Mapping[str, Any]) -> None:
    """Raises: ConfigError when `out` holds no run, a damaged one or another."""
    try:
        before = _compared(read_json(out / RUN, ConfigError, "start over in another --out"))
    except FileNotFoundError:
        raise ConfigError(f"{out}: no run to resume here; leave out --resume") from None
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{out / RUN}: damaged ({error}); start over in another --out") from None
    changed = [key for key, value in _compared(record).items() if before.get(key) != value]
    if changed:
        raise ConfigError(
            f"{out}: {', '.join(changed)} differ from what this run began with; resume with the "
            "same, or start another run"
        )


def _compared(record: Mapping[str, Any]) -> dict[str, Any]:
    """What must be the same when a run is resumed; files may have moved."""
    settings = {key: value for key, value in record["settings"].items() if key not in FREE}
    return {**record, "settings": settings, "data": [d["sha256"] for d in record["data"].values()]}


def _length(settings: Finetune, usual: int, longest: int) -> int:
    if settings.length is not None and settings.length > longest:
        raise ConfigError(f"length: {settings.length} is longer than the model's {longest} tokens")
    return settings.length or usual


def _freeze(model: Model, layers: int) -> set[str]:
    """Stop the lowest layers from learning; returns the names of their weights."""
    if layers > model.config.layers:
        raise ConfigError(f"frozen_layers: {layers}; the model has {model.config.layers} layers")
    if layers == 0:
        return set()
    if len(set(model.config.depths)) < model.config.layers:
        raise ConfigError(
            f"frozen_layers: {layers}; the model's layers share their weights, so that none "
            "can be frozen alone; leave it out"
        )
    still = ("encoder.embedding.", *(f"encoder.blocks.{i}." for i in range(layers)))
    frozen = {name for name, _ in model.named_parameters() if name.startswith(still)}
    for name, weight in model.named_parameters():
        weight.requires_grad_(name not in frozen)
    return frozen


def _told(task: Task[Any, Any], features: Sequence[Feature], examples: Sequence[Any]) -> str:
    labels = f"; labels: {', '.join(task.labels)}" if task.labels else ""
    more = f" in {len(features):,} sequences" if len(features) != len(examples) else ""
    return f"{task.name}: {len(examples):,} examples{more}{labels}"


def _written(scores: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:.4f}" for name, value in scores.items())


def _groups(
    task: Task[Any, Any], units: Sequence[list[Feature]], settings: Finetune, start: int
) -> Iterator[list[Batch]]:
    """The batches of every step after `start`; the order depends on (seed, epoch) alone.

    A unit is what must be learned from together: the choices of a question, else one sequence.
    """
    lengths = [sum(len(f.encoding) for f in unit) for unit in units]
    per_epoch = math.ceil(len(units) / settings.batch_size)
    order = np.empty(0, dtype=np.int64)
    for step in range(start, per_epoch * settings.epochs):
        epoch, number = divmod(step, per_epoch)
        if number == 0 or step == start:
            order = Permutation(len(units), settings.seed, epoch)(np.arange(len(units)))
        drawn = order[number * settings.batch_size : (number + 1) * settings.batch_size].tolist()
        sizes = [lengths[place] for place in drawn]
        budget = sum(sizes) if task.batching == "step" else settings.budget_tokens
        yield [
            task.batch([feature for place in places for feature in units[drawn[place]]])
            for places in by_length(sizes, budget)
        ]
