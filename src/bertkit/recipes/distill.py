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
        teacher: Directory of the fine-tuned model. The student is trained for the same task.
        train: Labeled examples to train on.
        dev: Examples on which every epoch is scored, to select the best epoch: a file, or the
            fraction of train to hold out, such as 0.1.
        test: Examples on which only the selected epoch is scored, once: a file, or the fraction of
            train to hold out.
        out: Output directory. It must not exist.
        student: Directory or hub id of the model to train. It must have the teacher's vocabulary.
        layers: Number of layers of the student if it is created from the teacher, by copying
            evenly spaced layers. Set either layers or student.
        follow: Number of the teacher layer, from 1, that a layer of the student is compared with;
            repeat the option for each layer of the student. Default: evenly spaced layers.
        task: Task of the teacher as module:Class, if the task is not part of bertkit.
        resume: Whether to resume a run that was interrupted.
        settings: Training settings. They can also be passed as keywords, such as `epochs=2`.
        terms: Weights of the losses. They can also be passed as keywords.
        reading: Columns and format of the examples. They can also be passed as keywords, such as
            `text_column="review"`.
        **keywords: Settings, weights and columns, as listed below.

    Returns:
        The scores of the student, as `finetune` returns them.

    Raises:
        ConfigError: If a setting is invalid, or the student does not match the teacher. The error
            is raised before training starts.
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
    """Return the student before training: the given model, or the teacher with fewer layers.

    Raises:
        ConfigError: If the teacher is not a Transformer, has fewer than `layers` layers, or does
            not support the sequence length, or if the student has another vocabulary.
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
