"""Knowledge distillation from the outputs, hidden states, and attention of a teacher.

Sources: Hinton et al. 2015 (outputs); Sanh et al. 2019 (DistilBERT); Jiao et al. 2020 (TinyBERT);
Wang et al. 2020 (MiniLM).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertkit.batch import Batch, Packed
from bertkit.config import Positive, Settings, Weight
from bertkit.errors import ConfigError
from bertkit.models.model import Model
from bertkit.nn.attention import Trace, relations
from bertkit.objectives.loss import Loss, Totals

MAPS_HEAD = "maps"
"""Name of the head with the linear maps from the student's hidden size to the teacher's.

If `compare` is `squared` (TinyBERT), there are two maps: one for the embedding (W_e), and one for
all layers (W_h). If it is `cosine`, there is one map, for the last layer.
"""

TEACHER_OUTPUTS = "teacher_outputs"
"""Name of the targets that contain the teacher's outputs, if they were computed in advance."""

TaskLoss = Callable[[Tensor, Batch, Totals, nn.Module], Loss]
"""Function that computes a task's loss from the outputs of its head."""


class Terms(Settings, frozen=True):
    """Settings of the terms of a student's loss. A term with weight 0 is not used."""

    labels: Weight = 0.5
    """Weight of the loss on the labels, as in training without a teacher."""
    outputs: Weight = 0.5
    """Weight of the loss on the teacher's outputs. This is the KL divergence from the teacher's
    softened probabilities, or the mean squared error if the outputs are not a choice of one label.
    """
    temperature: Positive = 2.0
    """Number by which the logits of both models are divided before the softmax. Values above 1 give
    small probabilities more weight.
    """
    states: Weight = 0.25
    """Weight of the loss on the hidden states, which `compare` selects."""
    compare: Literal["squared", "cosine"] = "squared"
    """Loss on the hidden states. `squared` is the mean squared error, summed over the embedding and
    all layers (TinyBERT). `cosine` is the cosine distance of the last layer's states (DistilBERT).
    """
    attention: Weight = 0.0
    """Weight of the mean squared error of the attention logits, summed over the layers (TinyBERT).
    """
    relations: Weight = 0.0
    """Weight of the KL divergence from the teacher's attention distributions and value–value
    relations in the last layer (MiniLM).
    """

    def __post_init__(self) -> None:
        if not (self.labels or self.outputs or self.states or self.attention or self.relations):
            raise ValueError("at least one loss weight must be greater than 0")


class Distillation:
    """Distillation objective: the loss of a task, plus terms that compare a student with a teacher.

    The student and the teacher read the same tokens. Each term is a mean over the whole optimizer
    step. The mean is over output rows for the outputs, over tokens for the hidden states, and over
    sequences for attention and relations. The attribute `learner` is the model to train. It is the
    student, with the additional head `maps` if the hidden sizes differ.

    Args:
        task_loss: Function that computes the loss of the task.
        teacher: The teacher.
        student: The student.
        head: Name of the head whose outputs are compared.
        terms: Weights of the loss terms.
        layers: For each student layer, the number of the teacher layer that it is compared with.
            The first layer is 1. Default: see `default_layers`. The embedding of the student is
            always compared with the embedding of the teacher.
        single_label: Whether the outputs are a choice of one label.

    Raises:
        ConfigError: If the vocabularies differ, if `layers` does not match the models, or if a term
            requires equal numbers of attention heads and they differ.
    """

    def __init__(
        self,
        task_loss: TaskLoss,
        *,
        teacher: Model,
        student: Model,
        head: str,
        terms: Terms,
        layers: Sequence[int] = (),
        single_label: bool,
    ) -> None:
        self.task_loss, self.teacher, self.head = task_loss, teacher, head
        self.terms, self.single_label = terms, single_label
        config, teacher_config = student.transformer.config, teacher.transformer.config
        if config.vocab != teacher_config.vocab:
            raise ConfigError(
                f"student and teacher must have the same vocabulary, got {config.vocab:,} and "
                f"{teacher_config.vocab:,} tokens; use the teacher's tokenizer for the student"
            )
        if config.heads != teacher_config.heads and (terms.attention or terms.relations):
            raise ConfigError(
                f"terms: student and teacher have {config.heads} and {teacher_config.heads} heads "
                "per layer, but attention and relations compare single heads; set both weights to 0"
            )
        self.layers = tuple(layers) or default_layers(config.layers, teacher_config.layers)
        outside = [layer for layer in self.layers if not 0 < layer <= teacher_config.layers]
        if outside or len(self.layers) != config.layers:
            raise ConfigError(
                f"layers must list a teacher layer, 1 to {teacher_config.layers}, for each of the "
                f"student's {config.layers} layers, got {list(self.layers)}"
            )
        self.learner = student
        if terms.states and config.hidden != teacher_config.hidden:
            maps = nn.ModuleList(
                nn.Linear(config.hidden, teacher_config.hidden, bias=False)
                for _ in range(1 if terms.compare == "cosine" else 2)
            )
            self.learner = student.with_heads({MAPS_HEAD: maps})

    def __call__(self, model: Model, batch: Batch, totals: Totals) -> Loss:
        terms = self.terms
        full = bool(terms.attention or terms.relations)
        teacher, trace = (Trace(weights=False, projections=full) for _ in range(2))
        head = model.heads[self.head]
        outputs = head(model.encoder(batch, trace), batch).float()
        parts: dict[str, Tensor] = {}
        correct = {}
        if terms.labels:
            task = self.task_loss(outputs, batch, totals, head)
            parts["labels"], correct = terms.labels * task.total, dict(task.correct)
        targets = batch.targets.get(TEACHER_OUTPUTS)
        if full or terms.states or (terms.outputs and targets is None):
            with torch.no_grad():
                states = self.teacher.encoder(batch, teacher)
                if terms.outputs and targets is None:
                    targets = self.teacher.heads[self.head](states, batch).float()
        if targets is not None:
            rows = _rows(outputs, batch, totals)
            parts["outputs"] = terms.outputs * self._outputs(outputs, targets) / rows
        if terms.states:
            parts["states"] = terms.states * self._states(model, trace, teacher) / totals.tokens
        if terms.attention:
            gap = self._attention(trace, teacher, batch)
            parts["attention"] = terms.attention * gap / totals.sequences
        if terms.relations:
            gap = self._relations(trace, teacher, batch)
            parts["relations"] = terms.relations * gap / totals.sequences
        total = torch.stack(list(parts.values())).sum()
        return Loss(total, {name: part.detach() for name, part in parts.items()}, correct)

    def _outputs(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Compute the loss on the outputs, summed over rows."""
        if not self.single_label:
            return F.mse_loss(outputs, targets, reduction="sum") / outputs.shape[-1]
        divisor = self.terms.temperature
        student, target = (torch.log_softmax(x / divisor, -1) for x in (outputs, targets))
        # The temperature scales gradients by 1 / temperature². The factor temperature² compensates
        # for this: Hinton et al. 2015, section 2.
        return divisor**2 * F.kl_div(student, target, reduction="sum", log_target=True)

    def _states(self, model: Model, trace: Trace, teacher_trace: Trace) -> Tensor:
        """Compute the loss on the hidden states, summed over tokens and over compared layers."""
        layers = list(enumerate((0, *self.layers)))
        if self.terms.compare == "cosine":
            layers = layers[-1:]
        losses = []
        for depth, teacher_depth in layers:
            state, target = trace.states[depth], teacher_trace.states[teacher_depth].float()
            if MAPS_HEAD in model.heads:
                maps = [*model.heads[MAPS_HEAD].children()]
                state = maps[-1 if depth else 0](state)
            if self.terms.compare == "cosine":
                losses.append((1.0 - F.cosine_similarity(state.float(), target, dim=-1)).sum())
            else:
                losses.append(F.mse_loss(state.float(), target, reduction="sum") / target.shape[-1])
        return torch.stack(losses).sum()

    def _attention(self, trace: Trace, teacher: Trace, batch: Batch) -> Tensor:
        """Compute the loss on the attention logits, summed over sequences and layers."""
        losses = []
        for i, layer in enumerate(self.layers):
            pairs = zip(
                relations(trace.queries[i], trace.keys[i], batch.layout),
                relations(teacher.queries[layer - 1], teacher.keys[layer - 1], batch.layout),
                strict=True,
            )
            losses += [F.mse_loss(scores, targets) for scores, targets in pairs]
        return torch.stack(losses).sum()

    def _relations(self, trace: Trace, teacher_trace: Trace, batch: Batch) -> Tensor:
        """Compute the loss on the relations, summed over sequences and over both relations."""
        pairs = zip(
            _relations(trace, -1, batch.layout),
            _relations(teacher_trace, self.layers[-1] - 1, batch.layout),
            strict=True,
        )
        losses = []
        for scores, targets in pairs:
            student, teacher = torch.log_softmax(scores, -1), torch.log_softmax(targets, -1)
            rows = scores.shape[0] * scores.shape[1]
            losses.append(F.kl_div(student, teacher, reduction="sum", log_target=True) / rows)
        return torch.stack(losses).sum()


def _relations(trace: Trace, layer: int, layout: Packed) -> list[Tensor]:
    """Compute the query–key and value–value relations of a layer: (H, T, T) for each sequence."""
    q, k, v = (x[layer] for x in (trace.queries, trace.keys, trace.values))
    return [*relations(q, k, layout), *relations(v, v, layout)]


def _rows(outputs: Tensor, batch: Batch, totals: Totals) -> int:
    """Return the number of output rows of a whole optimizer step.

    A head has one output row per token index, per sequence, or per token.
    """
    if batch.token_indices is not None:
        return totals.positions
    return totals.sequences if len(outputs) == len(batch.layout.lengths) else totals.tokens


def default_layers(student: int, teacher: int) -> tuple[int, ...]:
    """Return the number of the teacher layer that each student layer is compared with by default.

    The teacher layers are evenly spaced, and the last one is the teacher's last layer. For 4 and 12
    layers, this is the mapping 3m of TinyBERT.

    Args:
        student: Number of layers of the student.
        teacher: Number of layers of the teacher.

    Raises:
        ConfigError: If the student has more layers than the teacher.
    """
    if student > teacher:
        raise ConfigError(
            f"the student must have at most {teacher} layers, as its teacher has, got {student}"
        )
    return tuple(round(teacher * (layer + 1) / student) for layer in range(student))
