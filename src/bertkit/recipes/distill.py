"""Teach a small model what a fine-tuned one does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bertkit.checkpoint.directory import Loaded, load
from bertkit.config import Count, plain
from bertkit.engine.packed_linear import packed
from bertkit.errors import ConfigError
from bertkit.models.surgery import keep_layers
from bertkit.nn.precision import resolve, resolve_device
from bertkit.objectives.distill import Terms, usual_layers
from bertkit.pipelines import answering
from bertkit.recipes.finetune import Finetune, finetune
from bertkit.recipes.seeds import finetune_seeds
from bertkit.synonyms import check_keywords
from bertkit.tasks.examples import RowsLike
from bertkit.tasks.task import Reading, Task
from bertkit.training.teacher import TaskTeacher, check_length


@check_keywords
def distill(
    teacher: str | Path,
    *,
    train: RowsLike,
    dev: RowsLike | float,
    test: RowsLike | float | None = None,
    out: Path | str,
    student: str | Path | None = None,
    layers: Count | None = None,
    follow: Sequence[int] = (),
    task: str | type[Task[Any, Any]] | None = None,
    seeds: Count = 1,
    resume: bool = False,
    settings: Finetune | None = None,
    terms: Terms | None = None,
    reading: Reading | None = None,
) -> dict[str, Any]:
    """Teach a small model what a fine-tuned one does.

    Returns: the student's scores, as `finetune` does.

    The student is a model folder, or as many `layers` of the teacher, evenly taken, with its
    embedding and its head. `follow` names, for each of the student's layers, the teacher's that
    it is to be like, from 1; evenly by default. The task is the teacher's.
    Raises: ConfigError for a student that cannot follow its teacher, before work.

    Args:
        teacher: A fine-tuned model folder; the task is its own.
        train: Labelled examples to learn from.
        dev: Examples that select the best epoch and are scored: a file, or the fraction of train to
            hold out, such as 0.1.
        test: Examples, or a fraction of train, that only the selected epoch is scored on, once.
        out: The folder of what is made; it must not exist yet.
        student: A model folder or hub id with the teacher's vocabulary.
        layers: Instead: as many layers of the teacher, evenly taken.
        follow: The teacher's layer that each of the student's follows, from 1; once for each.
        task: The teacher's task, where it is module:Class.
        seeds: Run as many seeds, and report mean and standard deviation.
        resume: Go on with a run that was stopped.
    """
    settings, terms = settings or Finetune(), terms or Terms()
    if (student is None) == (layers is None):
        raise ConfigError("student: name a model folder, or say how many layers of the teacher")
    if layers is not None and layers < 1:
        raise ConfigError(f"layers: {layers}; a student keeps one of its teacher's at least")
    known = answering(teacher, task)
    model = _student(known.loaded, student, layers, settings.length)
    device = resolve_device(settings.device)
    dtype = resolve(settings.precision, device)
    task_teacher = TaskTeacher(
        task=known.task,
        model=packed(known.loaded.model.to(device), dtype),
        terms=terms,
        layers=follow,
        record={
            "teacher": str(teacher),
            "weights": {"teacher": known.loaded.weights_hash()},
            "layers": layers,
            "follow": list(follow),
            "terms": plain(terms),
        },
    )
    rest: dict[str, Any] = {
        "train": train,
        "dev": dev,
        "test": test,
        "out": out,
        "settings": settings,
        "options": known.task.uncalibrated(),
        "reading": reading,
        "resume": resume,
        "teacher": task_teacher,
    }
    if seeds == 1:
        return finetune(type(known.task), model, **rest)
    return finetune_seeds(seeds, type(known.task), model, **rest)


def _student(
    teacher: Loaded, student: str | Path | None, layers: int | None, length: int | None
) -> str | Path | Loaded:
    """Raises: ConfigError for a model with another vocabulary, more layers than there are, or texts
    too long for its teacher."""
    if student is None:
        assert layers is not None
        kept = usual_layers(layers, teacher.model.config.layers)
        return replace(teacher, model=keep_layers(teacher.model, kept))
    loaded = load(student)
    if loaded.tokenizer.fingerprint != teacher.tokenizer.fingerprint:
        raise ConfigError(
            f"student: {student} has another vocabulary than {teacher.folder}; what a teacher says "
            "of tokens needs one vocabulary: pretrain the student with the teacher's"
        )
    check_length(teacher.model, length or loaded.length, "length")
    return student
