"""Named-entity recognition with GLiNER models, whose labels are chosen at prediction time."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

import numpy as np
import tokenizers
import torch
from msgspec import Meta
from numpy.typing import NDArray

from bertkit.checkpoint.directory import Loaded
from bertkit.config import Settings, decode
from bertkit.data.rows_in_memory import as_list
from bertkit.engine.engine import Engine
from bertkit.errors import ConfigError, DataError, check_choice
from bertkit.extensions.zero_shot.gliner import Span
from bertkit.extensions.zero_shot.gliner_files import HEAD, load_gliner
from bertkit.nn.precision import Inference
from bertkit.pipelines.base import ModelPipeline
from bertkit.synonyms import check_keywords
from bertkit.tasks.inference import ITEMS_PER_CHUNK, Work, batched
from bertkit.tasks.tag import TaggedEntity
from bertkit.tasks.task import Feature
from bertkit.text.encoding import Encoding, encode_raw
from bertkit.text.long_texts import Long

WORD = re.compile(r"\w+(?:[-_]\w+)*|\S")
"""Pattern of a word, with which texts are split as when GLiNER models are trained
(`words_splitter_type` whitespace)."""


MAX_TOKENS = 4_096
"""Maximum number of tokens of labels and text together, for models without learned positions."""


class EntityOptions(Settings, frozen=True):
    """Options of zero-shot entity recognition."""

    labels: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=200)], ...], Meta(max_length=200)
    ] = ()
    """Types of entities to find, such as "person" and "city". At least one is required, and at most
    200 are allowed."""
    threshold: Annotated[float, Meta(ge=0.01, le=1.0)] = 0.5
    """Probability above which a span counts as an entity, from 0.01 to 1."""
    flat: bool = True
    """Whether entities must not overlap at all. If false, an entity can contain another one."""
    multi_label: bool = False
    """Whether an entity can have several labels."""

    def __post_init__(self) -> None:
        if len(set(self.labels)) < len(self.labels):
            raise ValueError("labels must not contain a label twice")


class Prompt(NamedTuple):
    """The tokens before the words of a text, which contain the labels, and the tokens after."""

    before: list[int]
    labels: NDArray[np.int64]
    after: list[int]


class Item(NamedTuple):
    """A text, the start and end of each of its words, and the options.

    Shapes:
        words: (W, 2).
    """

    text: str
    words: NDArray[np.int64]
    windows: list[int]
    """Index of the first word of each window."""
    options: EntityOptions


class ZeroShotEntities(ModelPipeline):
    """Find entities of types that are chosen at prediction time, with a GLiNER model.

    If a text has more words than the model can read, it is split into windows that overlap by a
    quarter. If a span is in two windows, the higher of its two probabilities is used.

    Some words have no token, for example control characters. They can be inside an entity, but do
    not count as words. The package `gliner` counts them, and therefore assigns wrong states to the
    words after them.
    """

    policies = ("window", "truncate", "error")
    prediction, options = list[TaggedEntity], EntityOptions
    example = "Ada Lovelace was born in London."

    def __init__(self, loaded: Loaded, engine: Engine | Inference = "fp32") -> None:
        super().__init__(loaded, engine)
        self.head = self._get_head(HEAD, "pass the directory of a GLiNER model")
        # Only learned position embeddings limit the number of tokens.
        is_limited = loaded.model.config.learned_positions > 0
        longest = self.tokenizer.max_length or MAX_TOKENS
        self.length = loaded.length if is_limited else min(longest, MAX_TOKENS)

    @classmethod
    def open(
        cls,
        model: str | Path | Loaded,
        *,
        precision: Inference = "fp32",
        device: str = "auto",
        revision: str | None = None,
        **options: Any,
    ) -> Self:
        """Load a model for this pipeline.

        `bertkit.pipeline` describes the arguments and errors.
        """
        loaded = model if isinstance(model, Loaded) else load_gliner(model, revision)
        return super().open(loaded, precision=precision, device=device, **options)

    @check_keywords
    def __call__(
        self,
        texts: str | Sequence[str],
        labels: Sequence[str],
        *,
        threshold: float = EntityOptions().threshold,
        flat: bool = EntityOptions().flat,
        multi_label: bool = EntityOptions().multi_label,
        long: Long = "window",
    ) -> list[TaggedEntity] | list[list[TaggedEntity]]:
        """Return the entities in a text, sorted by position, or a list of these for several texts.

        Args:
            texts: A text, or several texts.
            labels: Types of entities to find.
            threshold: Probability above which a span counts as an entity.
            flat: Whether entities must not overlap at all.
            multi_label: Whether an entity can have several labels.
            long: What to do with texts that exceed the maximum length of the model.

        Raises:
            ConfigError: If there are no labels, or an option is invalid.
            DataError: If a text is too long and `long` is "error".
        """
        options: dict[str, Any] = {"labels": labels, "threshold": threshold, "long": long}
        options |= {"flat": flat, "multi_label": multi_label}
        answers = [
            answer
            for part in batched(as_list(texts), ITEMS_PER_CHUNK)
            for answer in self.run(self.prepare(part, **options))
        ]
        return answers[0] if isinstance(texts, str) else answers

    def prepare(self, texts: Sequence[str], *, long: Long = "window", **fields: Any) -> list[Work]:
        """Encode each text together with the labels.

        Args:
            texts: The texts.
            long: What to do with texts that exceed the maximum length of the model.
            fields: Fields of `EntityOptions`.

        Raises:
            ConfigError: If there are no labels, if they are too long for the model, or if an option
                is invalid.
            DataError: If a text is too long and `long` is "error".
        """
        check_choice("long", long, self.policies)
        options = decode(EntityOptions, fields)
        prompt = self._prompt(options.labels)
        if wrong := [kind.__name__ for kind in map(type, texts) if not issubclass(kind, str)]:
            raise DataError(f"texts: expected strings, got {wrong[0]}; pass strings")
        words = [[match.span() for match in WORD.finditer(text)] for text in texts]
        split = [[text[a:b] for a, b in row] for text, row in zip(texts, words, strict=True)]
        encodings = encode_raw(self.tokenizer.core, split, None, plain=True, named=True)
        return [
            self._work(text, np.array(row, np.int64), raw, prompt, options, long)
            for text, row, raw in zip(texts, words, encodings, strict=True)
        ]

    def _prompt(self, labels: Sequence[str]) -> Prompt:
        """Return the tokens of the labels, and the special tokens before and after a text.

        Raises:
            ConfigError: If there are no labels, or they leave too few tokens for a text.
        """
        if not labels:
            raise ConfigError("labels: there are no labels; pass the labels to find")
        config = self.head.config
        words = [word for label in labels for word in (config.ent_token, label)]
        (raw,) = encode_raw(
            self.tokenizer.core, [[*words, config.sep_token]], None, plain=True, named=True
        )
        before, after = self.tokenizer.added
        first = np.searchsorted(np.array(raw.word_ids), 2 * np.arange(len(labels)))
        positions = len(before) + first + (0 if config.embed_ent_token else 1)
        prompt = Prompt([*before, *raw.ids], positions, [*after])
        if self._room(prompt) < self.length // 4:
            raise ConfigError(
                f"labels: the labels have {len(raw.ids)} tokens, but the maximum for labels and "
                f"text together is {self.length}, and a quarter of it must remain for the text; "
                "pass fewer labels"
            )
        return prompt

    def _room(self, prompt: Prompt) -> int:
        """Return how many tokens of a text fit into a window."""
        return self.length - len(prompt.before) - len(prompt.after)

    def _work(
        self,
        text: str,
        words: NDArray[np.int64],
        raw: tokenizers.Encoding,
        prompt: Prompt,
        options: EntityOptions,
        long: Long,
    ) -> Work:
        """Split a text into windows, and return the unit of work for it.

        Raises DataError like `prepare`.
        """
        ids, owners = np.array(raw.ids, np.int64), np.array(raw.word_ids, np.int64)
        first = np.flatnonzero(np.diff(owners, prepend=-1))
        bounds, room = np.append(first, len(ids)), self._room(prompt)
        windows = window_ranges(np.diff(bounds), self.head.config.max_len, room)
        is_long = len(windows) > 1 or len(ids) > room
        if is_long and long == "error":
            raise DataError(
                f"{text[:40]!r}…: the text has {len(first)} words, but the model reads only the "
                f"first {windows[0][1]}; shorten the text, truncate it (--long truncate), or "
                "split it (--long window)"
            )
        is_cut, features = is_long and long == "truncate", []
        for start, end in windows[:1] if is_cut else windows:
            tokens = ids[bounds[start] : bounds[end]][:room]
            sequence = np.concatenate([prompt.before, tokens, prompt.after]).astype(np.int64)
            positions = first[start:end] - bounds[start] + len(prompt.before)
            encoding = Encoding.of_ids(sequence, truncated=is_cut)
            features.append(Feature(encoding, 0, np.append(prompt.labels, positions)))
        starts = [start for start, _ in windows]
        return Work(features, Item(text, words[owners[first]], starts, options))

    def run(self, works: Sequence[Work]) -> list[list[TaggedEntity]]:
        """Return the entities in each text, sorted by position."""
        found: list[dict[Span, float]] = [{} for _ in works]
        owners = [number for number, work in enumerate(works) for _ in work.features]
        windows = [start for work in works for start in work.item.windows[: len(work.features)]]
        for index, scores in self._probabilities(works):
            best = found[owners[index]]
            threshold = works[owners[index]].item.options.threshold
            for (start, end, label), score in self.head.scorer.spans(scores, threshold):
                span = (start + windows[index], end + windows[index], label)
                best[span] = max(score, best.get(span, 0.0))
        return [_entities(work.item, best) for work, best in zip(works, found, strict=True)]

    @torch.inference_mode()
    def _probabilities(self, works: Sequence[Work]) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Yield the index of each window, and its probabilities in the shape of `EntityHead`."""
        features = [(f, len(work.item.options.labels)) for work in works for f in work.features]
        encodings = [feature.encoding for feature, _ in features]
        positions = [np.asarray(feature.token_indices) for feature, _ in features]
        for indices, batch in self.engine.batches(encodings, positions):
            states = self.engine.model.encoder_states(batch)[batch.token_indices]
            labels = [features[index][1] for index in indices]
            words = [len(positions[i]) - count for i, count in zip(indices, labels, strict=True)]
            logits = self.head(states, labels, words)
            for index, scores in zip(indices, logits, strict=True):
                yield index, scores.float().sigmoid().cpu().numpy()


def window_ranges(tokens: NDArray[np.int64], most: int, room: int) -> list[tuple[int, int]]:
    """Split words into windows that overlap by a quarter, and return each window as [start, end).

    Args:
        tokens: Number of tokens in each word.
        most: Maximum number of words in a window.
        room: Maximum number of tokens in a window. A word that is longer than this is a separate
            window.
    """
    total, windows, start, end = np.append(0, np.cumsum(tokens)), [], 0, 0
    while end < len(tokens):
        fitting = int(np.searchsorted(total, total[start] + room, "right")) - 1
        end = max(start + 1, min(start + most, fitting))
        windows.append((start, end))
        start = end - (end - start) // 4
    return windows


def _entities(item: Item, spans: Mapping[Span, float]) -> list[TaggedEntity]:
    """Select entities, most probable span first, and skip spans that conflict with earlier ones."""
    options, kept = item.options, list[tuple[Span, float]]()
    at_word: dict[int, list[Span]] = defaultdict(list)
    for span, score in sorted(spans.items(), key=lambda pair: -pair[1]):
        words = range(span[0], span[1] + 1)
        if not any(_is_conflict(span, other, options) for w in words for other in at_word[w]):
            kept.append((span, score))
            for word in words:
                at_word[word].append(span)
    return [
        TaggedEntity(item.text[first:last], options.labels[label], first, last, score)
        for (start, end, label), score in sorted(kept, key=lambda pair: pair[0][0])
        for first, last in [(int(item.words[start][0]), int(item.words[end][1]))]
    ]


def _is_conflict(a: Span, b: Span, options: EntityOptions) -> bool:
    """Return whether two spans that share a word cannot both be entities."""
    if a[:2] == b[:2]:
        return not options.multi_label
    is_nested = (a[0] <= b[0] and b[1] <= a[1]) or (b[0] <= a[0] and a[1] <= b[1])
    return options.flat or not is_nested
