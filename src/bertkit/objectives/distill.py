"""Learning from a teacher: from its outputs, its states and its attention.

Source: Hinton et al. 2015 (outputs); Sanh et al. 2019 (DistilBERT); Jiao et al. 2020 (TinyBERT);
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
"""The name of the head that holds what turns a student's states into the teacher's width: a map
of the embedding and one of all layers (TinyBERT's W_e and W_h), or that of the last layer alone."""

TEACHER_OUTPUTS = "teacher_outputs"
"""The name of a batch's targets that are what the teacher says, where that is known beforehand."""

LossOf = Callable[[Tensor, Batch, Totals, nn.Module], Loss]
"""A task's loss, from what the head says."""


class Terms(Settings, frozen=True):
    """What a student learns from: the weight of each term of its loss, 0 for none."""

    labels: Weight = 0.5
    """The labels, as without a teacher."""
    outputs: Weight = 0.5
    """What the teacher answers: cross-entropy with its softened chances, or the squared difference
    where a row of outputs is no choice among labels."""
    temperature: Positive = 2.0
    """What both sides' outputs are divided by before softmax; above 1 small chances count more."""
    states: Weight = 0.25
    """The states, as `compare` says."""
    compare: Literal["squared", "cosine"] = "squared"
    """Those of the embedding and of each layer by squared difference, added up (TinyBERT); or the
    last ones by direction (DistilBERT)."""
    attention: Weight = 0.0
    """The scores of each layer's attention before softmax, by squared difference, added up over
    the layers (TinyBERT)."""
    relations: Weight = 0.0
    """KL divergence of the last layer's attention distributions and value–value relations
    (MiniLM)."""

    def __post_init__(self) -> None:
        if not (self.labels or self.outputs or self.states or self.attention or self.relations):
            raise ValueError("every term weighs 0, so that there is nothing to learn from")


class Distillation:
    """An objective: a task's loss, and what a teacher adds to it.

    Student and teacher read the same pieces. `layers` names for each of the student's layers the
    teacher's that it follows, from 1; the embedding follows the embedding. The model that learns is
    `learner`: the student, with `maps` as a head besides where the widths differ.

    Terms are means over what a whole step has: outputs over their rows, states over tokens,
    attention and relations over sequences.
    Raises: ConfigError for layers that are not there, and where a term needs what is not there.
    """

    def __init__(
        self,
        loss_of: LossOf,
        *,
        teacher: Model,
        student: Model,
        head: str,
        terms: Terms,
        layers: Sequence[int] = (),
        single_label: bool,
    ) -> None:
        self.loss_of, self.teacher, self.head = loss_of, teacher, head
        self.terms, self.single_label = terms, single_label
        mine, theirs = student.transformer.config, teacher.transformer.config
        if mine.vocab != theirs.vocab:
            raise ConfigError(
                f"the student has {mine.vocab:,} pieces and its teacher {theirs.vocab:,}: what a "
                "teacher says of tokens needs one vocabulary; give the student the teacher's"
            )
        if mine.heads != theirs.heads and (terms.attention or terms.relations):
            raise ConfigError(
                f"terms: the student has {mine.heads} heads a layer and its teacher "
                f"{theirs.heads}; attention and relations compare head with head; set both to 0"
            )
        self.layers = tuple(layers) or usual_layers(mine.layers, theirs.layers)
        outside = [layer for layer in self.layers if not 0 < layer <= theirs.layers]
        if outside or len(self.layers) != mine.layers:
            raise ConfigError(
                f"layers: {list(self.layers)}; name one of the teacher's layers, 1 to "
                f"{theirs.layers}, for each of the student's {mine.layers}"
            )
        self.learner = student
        if terms.states and mine.hidden != theirs.hidden:
            maps = nn.ModuleList(
                nn.Linear(mine.hidden, theirs.hidden, bias=False)
                for _ in range(1 if terms.compare == "cosine" else 2)
            )
            self.learner = student.with_heads({MAPS_HEAD: maps})

    def __call__(self, model: Model, batch: Batch, totals: Totals) -> Loss:
        terms = self.terms
        deep = bool(terms.attention or terms.relations)
        theirs, trace = (Trace(weights=False, projections=deep) for _ in range(2))
        head = model.heads[self.head]
        outputs = head(model.encoder(batch, trace), batch).float()
        parts: dict[str, Tensor] = {}
        correct = {}
        if terms.labels:
            own = self.loss_of(outputs, batch, totals, head)
            parts["labels"], correct = terms.labels * own.total, dict(own.correct)
        wanted = batch.targets.get(TEACHER_OUTPUTS)
        if deep or terms.states or (terms.outputs and wanted is None):
            with torch.no_grad():
                taught = self.teacher.encoder(batch, theirs)
                if terms.outputs and wanted is None:
                    wanted = self.teacher.heads[self.head](taught, batch).float()
        if wanted is not None:
            rows = _rows(outputs, batch, totals)
            parts["outputs"] = terms.outputs * self._outputs(outputs, wanted) / rows
        if terms.states:
            parts["states"] = terms.states * self._states(model, trace, theirs) / totals.tokens
        if terms.attention:
            gap = self._attention(trace, theirs, batch)
            parts["attention"] = terms.attention * gap / totals.sequences
        if terms.relations:
            gap = self._relations(trace, theirs, batch)
            parts["relations"] = terms.relations * gap / totals.sequences
        total = torch.stack(list(parts.values())).sum()
        return Loss(total, {name: part.detach() for name, part in parts.items()}, correct)

    def _outputs(self, outputs: Tensor, wanted: Tensor) -> Tensor:
        """Summed over the rows of outputs."""
        if not self.single_label:
            return F.mse_loss(outputs, wanted, reduction="sum") / outputs.shape[-1]
        heat = self.terms.temperature
        mine, theirs = (torch.log_softmax(x / heat, -1) for x in (outputs, wanted))
        # gradients of softened outputs are as much smaller: Hinton et al. 2015, section 2
        return heat**2 * F.kl_div(mine, theirs, reduction="sum", log_target=True)

    def _states(self, model: Model, trace: Trace, theirs: Trace) -> Tensor:
        """Summed over tokens, and over layers where there are several."""
        layers = list(enumerate((0, *self.layers)))
        if self.terms.compare == "cosine":
            layers = layers[-1:]
        gaps = []
        for mine, other in layers:
            own, wanted = trace.states[mine], theirs.states[other].float()
            if MAPS_HEAD in model.heads:
                maps = [*model.heads[MAPS_HEAD].children()]
                own = maps[-1 if mine else 0](own)
            if self.terms.compare == "cosine":
                gaps.append((1.0 - F.cosine_similarity(own.float(), wanted, dim=-1)).sum())
            else:
                gaps.append(F.mse_loss(own.float(), wanted, reduction="sum") / wanted.shape[-1])
        return torch.stack(gaps).sum()

    def _attention(self, trace: Trace, theirs: Trace, batch: Batch) -> Tensor:
        """Summed over sequences and layers."""
        gaps = []
        for mine, layer in enumerate(self.layers):
            pairs = zip(
                relations(trace.queries[mine], trace.keys[mine], batch.layout),
                relations(theirs.queries[layer - 1], theirs.keys[layer - 1], batch.layout),
                strict=True,
            )
            gaps += [F.mse_loss(own, other) for own, other in pairs]
        return torch.stack(gaps).sum()

    def _relations(self, trace: Trace, theirs: Trace, batch: Batch) -> Tensor:
        """Summed over sequences and both relations."""
        pairs = zip(
            _relations(trace, -1, batch.layout),
            _relations(theirs, self.layers[-1] - 1, batch.layout),
            strict=True,
        )
        gaps = []
        for own, other in pairs:
            mine, wanted = torch.log_softmax(own, -1), torch.log_softmax(other, -1)
            rows = own.shape[0] * own.shape[1]
            gaps.append(F.kl_div(mine, wanted, reduction="sum", log_target=True) / rows)
        return torch.stack(gaps).sum()


def _relations(trace: Trace, layer: int, layout: Packed) -> list[Tensor]:
    """Of queries and keys, and of values and values. Shapes: (H, T, T), one a sequence each."""
    q, k, v = (x[layer] for x in (trace.queries, trace.keys, trace.values))
    return [*relations(q, k, layout), *relations(v, v, layout)]


def _rows(outputs: Tensor, batch: Batch, totals: Totals) -> int:
    """How many rows of outputs a whole step has: of places, of sequences or of tokens."""
    if batch.token_indices is not None:
        return totals.positions
    return totals.sequences if len(outputs) == len(batch.layout.lengths) else totals.tokens


def usual_layers(mine: int, theirs: int) -> tuple[int, ...]:
    """The teacher's layers that a student follows: evenly, the last the last (TinyBERT's 3m).

    Raises: ConfigError for a student that is deeper than its teacher.
    """
    if mine > theirs:
        raise ConfigError(
            f"the student has {mine} layers and its teacher {theirs}; a student is no deeper"
        )
    return tuple(round(theirs * (layer + 1) / mine) for layer in range(mine))
