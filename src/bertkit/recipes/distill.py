"""Distillation of a fine-tuned model into a smaller one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bertkit.checkpoint.directory import Loaded, load
from bertkit.config import Count, Settings, document_keywords, plain, with_keywords
from bertkit.engine.packed_linear import packed
from bertkit.errors import ConfigError
from bertkit.models.surgery import keep_layers
from bertkit.nn.precision import resolve, resolve_device
from bertkit.objectives.distill import Terms, default_layers
from bertkit.pipelines import answering
from bertkit.recipes.finetune import Finetune, finetune
from bertkit.synonyms import check_keywords
from bertkit.tasks.capabilities import Calibrated
from bertkit.tasks.examples import RowsLike
from bertkit.tasks.task import Reading, Task
from bertkit.training.run import Resume
from bertkit.training.teacher import TaskTeacher, check_length


@document_keywords(Finetune, Terms, Reading)
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
    resume: Resume = False,
    settings: Finetune | Mapping[str, Any] | None = None,
    terms: Terms | Mapping[str, Any] | None = None,
    reading: Reading | Mapping[str, Any] | None = None,
    **keywords: Any,
) -> dict[str, Any]:
    """Distill a fine-tuned model into a smaller model.

    Args:
        teacher: Directory of the fine-tuned model. Its task is the task of the student.
        train: Labeled examples to train on.
        dev: Examples that select the best epoch and are scored: a file, or the fraction of train to
            hold out, such as 0.1.
        test: Examples that only the selected epoch is scored on, once: a file, or a fraction of
            train.
        out: Output directory. It must not exist.
        student: Directory or hub id of a model with the vocabulary of the teacher.
        layers: Number of layers of the teacher, evenly spaced, that the student starts from,
            instead of a student.
        follow: Layer of the teacher, from 1, that each layer of the student is compared with;
            repeat the option. Default: evenly spaced layers.
        task: Task of the teacher as module:Class, if it is not a task of bertkit.
        resume: Whether to resume a run that was interrupted.
        settings: Settings of training, which are also keywords, such as `epochs=2`.
        terms: Weights of the losses, which are also keywords.
        reading: Columns and format of the examples, which are also keywords, such as
            `text_column="review"`.
        **keywords: Settings, weights and columns, as listed below.

    Returns:
        The scores of the student, as `finetune` returns them.

    Raises:
        ConfigError: If a setting is invalid, or the student does not fit the teacher. It is raised
            before training.
    """
    groups: dict[type[Settings], Any] = {Finetune: settings, Terms: terms, Reading: reading}
    training, weights, columns = with_keywords("distill", groups, keywords)
    if (student is None) == (layers is None):
        raise ConfigError("set either student or layers")
    if layers is not None and layers < 1:
        raise ConfigError(f"layers must be at least 1, got {layers}")
    pipeline = answering(teacher, task)
    fitted = pipeline.task
    model = _student(pipeline.loaded, student, layers, training.max_length)
    device = resolve_device(training.device)
    dtype = resolve(training.precision, device)
    task_teacher = TaskTeacher(
        task=fitted,
        model=packed(pipeline.loaded.model.to(device), dtype),
        terms=weights,
        layers=follow,
        record={
            "teacher": str(teacher),
            "weights": {"teacher": pipeline.loaded.weights_hash()},
            "layers": layers,
            "follow": list(follow),
            "terms": plain(weights),
        },
    )
    return finetune(
        type(fitted),
        model,
        train=train,
        dev=dev,
        test=test,
        out=out,
        settings=training,
        options=fitted.uncalibrated() if isinstance(fitted, Calibrated) else fitted.options,
        reading=columns,
        resume=resume,
        teacher=task_teacher,
    )


def _student(
    teacher: Loaded, student: str | Path | None, layers: int | None, length: int | None
) -> str | Path | Loaded:
    """Return the student.

    Raises:
        ConfigError: If the teacher is not a Transformer, has fewer layers, or does not support the
            length, or the student has another vocabulary.
    """
    config = teacher.model.transformer.config
    if student is None:
        assert layers is not None
        indices = default_layers(layers, config.layers)
        return replace(teacher, model=keep_layers(teacher.model, indices))
    loaded = load(student)
    if loaded.tokenizer.fingerprint != teacher.tokenizer.fingerprint:
        raise ConfigError(
            f"student: the vocabulary of {student} differs from the teacher's ({teacher.folder}); "
            "use a student that was pretrained with the teacher's vocabulary"
        )
    check_length(teacher.model, length or loaded.length, "max_length")
    return student
