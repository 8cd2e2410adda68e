"""Tagging of words, such as with entities or parts of speech. Devlin et al. 2019, section 5.3."""

from __future__ import annotations

import copy
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, Self, cast

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from bertkit import metrics
from bertkit.batch import Batch
from bertkit.config import Settings
from bertkit.console import say
from bertkit.data.paths import suffix
from bertkit.data.row_readers import Rows, Source, has_records
from bertkit.data.tag_schemes import (
    BIOES,
    SCHEMES,
    Entity,
    Scheme,
    scheme_of,
    scheme_of_labels,
    spans,
    standard_labels,
)
from bertkit.data.tagged_text import TaggedText as Example
from bertkit.data.tagged_text import column_number, read_tagged, read_untagged, untagged
from bertkit.errors import ConfigError, DataError, did_you_mean
from bertkit.models.heads import CRFTagger
from bertkit.objectives.loss import Loss, Totals
from bertkit.tasks.capabilities import ChanceLevel, Labeled
from bertkit.tasks.confusion import LabelPair
from bertkit.tasks.task import (
    ErrorRecord,
    ExampleOutput,
    Feature,
    Outputs,
    Reader,
    Reading,
    Serving,
    Task,
)
from bertkit.text.encoding import Encoding, word_windows
from bertkit.text.long_texts import Long
from bertkit.text.tokenizer import NO_LIMIT, Tokenizer


class TagOptions(Settings, frozen=True):
    """Options of tagging."""

    crf: bool = False
    """Whether to score tag sequences with a CRF, which excludes sequences that are invalid in the
    tagging scheme. The transition scores of the CRF start at 0, are not decayed, and have 100 times
    the learning rate of other weights (10 times with LoRA)."""
    scheme: Literal["iob2", "bioes", "none"] | None = None
    """Tagging scheme of the model. Files can use another scheme. Use none for tags that are not
    entities, such as parts of speech. Default: the scheme of the training file, or IOB2 if the file
    uses IOB1."""


class TaggedEntity(msgspec.Struct, frozen=True):
    """Entity, its span [start, end) in characters, and the mean probability of its tags."""

    text: str
    type: str
    start: int
    end: int
    score: float


class TagAnswer(msgspec.Struct, frozen=True):
    """Entities of a text, and a tag for each word.

    If the tags mark entities, they are computed from the predicted entities, so that they are
    always valid in the tagging scheme. If they do not mark entities, `entities` is empty.
    """

    entities: list[TaggedEntity]
    words: list[str]
    tags: list[str]


class TaggedTextReader(Reader[Example]):
    """Reader of texts with tags from columns of words or from .jsonl rows."""

    def read(self, source: Source, reading: Reading, *, labeled: bool) -> tuple[list[Example], str]:
        """Read texts with spans of characters from rows, and words from columns.

        The columns of a .csv file are the columns of a table. Any other file except .jsonl has one
        word per line.
        """
        if isinstance(source, Path) and suffix(source) == ".csv":
            source = Rows.read(source)
        for name, option in reading.options().items():
            if name not in ("text_column", "label_column"):
                raise ConfigError(f"{option}: not supported by tag; remove it")
            if has_records(source):
                raise ConfigError(f"{option}: not supported for rows; remove it")
        text, label = reading.text_column, reading.label_column
        word = 0 if text is None else column_number("--text-column", text)
        tag = None if label is None else column_number("--label-column", label)
        read = read_tagged if labeled else read_untagged
        return read(source, word=word, tag=tag)

    def example(self, text: str, others: Sequence[str]) -> Example:
        if others:
            raise DataError(f"{text[:40]!r}: expected one text, got a pair; pass one text")
        if not text.strip():
            raise DataError("the text is empty; remove it")
        return untagged(text)

    def key(self, example: Example) -> str:
        return example.text


class Tag(Task[Example, TagAnswer], ChanceLevel, Labeled):
    """Tagging of words or entities, with a softmax or a CRF.

    The words of a column file are split into parts in the same way as raw text
    (`data.word_columns`). The first part has the tag of the word. The other parts continue its
    entity, or have the same tag if tags are not entities. The predicted tag of a word is the tag of
    its first part.

    A text that exceeds the maximum length is split into windows that overlap by a quarter of the
    length. The tag of a word is predicted in the window that has the most context around the word.
    A word without a token, such as a control character, belongs to the entity that surrounds it.
    If there is no such entity, its tag is O. If tags are not entities, it has the most frequent
    tag.
    """

    name = "tag"
    reader = TaggedTextReader()
    Options = TagOptions
    serving = Serving(TagAnswer, "Ada Lovelace was born in London.", "/ner")
    long = ("window",)

    def __init__(self, labels: Sequence[str] = (), options: Settings | None = None) -> None:
        super().__init__(labels, options)
        self.index = {label: index for index, label in enumerate(self.labels)}
        self.types = list(dict.fromkeys(label[2:] for label in self.labels if label != "O"))
        """Entity types. They have no meaning if tags are not entities."""

    @property
    def scheme(self) -> Scheme | None:
        """Tagging scheme, or None if the tags do not mark entities."""
        return SCHEMES.get(self.options.scheme)

    @property
    def metric(self) -> str:  # type: ignore[override]
        return "f1" if self.scheme else "accuracy"

    @property
    def head(self) -> str:
        return "crf" if self.options.crf else "tag"

    # ---- Creation

    @classmethod
    def from_examples(cls, train: Sequence[Example], options: Settings) -> Self:
        """Return the task with the tags of the training examples.

        If tags are entities, the labels are O and all tags that the scheme has for each entity
        type. Otherwise, the labels are the tags, the most frequent first.

        Args:
            train: Training examples.
            options: Options that the user set.

        Raises:
            DataError: If there are fewer than two tags, or they do not match the option `scheme`.
        """
        assert isinstance(options, TagOptions)
        written = [_tags_of(example) for example in train]
        scheme = scheme_of(written)
        if options.scheme is not None and (options.scheme == "none") != (scheme is None):
            actual = f"are in {scheme.name.upper()}" if scheme else "are not entities"
            raise DataError(
                f"{train[0].where}: scheme = {options.scheme!r}, but the tags {actual}; remove "
                "scheme"
            )
        if scheme is None:
            counts = Counter(tag for tags in written for tag in tags)
            labels = sorted(counts, key=lambda tag: (-counts[tag], tag))
        else:
            scheme = SCHEMES[options.scheme or ("bioes" if scheme is BIOES else "iob2")]
            labels = scheme.labels(sorted({tag[2:] for tags in written for tag in tags} - {""}))
        if len(labels) < 2:
            only = f"only one tag, {labels[0]!r}" if labels else "no words"
            raise DataError(f"{train[0].where}: {only}; add examples of at least two tags")
        name = scheme.name if scheme else "none"
        return cls(labels, msgspec.structs.replace(options, scheme=name))

    @classmethod
    def restore(cls, labels: Sequence[str], settings: Mapping[str, Any]) -> Self:
        """Return the task of a model directory.

        If `config.json` does not contain the tagging scheme, it is inferred from the labels. The
        labels are then converted to the spelling of IOB2 or BIOES.

        Args:
            labels: Labels of the model.
            settings: Content of `config.json`.
        """
        options = super().restore(labels, settings).options
        if options.scheme is None:
            labels = standard_labels(labels) or labels
            scheme = scheme_of_labels(labels)
            name = scheme.name if scheme else "none"
            if scheme is None and "O" in map(str.upper, labels):
                say(
                    f"warning: labels {', '.join(map(repr, labels[:6]))}: no supported tag scheme; "
                    "the model predicts a tag for each word, but no entities"
                )
            options = msgspec.structs.replace(options, scheme=name)
        return cls(labels, options)

    # ---- Features, targets, and loss

    def check(self, examples: Sequence[Example]) -> None:
        known = set(self.labels)
        if self.scheme:
            # Examples may use another scheme than the model. BIOES has the tags of all schemes.
            known = set(BIOES.labels(self.types))
        for example in examples:
            tags = _tags_of(example)
            if not known.issuperset(tags):
                index, tag = next((i, tag) for i, tag in enumerate(tags) if tag not in known)
                has_type = self.scheme and tag[1:2] == "-"
                kind, names = ("entity type", self.types) if has_type else ("tag", self.labels)
                name = tag[2:] if has_type else tag
                raise DataError(
                    f"{example.where_is(index)}: {kind} {name!r} is not in the training file; "
                    f"{did_you_mean(name, names)}"
                )

    def features(
        self,
        examples: Sequence[Example],
        tokenizer: Tokenizer,
        length: int,
        *,
        long: Long,
        labeled: bool,
    ) -> list[Feature]:
        """Encode the windows of each text, in order. For training, omit windows without words.

        Raises:
            DataError: If `labeled` is set and no word of any example has a token.
        """
        if labeled:
            self.check(examples)
        parts = [example.parts for example in examples]
        encodings = tokenizer.encode_batch([p.chunks for p in parts], max_length=NO_LIMIT)
        built = []
        for number, (example, encoding) in enumerate(zip(examples, encodings, strict=True)):
            encoding = parts[number].of_tokens(encoding)
            targets = self.word_targets(example, encoding) if labeled else None
            done = 0
            for window, indices in word_windows(encoding, length):
                if targets is None:
                    built.append(Feature(window, number, indices))
                elif len(indices):
                    target = targets[done : done + len(indices)]
                    built.append(Feature(window, number, indices, target))
                done += len(indices)
        if labeled and not built:
            raise DataError(
                f"{examples[0].where}: the tokenizer returns no token for any example; use a "
                "tokenizer for the language of the text"
            )
        return built

    def word_targets(self, example: Example, encoding: Encoding) -> NDArray[np.int64]:
        """Return the labels of all parts of words that have a token, and skip other parts."""
        seen = [part for part in dict.fromkeys(encoding.words) if part is not None]
        tags, parts = _tags_of(example), example.parts
        if self.scheme is None:
            tags = [tags[parts.words[part]] for part in seen]
        else:
            entities = [
                Entity(
                    bisect_left(seen, parts.of_word(start)),
                    bisect_left(seen, parts.of_word(end)),
                    kind,
                )
                for start, end, kind in spans(tags)
            ]
            tags = self.scheme.encode([e for e in entities if e.start < e.end], len(seen))
        return np.array([self.index[tag] for tag in tags], dtype=np.int64)

    def targets(self, features: Sequence[Feature]) -> Tensor:
        """Return the index of the label of each word. Shapes: returns (P,)."""
        return torch.from_numpy(np.concatenate([feature.target for feature in features]))

    @property
    def single_label(self) -> bool:  # type: ignore[override]
        return not self.options.crf

    def loss_of(self, outputs: Tensor, batch: Batch, totals: Totals, head: nn.Module) -> Loss:
        """Compute the cross-entropy, or with a CRF the negative log-likelihood, per word."""
        targets = batch.targets[self.head]
        correct = {}
        if self.options.crf:
            assert batch.token_indices is not None
            owners = batch.layout.sequence_ids.index_select(0, batch.token_indices)
            lengths = torch.unique_consecutive(owners, return_counts=True)[1].tolist()
            crf = cast(CRFTagger, head).crf
            loss = crf(*self._add_surroundings(outputs, targets, lengths)).sum()
        else:
            loss = F.cross_entropy(outputs, targets, reduction="sum")
            correct[self.head] = (outputs.argmax(-1) == targets).sum()
        loss = loss / totals[self.head]
        return Loss(loss, {self.head: loss.detach()}, correct)

    def _add_surroundings(
        self, emissions: Tensor, targets: Tensor, lengths: Sequence[int]
    ) -> tuple[Tensor, Tensor, list[int]]:
        """Add a word to the start or end of windows that begin or end inside an entity.

        The added word has a tag of the entity, and its emissions give this tag the probability 1.
        With the added word, the tag sequence of the window is valid in the scheme.
        """
        certain = torch.full((len(self.labels), len(self.labels)), -1e4, device=emissions.device)
        certain.fill_diagonal_(0.0)
        parts, tags, sizes = [], [], []
        for part, window in zip(
            emissions.split(lengths), targets.cpu().split(lengths), strict=True
        ):
            names = [self.labels[tag] for tag in window.tolist()]
            before, after = self.scheme.surroundings(names) if self.scheme else ([], [])
            first, last = ([self.index[name] for name in side] for side in (before, after))
            parts += [certain[first], part, certain[last]]
            tags += [*first, *window.tolist(), *last]
            sizes.append(len(first) + len(window) + len(last))
        return torch.cat(parts), torch.tensor(tags, device=emissions.device), sizes

    # ---- Predictions and scores

    def answers(
        self, outputs: Sequence[ExampleOutput[Example]], head: nn.Module
    ) -> list[TagAnswer]:
        """Predict the most probable tag of each word, or with `crf` the most probable sequence.

        If a tag sequence is invalid in the scheme, entities are still read from it, as in
        conlleval. The score of an entity is the mean probability of the tags of its words. With
        `crf`, the probabilities are marginal probabilities.
        """
        seen = [
            [cast(int, f.encoding.words[i]) for f in item.features for i in _indices(f).tolist()]
            for item in outputs
        ]
        lengths = [len(words) for words in seen]
        logits = np.concatenate([rows for item in outputs for rows in item.outputs])
        tags, scores = self._decode(logits, lengths, head)
        answers, done = [], 0
        for item, words in zip(outputs, seen, strict=True):
            part = slice(done, done + len(words))
            answers.append(
                self._answer(item.example, words, tags[part].tolist(), scores[part].tolist())
            )
            done += len(words)
        return answers

    def _decode(
        self, logits: Outputs, lengths: Sequence[int], head: nn.Module
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the predicted tag of each word, and its probability.

        Shapes:
            logits: (W, L); returns (W,) and (W,).
        """
        emissions = torch.from_numpy(logits)
        if not self.options.crf or not len(logits):
            best = torch.softmax(emissions, -1).max(-1)
            return best.indices.numpy(), best.values.numpy()
        # Viterbi decoding consists of many small steps, one after another, so a GPU is not faster.
        crf = copy.deepcopy(cast(CRFTagger, head).crf).cpu()
        lengths = [length for length in lengths if length]
        sequences = crf.decode(emissions, lengths)
        tags = np.concatenate(sequences)
        chunks = [size for sequence in sequences for size in crf.chunk_lengths(sequence)]
        marginals = crf.marginals(emissions, chunks).numpy()
        return tags, marginals[np.arange(len(tags)), tags]

    def _answer(
        self, example: Example, seen: list[int], tags: list[int], scores: list[float]
    ) -> TagAnswer:
        """Return the prediction for a text.

        Args:
            example: The text.
            seen: Indices of the parts of words that have a token.
            tags: Index of the predicted label of each part in `seen`.
            scores: Probability of each predicted label.
        """
        words, parts = example.words, example.parts
        last = [parts.words[end - 1] for end in parts.ends(seen)]
        owners = [parts.words[part] for part in seen]
        heads = [i for i, word in enumerate(owners) if i == 0 or word != owners[i - 1]]
        names = [self.labels[tags[i]] for i in heads]
        if self.scheme is None:
            predicted = [self.labels[0]] * len(words)
            for i, name in zip(heads, names, strict=True):
                predicted[owners[i] : last[i] + 1] = [name] * (last[i] + 1 - owners[i])
            return TagAnswer([], words, predicted)
        tagged, entities = [], []
        bounds = [*heads, len(seen)]
        for start, end, kind in spans(names):
            inside = slice(bounds[start], bounds[end])
            entity = Entity(owners[inside.start], last[inside.stop - 1] + 1, kind)
            first, after = (
                example.word_spans[entity.start][0],
                example.word_spans[entity.end - 1][1],
            )
            score = fmean(scores[inside])
            tagged.append(TaggedEntity(example.text[first:after], kind, first, after, score))
            entities.append(entity)
        return TagAnswer(tagged, words, self.scheme.encode(entities, len(words)))

    def score(self, answers: Sequence[TagAnswer], examples: Sequence[Example]) -> dict[str, float]:
        """Compute the accuracy of words and, if tags are entities, precision, recall, and F1.

        Precision, recall, and F1 are computed over entities, as in conlleval and seqeval. For the
        accuracy, the expected tags are converted to the tagging scheme of the task.
        """
        expected = [_tags_of(example) for example in examples]
        scores = {}
        if self.scheme:
            gold = [spans(tags) for tags in expected]
            scores = metrics.entities([spans(answer.tags) for answer in answers], gold)
            expected = [self.scheme.encode(g, len(t)) for g, t in zip(gold, expected, strict=True)]
        right = [
            predicted == tag
            for answer, tags in zip(answers, expected, strict=True)
            for predicted, tag in zip(answer.tags, tags, strict=True)
        ]
        return {**scores, "accuracy": sum(right) / max(len(right), 1)}

    def chance(self, examples: Sequence[Example]) -> Mapping[str, float]:
        counts = Counter(tag for example in examples for tag in _tags_of(example))
        if len(counts) < 2:
            return {}
        return {"f1": 0.0} if self.scheme else {"accuracy": max(counts.values()) / counts.total()}

    @property
    def score_names(self) -> tuple[str, ...]:
        return ("precision", "recall", "f1", "accuracy") if self.scheme else ("accuracy",)

    def labels_of(self, example: Example) -> list[str]:
        """Return the type of each entity, or all tags if they are not entities."""
        tags = _tags_of(example)
        return [kind for *_, kind in spans(tags)] if self.scheme else tags

    def label_pairs(self, answer: TagAnswer, example: Example) -> list[LabelPair]:
        """Return the expected and the predicted entity type of each span.

        The type is None if no entity with this span is expected or predicted. If tags are not
        entities, return the expected and the predicted tag of each word.
        """
        tags = _tags_of(example)
        if self.scheme is None:
            return list(zip(tags, answer.tags, strict=True))
        gold = {(start, end): kind for start, end, kind in spans(tags)}
        predicted = {(start, end): kind for start, end, kind in spans(answer.tags)}
        return [(gold.get(span), predicted.get(span)) for span in sorted({*gold, *predicted})]

    def error_record(self, answer: TagAnswer, example: Example) -> ErrorRecord:
        """Return the error record of an example.

        `severity` is the number of missed entities, plus the sum of the scores of wrong entities.
        If tags are not entities, it is the number of wrong tags.
        """
        tags = _tags_of(example)
        if self.scheme is None:
            rows = zip(answer.words, tags, answer.tags, strict=True)
            wrong = [row for row in rows if row[1] != row[2]]
            expected = " ".join(f"{word}/{tag}" for word, tag, _ in wrong)
            answered = " ".join(f"{word}/{predicted}" for word, _, predicted in wrong)
            return ErrorRecord(example.text, expected, answered, len(wrong))
        gold = {
            (example.word_spans[start][0], example.word_spans[end - 1][1], kind)
            for start, end, kind in spans(tags)
        }
        scores = {(e.start, e.end, e.type): e.score for e in answer.entities}
        severity = len(gold - scores.keys()) + sum(scores[e] for e in scores.keys() - gold)
        return ErrorRecord(
            example.text,
            ", ".join(f"{example.text[start:end]} ({kind})" for start, end, kind in sorted(gold)),
            ", ".join(f"{e.text} ({e.type} {e.score:.2f})" for e in answer.entities),
            severity,
        )


def _tags_of(example: Example) -> list[str]:
    """Return the tags of an example, or raise DataError if there is not one tag per word."""
    if example.tags is None or len(example.tags) != len(example.word_spans):
        count = "no tags" if example.tags is None else f"{len(example.tags)} tags"
        raise DataError(
            f"{example.where}: {len(example.word_spans)} words and {count}; add one tag per word"
        )
    return example.tags


def _indices(feature: Feature) -> NDArray[np.int64]:
    assert feature.token_indices is not None
    return feature.token_indices
