"""The pipelines `token-classification` and `ner`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bertkit.config import Count
from bertkit.errors import CheckpointError
from bertkit.extensions.transformers_pipelines.base import (
    Arguments,
    TransformersPipeline,
    check_texts,
    windows,
)
from bertkit.tasks.calibration import softmax
from bertkit.tasks.task import Feature
from bertkit.text.encoding import Encoding
from bertkit.text.tokenizer import NO_LIMIT, Tokenizer

Strategy = Literal["none", "simple", "first", "average", "max"]
"""How labels are determined. none and simple use the label of each token. The others give all
tokens of a word the same label: that of its first token, that with the highest average probability,
or that of the token with the highest probability. All strategies except none join neighboring
tokens with the same label to an entity."""


class TokenClassificationArguments(Arguments, frozen=True):
    """Arguments of `TokenClassificationPipeline`."""

    aggregation_strategy: Strategy | None = None
    """How to determine labels. Default: none."""
    ignore_labels: tuple[str, ...] = ("O",)
    """Labels whose tokens or entities are not returned."""
    stride: Count | None = None
    """Number of tokens that consecutive windows share, if long texts are to be split into windows.
    Default: long texts are truncated."""
    is_split_into_words: bool = False
    """Whether each text is a list of words."""
    delimiter: str = " "
    """String to join words with. The offsets `start` and `end` refer to the joined text."""
    grouped_entities: bool | None = None
    """Older name of `aggregation_strategy`: true means simple, or first if `ignore_subwords` is
    true."""
    ignore_subwords: bool | None = None

    @property
    def strategy(self) -> Strategy:
        """Strategy to use. The older arguments override `aggregation_strategy`."""
        if self.grouped_entities is None and self.ignore_subwords is None:
            return self.aggregation_strategy or "none"
        if not self.grouped_entities:
            return "none"
        return "first" if self.ignore_subwords else "simple"


@dataclass(frozen=True)
class _Token:
    """A token at characters [start, end), and whether it continues a word."""

    index: int
    scores: NDArray[np.float32]
    word: str
    start: int
    end: int
    continues: bool


@dataclass(frozen=True)
class _Labeled:
    """A token, word, or entity at characters [start, end), with its label."""

    label: str
    score: float
    word: str
    start: int
    end: int

    @property
    def kind(self) -> str:
        """The label without its IOB2 prefix."""
        return self.label[2:] if self.label.startswith(("B-", "I-")) else self.label


class TokenClassificationPipeline(TransformersPipeline):
    """Predict the labels of tokens, words, or entities in texts."""

    accepted, runs = TokenClassificationArguments, "tag"

    def __init__(self, model: Any, given: Mapping[str, Any]) -> None:
        super().__init__(model, given)
        _ = model.loaded.model.transformer
        if model.task.head != "tag":
            raise CheckpointError(
                f"{model.loaded.folder}: the model has a CRF, which transformers does not support; "
                'use bertkit.pipeline("tag", ...), or fine-tune a model without crf'
            )
        self.labels: Sequence[str] = model.loaded.labels
        self.tokenizer: Tokenizer = model.loaded.tokenizer

    def __call__(self, inputs: Any, **arguments: Any) -> Any:
        """Return the entities in a text as dicts, or one list per text if there are several.

        Args:
            inputs: A text, or several texts. If `is_split_into_words` is true, each text is a list
                of words.
            arguments: Arguments of `TokenClassificationArguments`.

        Raises:
            ConfigError: If an argument is unknown or has an invalid value.
            DataError: If a text is invalid.
        """
        is_split = self.check(self.given, arguments).is_split_into_words
        is_one = is_split and not all(isinstance(item, list | tuple) for item in inputs)
        return super().__call__([inputs] if is_one else inputs, **arguments)

    def check_items(self, items: Sequence[Any], arguments: Any) -> None:
        if arguments.is_split_into_words:
            check_texts([word for words in items for word in words])
            items = [" ".join(words) for words in items]
        check_texts(items)

    def results(self, items: Sequence[Any], arguments: Any) -> list[Any]:
        texts, starts = list(items), None
        if arguments.is_split_into_words:
            texts = [arguments.delimiter.join(words) for words in items]
            size = len(arguments.delimiter)
            starts = [[0, *accumulate(len(word) + size for word in words)] for words in items]
        length, overlap = self.model.loaded.length, arguments.stride
        limit = length if overlap is None else NO_LIMIT
        encodings = self.tokenizer.encode_batch(items, max_length=limit, truncate="longest")
        features = [
            Feature(window, index, np.arange(len(window)))
            for index, encoding in enumerate(encodings)
            for window in windows(encoding, 0, length, overlap or 0, "stride")
        ]
        found: list[list[list[dict[str, Any]]]] = [[] for _ in items]
        for feature, logits in zip(features, self.model.outputs(features), strict=True):
            index = feature.example
            words = None if starts is None else starts[index]
            tokens = self._tokens(feature.encoding, softmax(logits), texts[index], words)
            found[index].append(self._entities(tokens, arguments))
        return [parts[0] if len(parts) == 1 else _without_overlaps(parts) for parts in found]

    def _tokens(
        self,
        encoding: Encoding,
        scores: NDArray[np.float32],
        text: str,
        starts: Sequence[int] | None,
    ) -> list[_Token]:
        """Return the tokens of a text, without special tokens.

        Args:
            encoding: Encoding of the text.
            scores: Probability of each label for each token. Shapes: (T, L).
            text: The text.
            starts: Offset at which each word starts, if the text is split into words.
        """
        unknown = self.tokenizer.unk if self.tokenizer.knows("unk") else None
        marks_parts = getattr(self.tokenizer.core.model, "continuing_subword_prefix", None)
        pieces, tokens = self.tokenizer.pieces(encoding.ids), []
        for index, part in enumerate(encoding.sequence):
            if part is None:
                continue
            before = 0 if starts is None else starts[encoding.words[index] or 0]
            start, end = (encoding.offsets[index] + before).tolist()
            word, written = pieces[index], text[start:end]
            if encoding.ids[index] == unknown:
                word, continues = written, False
            elif marks_parts:
                continues = len(word) != len(written)
            else:
                continues = start > 0 and " " not in text[start - 1 : start + 1]
            tokens.append(_Token(index, scores[index], word, start, end, continues))
        return tokens

    def _entities(self, tokens: Sequence[_Token], arguments: Any) -> list[dict[str, Any]]:
        """Return labeled tokens or, depending on the strategy, entities of several tokens."""
        strategy, ignored = arguments.strategy, arguments.ignore_labels
        if strategy in ("none", "simple"):
            parts = [self._labeled(token.scores, token.word, [token]) for token in tokens]
        else:
            parts = [self._word(word, strategy) for word in _words(tokens)]
        if strategy == "none":
            return [
                {"entity": part.label, "score": part.score, "index": token.index}
                | {"word": part.word, "start": part.start, "end": part.end}
                for part, token in zip(parts, tokens, strict=True)
                if part.label not in ignored
            ]
        entities = [self._joined(group) for group in _groups(parts)]
        return [
            {"entity_group": entity["label"], **{k: v for k, v in entity.items() if k != "label"}}
            for entity in map(asdict, entities)
            if entity["label"] not in ignored
        ]

    def _word(self, tokens: Sequence[_Token], strategy: Strategy) -> _Labeled:
        """Determine the label of a word from the scores of its tokens."""
        scores = tokens[0].scores
        if strategy == "max":
            scores = max((token.scores for token in tokens), key=lambda row: float(row.max()))
        elif strategy == "average":
            scores = np.mean([token.scores for token in tokens], axis=0)
        return self._labeled(scores, self._text([token.word for token in tokens]), tokens)

    def _labeled(
        self, scores: NDArray[np.float32], word: str, tokens: Sequence[_Token]
    ) -> _Labeled:
        best = int(scores.argmax())
        return _Labeled(
            self.labels[best], float(scores[best]), word, tokens[0].start, tokens[-1].end
        )

    def _joined(self, group: Sequence[_Labeled]) -> _Labeled:
        """Join tokens or words that have the same label to an entity."""
        return _Labeled(
            group[0].label.split("-", 1)[-1],
            float(np.mean([part.score for part in group])),
            self._text([part.word for part in group]),
            group[0].start,
            group[-1].end,
        )

    def _text(self, pieces: list[str]) -> str:
        decoder = self.tokenizer.core.decoder
        return " ".join(pieces) if decoder is None else decoder.decode(pieces)


def _words(tokens: Sequence[_Token]) -> list[list[_Token]]:
    words: list[list[_Token]] = []
    for token in tokens:
        if words and token.continues:
            words[-1].append(token)
        else:
            words.append([token])
    return words


def _groups(parts: Sequence[_Labeled]) -> list[list[_Labeled]]:
    """Group neighbors that form an entity: all have one label, and only the first may have B-."""
    groups: list[list[_Labeled]] = []
    for part in parts:
        if groups and part.kind == groups[-1][-1].kind and not part.label.startswith("B-"):
            groups[-1].append(part)
        else:
            groups.append([part])
    return groups


def _without_overlaps(windows: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Combine the entities of all windows of a text.

    If entities overlap, only the longest is returned. If several are equally long, it is the one
    with the highest score.
    """
    kept: list[dict[str, Any]] = []
    entities = [entity for window in windows for entity in window]
    for entity in sorted(entities, key=lambda entity: entity["start"]):
        if not kept or not kept[-1]["start"] <= entity["start"] < kept[-1]["end"]:
            kept.append(entity)
        elif _rank(entity) > _rank(kept[-1]):
            kept[-1] = entity
    return kept


def _rank(entity: dict[str, Any]) -> tuple[int, float]:
    return entity["end"] - entity["start"], entity["score"]
