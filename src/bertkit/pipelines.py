"""From texts to answers in one call: `pipeline("embed", model)(texts)`."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, overload

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertkit import tasks
from bertkit.batch import Batch, Tokens
from bertkit.checkpoint.folder import Loaded, load
from bertkit.checkpoint.int8 import read_int8
from bertkit.checkpoint.tuned import read_tuned
from bertkit.console import say
from bertkit.engine.engine import BUDGET_TOKENS, Engine, Read
from bertkit.errors import CheckpointError, ConfigError, DataError, did_you_mean
from bertkit.models.model import HEADS, Model
from bertkit.nn.pool import POOLINGS, Pooling
from bertkit.nn.precision import Inference, has_bf16
from bertkit.tasks import Task, name_in, recorded
from bertkit.tasks.classify import PROBLEMS, reads_pairs
from bertkit.tasks.task import Feature, group
from bertkit.text.long import Long, averaged, encode
from bertkit.text.prompts import Prompter

PART = 4096
"""Texts tokenized at a time, so that many need little memory."""

MASKS = 256
"""Masks whose pieces are looked for at a time: each has a number for every piece there is."""

NUMBER = 64
"""Bytes of a number of an answer: as Python has it, and as text."""

STREAM = 256
"""Items of a stream read before the first of them is answered."""


class Candidate(msgspec.Struct, frozen=True):
    """A token that may stand at a mask, and its probability."""

    token: str
    score: float


class MaskAnswer(msgspec.Struct, frozen=True):
    """The likeliest tokens for one [MASK]; `mask` counts the masks of the text from 0."""

    mask: int
    candidates: list[Candidate]


class NextSentenceAnswer(msgspec.Struct, frozen=True):
    """How likely B follows A."""

    next: float
    truncated: bool = False


@dataclass(frozen=True)
class Work:
    """What a model reads for one item, in one sequence or several, and what it is asked."""

    features: Sequence[Feature]
    item: Any = None
    more: int = 0
    """What it costs beside reading: as much as so many tokens."""
    answer_bytes: int = 0
    """How much memory its answer takes, where that is much for its tokens."""

    @property
    def tokens(self) -> int:
        """Those that are read, and `more`."""
        return sum(len(feature.encoding) for feature in self.features) + self.more

    @property
    def truncated(self) -> bool:
        return any(feature.encoding.truncated for feature in self.features)


def engine(
    loaded: Loaded, precision: Inference = "fp32", *, batch_invariant: bool = False
) -> Engine:
    """The engine of a folder, which several pipelines may share.

    With precision auto it is what `bertkit tune` found fastest on this machine, threads of torch
    included; where it was not asked, bf16 if the processor has it. Which it is, is said.
    """
    int8, budget_tokens = None, BUDGET_TOKENS
    if precision == "auto":
        device = next(loaded.model.parameters()).device.type
        tuned = read_tuned(loaded.folder) if device == "cpu" else None
        if tuned is not None:
            precision, budget_tokens = tuned.precision, tuned.budget_tokens
            torch.set_num_threads(tuned.threads)
            say(
                f"precision: {precision}, {budget_tokens:,} tokens a batch, {tuned.threads} threads"
                ", as tuned on this machine"
            )
        else:
            say(f"precision: {'bf16' if has_bf16(device) else 'fp32'}")
    if precision == "int8":
        int8, _ = read_int8(loaded.folder, loaded.fingerprint())
        precision = "auto"
    return Engine(
        loaded.model,
        precision=precision,
        budget_tokens=budget_tokens,
        batch_invariant=batch_invariant,
        int8=int8,
    )


class _Pipeline:
    """`prepare` reads items, many at once; `run` takes what it made of them, in any company."""

    def __init__(self, loaded: Loaded, runs: Inference | Engine) -> None:
        self.loaded, self.tokenizer = loaded, loaded.tokenizer
        self.engine = runs if isinstance(runs, Engine) else engine(loaded, runs)

    def _needs(self, head: str, hint: str) -> Any:
        if head not in self.loaded.model.heads:
            held = ", ".join(self.loaded.model.heads) or "none"
            raise CheckpointError(
                f"{self.loaded.folder}: has no {head} head (heads: {held}); {hint}"
            )
        if any(name.startswith(f"heads.{head}.") for name in self.loaded.report.fresh):
            raise CheckpointError(
                f"{self.loaded.folder}: its {head} head was never trained; {hint}"
            )
        return self.engine.model.heads[head]

    def _encoded(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None,
        long: Long,
        prompts: Sequence[str] | None = None,
    ) -> list[Work]:
        encodings, owner = encode(
            self.tokenizer, texts, pairs, length=self.loaded.length, long=long, prompts=prompts
        )
        features: list[list[Feature]] = [[] for _ in texts]
        for encoding, place in zip(encodings, owner, strict=True):
            features[place].append(Feature(encoding, 0))
        return [Work(each) for each in features]

    def _rows(self, works: Sequence[Work], read: Read) -> NDArray[np.float32]:
        """`read` of every item, its windows averaged by their length. Shapes: (S, ...)."""
        encodings = [f.encoding for work in works for f in work.features]
        owner = [place for place, work in enumerate(works) for _ in work.features]
        return averaged(self.engine.rows(encodings, read), encodings, owner)


class Embed(_Pipeline):
    """Texts -> float32 vectors (S, D)."""

    def __init__(
        self,
        loaded: Loaded,
        runs: Inference | Engine = "fp32",
        pooling: str | None = None,
        *,
        normalize: bool | None = None,
    ) -> None:
        """`pooling` and `normalize` stand in place of what the folder says."""
        super().__init__(loaded, runs)
        held = loaded.pooling or Pooling()
        if normalize is not None:
            held = replace(held, normalize=normalize)
        if pooling is not None and pooling not in POOLINGS:
            raise ConfigError(f"pooling: {pooling!r}; known: {', '.join(POOLINGS)}")
        if pooling is not None:
            held = replace(held, mode=pooling)  # type: ignore[arg-type]
        if held.dense is not None:
            held = replace(held, dense=copy.deepcopy(held.dense).to(self.engine.device))
        self.pooling, self.length = held, loaded.length
        self.prompt = Prompter(held.prompts)
        self.dimension = held.width(loaded.model.config.hidden)

    def __call__(
        self, texts: str | Sequence[str], *, long: Long = "error", prompt: str | None = None
    ) -> NDArray[np.float32]:
        """A vector for each text, normalized if the folder says so; one text gives one row.

        `prompt` stands before each text: the name of one of the folder's, or a text; by default
        the folder's default one, if any.
        Raises: DataError for a text longer than the model, unless `long` says what to do,
        ConfigError for a prompt that the folder has not.
        """
        texts = [texts] if isinstance(texts, str) else texts
        none = np.empty((0, self.dimension), dtype=np.float32)
        found = self.stream(texts, long=long, prompt=prompt)
        return np.concatenate([none, *(part for part, _ in found)])

    def stream(
        self, texts: Iterable[str], *, long: Long = "error", prompt: str | None = None
    ) -> Iterator[tuple[NDArray[np.float32], list[bool]]]:
        """The same for any number of texts, some thousands at a time as they come, with which of
        them were cut."""
        for part in batched(texts, PART):
            works = self.prepare(part, long=long, prompt=prompt)
            yield self.run(works), [work.truncated for work in works]

    def prepare(
        self, texts: Sequence[str], *, long: Long = "error", prompt: str | None = None
    ) -> list[Work]:
        """Raises: DataError as `long` says, ConfigError for a prompt that the folder has not."""
        works = self._encoded(texts, None, long, [self.prompt(prompt)] * len(texts))
        return [replace(work, answer_bytes=NUMBER * self.dimension) for work in works]

    def run(self, works: Sequence[Work]) -> NDArray[np.float32]:
        """A vector for each, one at least. Shapes: (S, D)."""
        vectors = self._rows(works, self.pooling)
        if self.pooling.normalize:
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return vectors


Item = str | tuple[str, str | Sequence[str]]
"""What a task is asked about: a text, or a text and what goes with it (a second text, a question's
context, the choices)."""

A = TypeVar("A", bound=msgspec.Struct)
T = TypeVar("T")


class Answer(_Pipeline, Generic[A]):
    """A fine-tuned model that answers: one item gives one answer, a list a list, in its order,
    and any other iterable a stream of answers."""

    def __init__(
        self, task: Task[Any, A], loaded: Loaded, runs: Inference | Engine = "fp32"
    ) -> None:
        super().__init__(loaded, runs)
        self.task = task
        self.head = self._needs(task.head, f"fine-tune one with `bertkit finetune {task.name}`")

    @overload
    def __call__(  # type: ignore[overload-overlap]  # a str is an iterable too
        self, items: Item, *, long: Long | None = ...
    ) -> A: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, items: list[str] | list[Item], *, long: Long | None = ...
    ) -> list[A]: ...
    @overload
    def __call__(self, items: Iterable[Item], *, long: Long | None = ...) -> Iterator[A]: ...
    def __call__(
        self, items: Item | Iterable[Item], *, long: Long | None = None
    ) -> A | list[A] | Iterator[A]:
        """Answers to one text, to many, or to a stream.

        `long` says what to do with texts longer than the model; by default what the task does.
        Raises: DataError for a text that cannot be answered about, ConfigError for a policy that
        the task has not.
        """
        if isinstance(items, str | tuple):
            return self.answers([self._example(items)], long=long)[0]
        if isinstance(items, Sequence):
            return self.answers([self._example(item) for item in items], long=long)
        return self._stream(items, long)

    def answers(self, examples: Sequence[Any], *, long: Long | None = None) -> list[A]:
        """Answers to the task's own examples, in their order."""
        long = self._policy(long)
        found: list[A] = []
        for start in range(0, len(examples), PART):
            found += self.run(self._works(examples[start : start + PART], long))
        return found

    def prepare(self, items: Sequence[Item], *, long: Long | None = None) -> list[Work]:
        """Raises: DataError, ConfigError as a call does."""
        return self._works([self._example(item) for item in items], self._policy(long))

    def run(self, works: Sequence[Work]) -> list[A]:
        """An answer for each."""
        features = [
            replace(feature, example=place)
            for place, work in enumerate(works)
            for feature in work.features
        ]
        outputs = self.task.run(self.engine, features)
        return self.task.answers(outputs, features, [work.item for work in works], self.head)

    def _works(self, examples: Sequence[Any], long: Long) -> list[Work]:
        features = self.task.features(
            examples, self.tokenizer, self.loaded.length, long=long, labelled=False
        )
        return [Work(own, item) for own, item in zip(group(features), examples, strict=True)]

    def _policy(self, long: Long | None) -> Long:
        long = long or self.task.long[0]
        if long not in self.task.long:
            known = ", ".join(self.task.long)
            raise ConfigError(f"long: {self.task.name} knows {known}, and not {long!r}")
        return long

    def _example(self, item: object) -> Any:
        match item:
            case str(text):
                return self.task.example(text, ())
            case (str(text), str(other)):
                return self.task.example(text, (other,))
            case (str(text), [*others]) if all(isinstance(other, str) for other in others):
                return self.task.example(text, [str(other) for other in others])
        raise DataError(
            f"{str(item)[:60]}: a {type(item).__name__} is nothing to ask about; give a text, or "
            "a tuple of a text and what goes with it"
        )

    def _stream(self, items: Iterable[Item], long: Long | None) -> Iterator[A]:
        for part in batched(items, STREAM):
            yield from self.answers([self._example(item) for item in part], long=long)


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of `size` items, the last shorter (itertools.batched, which Python 3.11 lacks)."""
    rest = iter(items)
    while part := list(itertools.islice(rest, size)):
        yield part


class FillMask(_Pipeline):
    """Texts with [MASK] -> the likeliest pieces for each."""

    def __init__(self, loaded: Loaded, runs: Inference | Engine = "fp32") -> None:
        super().__init__(loaded, runs)
        self.head = self._needs("mlm", "take a pretrained model")

    def __call__(self, texts: Sequence[str], *, top: int = 10) -> list[list[MaskAnswer]]:
        """For each text its masks in order. Raises: DataError when a text has none."""
        return [
            found
            for part in batched(texts, STREAM)
            for found in self.run(self.prepare(part, top=top))
        ]

    def prepare(self, texts: Sequence[str], *, top: int = 10, long: Long = "error") -> list[Work]:
        """Raises: DataError for a text without a mask, or as `long` says."""
        if top < 1:
            raise ConfigError(f"top: {top} pieces; ask for one at least")
        if long == "window":
            raise ConfigError("long: a mask is filled from one sequence; cut the text (truncate)")
        works = []
        for text, work in zip(texts, self._encoded(texts, None, long), strict=True):
            masks = sum(int((f.encoding.ids == self.tokenizer.mask).sum()) for f in work.features)
            if not masks:
                mask = self.tokenizer.pieces([self.tokenizer.mask])[0]
                raise DataError(f"{text[:60]!r}: nothing is masked; write {mask} for a word")
            works.append(replace(work, item=top, more=masks * math.ceil(top / 10)))
        return works

    def run(self, works: Sequence[Work]) -> list[list[MaskAnswer]]:
        """The masks of each, in order."""
        encodings = [work.features[0].encoding for work in works]
        masked = [np.flatnonzero(encoding.ids == self.tokenizer.mask) for encoding in encodings]
        most = max((work.item for work in works), default=1)
        return [
            [MaskAnswer(mask, best[: work.item]) for mask, best in enumerate(masks)]
            for work, masks in zip(works, self.candidates(encodings, masked, most), strict=True)
        ]

    def candidates(
        self, encodings: Sequence[Tokens], token_indices: Sequence[NDArray[np.int64]], top: int
    ) -> list[list[list[Candidate]]]:
        """The likeliest tokens at the token indices of each sequence, likeliest first."""
        size = self.tokenizer.vocab_size

        def best(model: Model, batch: Batch) -> Tensor:
            """Ids and probabilities. Shapes: (P, 2, top)."""
            assert batch.token_indices is not None
            states, parts = model.encoder(batch), []
            for indices in batch.token_indices.split(MASKS):
                logits = model.heads["mlm"](states, replace(batch, token_indices=indices)).float()
                # a padded vocabulary has more rows than tokens
                likely = torch.softmax(logits[:, :size], -1).topk(min(top, size))
                parts.append(torch.stack([likely.indices.float(), likely.values], 1))
            return torch.cat(parts)

        return [
            [
                list(
                    map(Candidate, self.tokenizer.pieces(ids.astype(int).tolist()), scores.tolist())
                )
                for ids, scores in rows
            ]
            for rows in self.engine.run(encodings, best, token_indices)
        ]


class NextSentence(_Pipeline):
    """Pairs of sentences -> how likely the second follows the first."""

    def __init__(self, loaded: Loaded, runs: Inference | Engine = "fp32") -> None:
        super().__init__(loaded, runs)
        self.head = self._needs("nsp", "take a model pretrained with sampling.pairs = nsp")

    def __call__(
        self, a: Sequence[str], b: Sequence[str], *, long: Long = "error"
    ) -> list[NextSentenceAnswer]:
        return [
            found
            for part in batched(zip(a, b, strict=True), PART)
            for found in self.run(self.prepare(part, long=long))
        ]

    def prepare(self, pairs: Sequence[tuple[str, str]], *, long: Long = "error") -> list[Work]:
        """Raises: DataError as `long` says."""
        return self._encoded([a for a, _ in pairs], [b for _, b in pairs], long)

    def run(self, works: Sequence[Work]) -> list[NextSentenceAnswer]:
        """An answer for each."""
        outputs = self._rows(works, lambda s, x: self.head(s, x).float())
        chances = torch.softmax(torch.from_numpy(outputs), -1)[:, 0].tolist()
        cut = [work.truncated for work in works]
        return [
            NextSentenceAnswer(chance, short) for chance, short in zip(chances, cut, strict=True)
        ]


class Rerank(_Pipeline):
    """Score texts against a query with a cross-encoder, which reads the two together.

    Works with models from `respond`, `choose`, or `classify` on pairs: one score, as published
    cross-encoders give, or two labels of which the second means relevant.
    """

    def __init__(self, loaded: Loaded, runs: Inference | Engine = "fp32") -> None:
        super().__init__(loaded, runs)
        name = "choose" if "choose" in loaded.model.heads else "classify"
        self.head = self._needs(name, "make one with `bertkit finetune respond`")
        if name == "classify":
            _check_reranker(loaded, self.head.labels)

    def __call__(self, query: str, texts: Sequence[str]) -> NDArray[np.float32]:
        """A score for each text, in their order, larger for a better one; what is too long for the
        model is cut. With two labels these are log-odds. Shapes: (S,)."""
        pairs = ((query, text) for text in texts)
        scores = [self.run(self.prepare(part)) for part in batched(pairs, PART)]
        return np.concatenate([np.empty(0, np.float32), *scores])

    def prepare(self, pairs: Sequence[tuple[str, str]], *, long: Long = "truncate") -> list[Work]:
        """Of a query and a text each. Raises: DataError as `long` says."""
        return self._encoded([query for query, _ in pairs], [text for _, text in pairs], long)

    def run(self, works: Sequence[Work]) -> NDArray[np.float32]:
        """A score for each, one at least. Shapes: (S,)."""
        outputs = self._rows(works, lambda s, x: self.head(s, x).float())
        return outputs[:, 0] if self.head.labels == 1 else outputs[:, 1] - outputs[:, 0]


def _check_reranker(loaded: Loaded, labels: int) -> None:
    """Raises: CheckpointError for a classifier that says nothing of a query and a text."""
    pairs, learn = reads_pairs(loaded.settings), "make one with `bertkit finetune respond`"
    if pairs is False:
        raise CheckpointError(
            f"{loaded.folder}: learned to label single texts, and a re-ranker reads a query with a "
            f"text; {learn}"
        )
    if labels > 2 or loaded.settings.get("problem_type") == PROBLEMS["multi_label"]:
        raise CheckpointError(
            f"{loaded.folder}: tells {labels} labels apart; a re-ranker gives one number, or "
            f"learned two labels of pairs; {learn}"
        )
    if labels == 2 and pairs is None:
        raise CheckpointError(
            f"{loaded.folder}: has two labels, and config.json does not say that they were learned "
            f"from pairs; a re-ranker gives one number; {learn}"
        )


def answering(
    model: str | Path | Loaded,
    task: str | type[Task[Any, Any]] | None = None,
    *,
    precision: Inference = "fp32",
    revision: str | None = None,
) -> Answer[Any]:
    """A fine-tuned folder ready to answer: for the task it was made for, or the one named.

    Raises: CheckpointError when it holds no such head, ConfigError for an unknown task. A task
    from outside the package is never imported because a folder says so: name it.
    """
    loaded = model if isinstance(model, Loaded) else load(model, revision=revision)
    if task is None:
        task = name_in(loaded.settings, loaded.model.heads)
        if task is None or (task not in tasks.TASKS and ":" not in task):
            raise CheckpointError(
                f"{loaded.folder}: was fine-tuned for no task; use `bertkit finetune` first"
            )
        if ":" in task:
            raise ConfigError(
                f"{loaded.folder}: made for the task {task}, whose code is not bertkit's; if you "
                f"trust it, name it: --task {task}"
            )
    kind = tasks.find(task) if isinstance(task, str) else task
    made_for = recorded(loaded.settings)
    if made_for is not None and made_for != kind.full_name():
        raise CheckpointError(
            f"{loaded.folder}: was fine-tuned for {made_for}, not for {kind.full_name()}; ask it "
            f"that, or fine-tune it"
        )
    try:
        ready = kind.restore(loaded.labels, loaded.settings).with_pooling(loaded.pooling)
    except CheckpointError as error:
        raise CheckpointError(f"{loaded.folder}: {error}") from None
    if ready.head not in HEADS:
        heads = {ready.head: ready.build_head}
        loaded = load(loaded.folder, heads=heads, labels=loaded.labels)
    return Answer(ready, loaded, precision)


OTHERS: Mapping[str, type[Embed | FillMask | NextSentence | Rerank]] = {
    "embed": Embed,
    "fill-mask": FillMask,
    "next-sentence": NextSentence,
    "rerank": Rerank,
}
"""Pipelines that are no task's own."""


@overload
def pipeline(  # type: ignore[overload-overlap]
    task: Literal["embed"],
    model: str | Path | Loaded,
    *,
    precision: Inference = ...,
    pooling: str | None = ...,
    batch_invariant: bool = ...,
    revision: str | None = ...,
) -> Embed: ...
@overload
def pipeline(  # type: ignore[overload-overlap]
    task: Literal["fill-mask"],
    model: str | Path | Loaded,
    *,
    precision: Inference = ...,
    revision: str | None = ...,
) -> FillMask: ...
@overload
def pipeline(  # type: ignore[overload-overlap]
    task: Literal["next-sentence"],
    model: str | Path | Loaded,
    *,
    precision: Inference = ...,
    revision: str | None = ...,
) -> NextSentence: ...
@overload
def pipeline(  # type: ignore[overload-overlap]
    task: Literal["rerank"],
    model: str | Path | Loaded,
    *,
    precision: Inference = ...,
    revision: str | None = ...,
) -> Rerank: ...
@overload
def pipeline(
    task: str | type[Task[Any, A]],
    model: str | Path | Loaded,
    *,
    precision: Inference = ...,
    revision: str | None = ...,
) -> Answer[Any]: ...
def pipeline(
    task: str | type[Task[Any, Any]],
    model: str | Path | Loaded,
    *,
    precision: Inference = "fp32",
    pooling: str | None = None,
    batch_invariant: bool = False,
    revision: str | None = None,
) -> Embed | FillMask | NextSentence | Rerank | Answer[Any]:
    """A model made ready for one task; call it with texts.

    `task` is embed, rerank, fill-mask or next-sentence, one that models are fine-tuned for
    (classify, tag, answer, ...) or a class of your own. `model` is a folder, a hub id or an opened
    folder. `precision` bf16 (or auto) is faster where the machine has the instructions, int8 where
    `bertkit quantize` made the folder; `pooling`
    (mean, cls or max) and `batch_invariant` (the same bits whatever a text is embedded with, and
    slower) are for embed alone.
    Raises: CheckpointError when the folder lacks the task's head.
    """
    if isinstance(task, str) and not (task in OTHERS or task in tasks.TASKS or ":" in task):
        known = (*OTHERS, *tasks.TASKS)
        raise ConfigError(f"no pipeline is named {task!r}; {did_you_mean(task, known)}")
    if (pooling is not None or batch_invariant) and task != "embed":
        raise ConfigError(f"pooling, batch_invariant: {task} has none; leave them out")
    if task not in OTHERS:
        return answering(model, task, precision=precision, revision=revision)
    loaded = model if isinstance(model, Loaded) else load(model, revision=revision)
    if task == "embed":
        runs = engine(loaded, precision, batch_invariant=batch_invariant)
        return Embed(loaded, runs, pooling)
    return OTHERS[task](loaded, precision)  # type: ignore[index]
