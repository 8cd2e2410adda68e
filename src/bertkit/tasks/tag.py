"""A tag for each word: entities, or parts of speech. Devlin et al. 2019, section 5.3."""

from __future__ import annotations

import copy
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
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
from bertkit.data.row_readers import Source, has_records
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
    """How tags are written and chosen."""

    crf: bool = False
    """Whether a CRF scores whole sequences of tags, and forbids those that break the scheme. Its
    scores of neighboring tags begin at 0, learn at 100 times the learning rate, and do not decay.
    """
    scheme: Literal["iob2", "bioes", "none"] | None = None
    """How the model's tags mark entities, whatever the files do; as the training file by default,
    IOB1 becoming IOB2. none: tags that mark no entities, such as parts of speech."""


class TaggedEntity(msgspec.Struct, frozen=True):
    """An entity of a text, and how sure the model is of its tags.

    Units: [start, end) characters of the text.
    """

    text: str
    type: str
    start: int
    end: int
    score: float


class TagAnswer(msgspec.Struct, frozen=True):
    """The entities of a text, none where tags mark none, and a tag for each of its words.

    The tags are those of the entities, so they never break the scheme.
    """

    entities: list[TaggedEntity]
    words: list[str]
    tags: list[str]


class TaggedTextReader(Reader[Example]):
    """Texts with tags, from columns of words or .jsonl rows."""

    def read(
        self, source: Source, reading: Reading, *, labelled: bool
    ) -> tuple[list[Example], str]:
        """Read spans of characters from .jsonl, and columns from any other file."""
        for name, option in reading.options().items():
            if name not in ("text_column", "label_column"):
                raise ConfigError(f"{option}: files of tagged words have none; leave it out")
            if has_records(source):
                raise ConfigError(
                    f"{option}: rows of .jsonl hold 'text' and 'entities', always; leave it out"
                )
        text, label = reading.text_column, reading.label_column
        word = 0 if text is None else column_number("--text-column", text)
        tag = None if label is None else column_number("--label-column", label)
        read = read_tagged if labelled else read_untagged
        return read(source, word=word, tag=tag)

    def example(self, text: str, others: Sequence[str]) -> Example:
        if others:
            raise DataError(f"{text[:40]!r}: a text is tagged alone; give one text")
        if not text.strip():
            raise DataError("a text is empty: there is nothing to tag; leave it out")
        return untagged(text)

    def key(self, example: Example) -> str:
        return example.text


class Tag(Task[Example, TagAnswer], ChanceLevel, Labeled):
    """Tagging of words or entities, with a softmax or a CRF.

    Words of columns are split like raw text (`data.word_columns`): the first part has the word's
    tag, and the other parts continue the entity, or repeat a tag that marks no entity. A
    predicted tag of a word is the tag of its first part.
    A text longer than the model is read in windows that overlap by a quarter; a word belongs to
    the window that shows most around it. A word without any piece, such as a control character,
    is part of an entity that surrounds it, else O; where tags mark no entities it gets the
    commonest.
    """

    name = "tag"
    reader = TaggedTextReader()
    Options = TagOptions
    serving = Serving(TagAnswer, "Ada Lovelace was born in London.", "/ner")
    long = ("window",)

    def __init__(self, labels: Sequence[str] = (), options: Settings | None = None) -> None:
        super().__init__(labels, options)
        self.index = {label: place for place, label in enumerate(self.labels)}
        self.types = list(dict.fromkeys(label[2:] for label in self.labels if label != "O"))
        """Of entities; meaningless where there is no scheme."""

    @property
    def scheme(self) -> Scheme | None:
        """None where tags mark no entities."""
        return SCHEMES.get(self.options.scheme)

    @property
    def metric(self) -> str:  # type: ignore[override]
        return "f1" if self.scheme else "accuracy"

    @property
    def head(self) -> str:
        return "crf" if self.options.crf else "tag"

    # ---- what it is made from

    @classmethod
    def from_examples(cls, train: Sequence[Example], options: Settings) -> Self:
        """The tags of the training examples: of each entity type all that the scheme has.

        O stands first, then type by type; tags without a scheme stand commonest first.
        Raises: DataError for fewer than two tags, or a scheme that they do not follow.
        """
        assert isinstance(options, TagOptions)
        written = [_tags(example) for example in train]
        scheme = scheme_of(written)
        if options.scheme is not None and (options.scheme == "none") != (scheme is None):
            follow = f"follow {scheme.name.upper()}" if scheme else "mark no entities"
            raise DataError(
                f"{train[0].where}: scheme is {options.scheme!r}, and the tags {follow}; leave "
                "it out"
            )
        if scheme is None:
            counts = Counter(tag for tags in written for tag in tags)
            labels = sorted(counts, key=lambda tag: (-counts[tag], tag))
        else:
            scheme = SCHEMES[options.scheme or ("bioes" if scheme is BIOES else "iob2")]
            labels = scheme.labels(sorted({tag[2:] for tags in written for tag in tags} - {""}))
        if len(labels) < 2:
            only = f"only one tag, {labels[0]!r}" if labels else "no words"
            raise DataError(f"{train[0].where}: {only}: there is nothing to learn")
        name = scheme.name if scheme else "none"
        return cls(labels, msgspec.structs.replace(options, scheme=name))

    @classmethod
    def restore(cls, labels: Sequence[str], settings: Mapping[str, Any]) -> Self:
        """Restore the task; if `config.json` has no scheme, infer it from the labels.

        The labels are written as in IOB2 or BIOES.
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

    # ---- what the model reads and learns

    def check(self, examples: Sequence[Example]) -> None:
        known = set(self.labels)
        if self.scheme:
            known = set(BIOES.labels(self.types))  # of all schemes: examples may follow another
        for example in examples:
            tags = _tags(example)
            if not known.issuperset(tags):
                place, tag = next((i, tag) for i, tag in enumerate(tags) if tag not in known)
                typed = self.scheme and tag[1:2] == "-"
                what, names = ("entity type", self.types) if typed else ("tag", self.labels)
                name = tag[2:] if typed else tag
                raise DataError(
                    f"{example.where_is(place)}: {what} {name!r} is not in the training file; "
                    f"{did_you_mean(name, names)}"
                )

    def features(
        self,
        examples: Sequence[Example],
        tokenizer: Tokenizer,
        length: int,
        *,
        long: Long,
        labelled: bool,
    ) -> list[Feature]:
        """Windows in order; to learn from, only those with words.

        Raises: DataError when `labelled`, and no word of any example has a piece.
        """
        if labelled:
            self.check(examples)
        parts = [example.parts for example in examples]
        encodings = tokenizer.encode_batch([p.chunks for p in parts], max_length=NO_LIMIT)
        built = []
        for number, (example, encoding) in enumerate(zip(examples, encodings, strict=True)):
            encoding = parts[number].of_tokens(encoding)
            wanted = self.word_targets(example, encoding) if labelled else None
            done = 0
            for window, places in word_windows(encoding, length):
                if wanted is None:
                    built.append(Feature(window, number, places))
                elif len(places):
                    target = wanted[done : done + len(places)]
                    built.append(Feature(window, number, places, target))
                done += len(places)
        if labelled and not built:
            raise DataError(
                f"{examples[0].where}: the tokenizer knows no piece of any word, here or in the "
                "other examples; is it the right one?"
            )
        return built

    def word_targets(self, example: Example, encoding: Encoding) -> NDArray[np.int64]:
        """Return the labels of the parts that have a token; entities may lose other parts."""
        seen = [part for part in dict.fromkeys(encoding.words) if part is not None]
        tags, parts = _tags(example), example.parts
        if self.scheme is None:
            tags = [tags[parts.words[part]] for part in seen]
        else:
            shrunk = [
                Entity(
                    bisect_left(seen, parts.of_word(start)),
                    bisect_left(seen, parts.of_word(end)),
                    kind,
                )
                for start, end, kind in spans(tags)
            ]
            tags = self.scheme.encode([e for e in shrunk if e.start < e.end], len(seen))
        return np.array([self.index[tag] for tag in tags], dtype=np.int64)

    def targets(self, features: Sequence[Feature]) -> Tensor:
        """Shapes: (P,)."""
        return torch.from_numpy(np.concatenate([feature.target for feature in features]))

    @property
    def single_label(self) -> bool:  # type: ignore[override]
        return not self.options.crf

    def loss_of(self, outputs: Tensor, batch: Batch, totals: Totals, head: nn.Module) -> Loss:
        """Cross-entropy, or with a CRF the negative log-likelihood, a word's share of the step."""
        targets = batch.targets[self.head]
        correct = {}
        if self.options.crf:
            assert batch.token_indices is not None
            owner = batch.layout.sequence_ids.index_select(0, batch.token_indices)
            lengths = torch.unique_consecutive(owner, return_counts=True)[1].tolist()
            crf = cast(CRFTagger, head).crf
            loss = crf(*self._with_surroundings(outputs, targets, lengths)).sum()
        else:
            loss = F.cross_entropy(outputs, targets, reduction="sum")
            correct[self.head] = (outputs.argmax(-1) == targets).sum()
        loss = loss / totals[self.head]
        return Loss(loss, {self.head: loss.detach()}, correct)

    def _with_surroundings(
        self, emissions: Tensor, targets: Tensor, lengths: Sequence[int]
    ) -> tuple[Tensor, Tensor, list[int]]:
        """The words of windows; where one begins or ends within an entity, a word more.

        The tag of that word is certain, so that the window is scored given that the entity is
        open, and never for a tag that cannot stand there.
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

    # ---- what it answers

    def answers(
        self, outputs: Sequence[ExampleOutput[Example]], head: nn.Module
    ) -> list[TagAnswer]:
        """The likeliest tag of each word, read leniently, or the likeliest sequence (`crf`).

        An entity's score is the mean probability of its words' tags; those of a CRF are marginal.
        """
        seen = [
            [cast(int, f.encoding.words[p]) for f in item.features for p in _places(f).tolist()]
            for item in outputs
        ]
        lengths = [len(words) for words in seen]
        logits = np.concatenate([rows for item in outputs for rows in item.outputs])
        tags, scores = self._decode(logits, lengths, head)
        answers, done = [], 0
        for item, words in zip(outputs, seen, strict=True):
            own = slice(done, done + len(words))
            answers.append(
                self._answer(item.example, words, tags[own].tolist(), scores[own].tolist())
            )
            done += len(words)
        return answers

    def _decode(
        self, logits: Outputs, lengths: Sequence[int], head: nn.Module
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The tag of each word, and its probability. Shapes: (W, L) -> (W,), (W,)."""
        emissions = torch.from_numpy(logits)
        if not self.options.crf or not len(logits):
            best = torch.softmax(emissions, -1).max(-1)
            return best.indices.numpy(), best.values.numpy()
        crf = copy.deepcopy(cast(CRFTagger, head).crf).cpu()  # many small steps: no device helps
        lengths = [length for length in lengths if length]
        sequences = crf.decode(emissions, lengths)
        tags = np.concatenate(sequences)
        pieces = [size for sequence in sequences for size in crf.pieces(sequence)]
        marginals = crf.marginals(emissions, pieces).numpy()
        return tags, marginals[np.arange(len(tags)), tags]

    def _answer(
        self, example: Example, seen: list[int], tags: list[int], scores: list[float]
    ) -> TagAnswer:
        """Return the prediction for a text.

        Args:
            example: The text.
            seen: Indices of the parts with a token; they may lack some.
            tags: The label of each part in `seen`.
            scores: The probability of each label.
        """
        words, parts = example.words, example.parts
        last = [parts.words[end - 1] for end in parts.ends(seen)]
        owners = [parts.words[part] for part in seen]
        heads = [i for i, word in enumerate(owners) if i == 0 or word != owners[i - 1]]
        names = [self.labels[tags[i]] for i in heads]
        if self.scheme is None:
            given = [self.labels[0]] * len(words)
            for i, name in zip(heads, names, strict=True):
                given[owners[i] : last[i] + 1] = [name] * (last[i] + 1 - owners[i])
            return TagAnswer([], words, given)
        entities, whole = [], []
        bounds = [*heads, len(seen)]
        for start, end, kind in spans(names):
            inside = slice(bounds[start], bounds[end])
            entity = Entity(owners[inside.start], last[inside.stop - 1] + 1, kind)
            first, after = (
                example.word_spans[entity.start][0],
                example.word_spans[entity.end - 1][1],
            )
            score = fmean(scores[inside])
            entities.append(TaggedEntity(example.text[first:after], kind, first, after, score))
            whole.append(entity)
        return TagAnswer(entities, words, self.scheme.encode(whole, len(words)))

    def score(self, answers: Sequence[TagAnswer], examples: Sequence[Example]) -> dict[str, float]:
        """precision, recall and F1 over entities, as conlleval and seqeval count; and accuracy
        over words, in the task's scheme. Without a scheme accuracy alone.
        """
        wanted = [_tags(example) for example in examples]
        scores = {}
        if self.scheme:
            gold = [spans(tags) for tags in wanted]
            scores = metrics.entities([spans(answer.tags) for answer in answers], gold)
            wanted = [self.scheme.encode(g, len(t)) for g, t in zip(gold, wanted, strict=True)]
        right = [
            given == tag
            for answer, tags in zip(answers, wanted, strict=True)
            for given, tag in zip(answer.tags, tags, strict=True)
        ]
        return {**scores, "accuracy": sum(right) / max(len(right), 1)}

    def chance(self, examples: Sequence[Example]) -> Mapping[str, float]:
        counts = Counter(tag for example in examples for tag in _tags(example))
        if len(counts) < 2:
            return {}
        return {"f1": 0.0} if self.scheme else {"accuracy": max(counts.values()) / counts.total()}

    @property
    def score_names(self) -> tuple[str, ...]:
        return ("precision", "recall", "f1", "accuracy") if self.scheme else ("accuracy",)

    def label_pairs(self, answer: TagAnswer, example: Example) -> list[LabelPair]:
        """The types of each entity; None where nothing has the same ends. Without a scheme the tags
        of each word.
        """
        tags = _tags(example)
        if self.scheme is None:
            return list(zip(tags, answer.tags, strict=True))
        gold = {(start, end): kind for start, end, kind in spans(tags)}
        given = {(start, end): kind for start, end, kind in spans(answer.tags)}
        return [(gold.get(ends), given.get(ends)) for ends in sorted({*gold, *given})]

    def error_record(self, answer: TagAnswer, example: Example) -> ErrorRecord:
        """Entities that are missing count 1, wrong ones their score; or words with a wrong tag."""
        tags = _tags(example)
        if self.scheme is None:
            each = zip(answer.words, tags, answer.tags, strict=True)
            wrong = [row for row in each if row[1] != row[2]]
            expected = " ".join(f"{word}/{tag}" for word, tag, _ in wrong)
            answered = " ".join(f"{word}/{given}" for word, _, given in wrong)
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


def _tags(example: Example) -> list[str]:
    """Raises: DataError when there is not one for each word."""
    if example.tags is None or len(example.tags) != len(example.word_spans):
        held = "no tags" if example.tags is None else f"{len(example.tags)} tags"
        raise DataError(
            f"{example.where}: {len(example.word_spans)} words and {held}; give one to each"
        )
    return example.tags


def _places(feature: Feature) -> NDArray[np.int64]:
    assert feature.token_indices is not None
    return feature.token_indices
