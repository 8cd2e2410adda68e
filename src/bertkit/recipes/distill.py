"""Teach a small model what a fine-tuned one does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bertkit.checkpoint.folder import Loaded, load
from bertkit.config import plain
from bertkit.engine.engine import Engine
from bertkit.engine.linear import packed
from bertkit.errors import ConfigError
from bertkit.models.layers import keep_layers
from bertkit.models.model import Model
from bertkit.nn.pool import Pool
from bertkit.nn.precision import resolve, resolve_device
from bertkit.objectives.distill import Distillation, Terms, usual_layers
from bertkit.pipelines import answering
from bertkit.recipes.finetune import Finetune, Rows, finetune, finetune_seeds
from bertkit.tasks.task import Feature, Reading, Task


def distill(
    teacher: str | Path,
    *,
    train: Rows,
    dev: Rows,
    out: Path | str,
    student: str | Path | None = None,
    layers: int | None = None,
    follow: Sequence[int] = (),
    task: str | type[Task[Any, Any]] | None = None,
    settings: Finetune | None = None,
    terms: Terms | None = None,
    reading: Reading | None = None,
    seeds: int = 1,
    resume: bool = False,
) -> dict[str, Any]:
    """Fine-tune a student under a teacher, and return its dev scores as `finetune` does.

    The student is a model folder, or as many `layers` of the teacher, evenly taken, with its
    embedding and its head. `follow` names, for each of the student's layers, the teacher's that
    it is to be like, from 1; evenly by default. The task is the teacher's.
    Raises: ConfigError for a student that cannot follow its teacher, before work.
    """
    settings, terms = settings or Finetune(), terms or Terms()
    if (student is None) == (layers is None):
        raise ConfigError("student: name a model folder, or say how many layers of the teacher")
    if layers is not None and layers < 1:
        raise ConfigError(f"layers: {layers}; a student keeps one of its teacher's at least")
    asked = answering(teacher, task)
    taught, ready = asked.loaded, asked.task
    model: str | Path | Loaded
    if layers is not None:
        kept = usual_layers(layers, taught.model.config.layers)
        model = replace(taught, model=keep_layers(taught.model, kept))
    else:
        assert student is not None
        model = student
        if load(student).tokenizer.fingerprint != taught.tokenizer.fingerprint:
            raise ConfigError(
                f"student: {student} has another vocabulary than {teacher}; what a teacher says "
                "of tokens needs one vocabulary: pretrain the student with the teacher's"
            )
    device = resolve_device(settings.device)
    dtype = resolve(settings.precision, device)
    knowing = packed(taught.model.to(device), dtype)

    def teach(own: Task[Any, Any], network: Model, features: list[Feature]) -> Distillation:
        if own.labels != ready.labels:
            raise ConfigError(
                f"train: its labels are {', '.join(own.labels)}, the teacher answers "
                f"{', '.join(ready.labels)}; a student learns the same ones"
            )
        widths = [_width(one, own.head) for one in (network, knowing)]
        if terms.outputs and len(set(widths)) > 1:
            raise ConfigError(
                f"outputs: the student's vectors have {widths[0]} numbers and its teacher's "
                f"{widths[1]}; give the student such a layer (dense), or set outputs to 0"
            )
        if terms.outputs and not (terms.states or terms.attention or terms.relations):
            # what it answers is the same in every epoch; of states there would be too much to keep
            engine = Engine(knowing, precision=None, budget_tokens=settings.budget_tokens)
            said = own.run(engine, features)
            features[:] = [
                replace(f, teacher_outputs=rows) for f, rows in zip(features, said, strict=True)
            ]
        return Distillation(
            own.loss_of,
            teacher=knowing,
            student=network,
            head=own.head,
            terms=terms,
            layers=follow,
            single_label=own.single_label,
        )

    rest: dict[str, Any] = {
        "train": train,
        "dev": dev,
        "out": out,
        "settings": settings,
        "options": ready.uncalibrated(),
        "reading": reading,
        "resume": resume,
        "teach": teach,
        "more": {
            "teacher": str(teacher),
            "layers": layers,
            "follow": list(follow),
            "terms": plain(terms),
        },
    }
    if seeds == 1:
        return finetune(type(ready), model, **rest)
    return finetune_seeds(seeds, type(ready), model, **rest)


def _width(model: Model, head: str) -> int | None:
    """How many numbers a vector has, where the head makes vectors."""
    pool = model.heads[head]
    return pool.pooling.width(model.config.hidden) if isinstance(pool, Pool) else None
