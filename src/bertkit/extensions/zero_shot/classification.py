"""Zero-shot classification of texts, with an NLI classifier or an embedding model.

Source: Yin et al. 2019, "Benchmarking Zero-shot Text Classification".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from bertkit.checkpoint.directory import Loaded
from bertkit.config import Settings, decode
from bertkit.data.rows_in_memory import as_list
from bertkit.engine.engine import Engine
from bertkit.errors import CheckpointError, ConfigError
from bertkit.nn.precision import Inference
from bertkit.pipelines.base import ModelPipeline
from bertkit.pipelines.embed import Embed
from bertkit.synonyms import check_names
from bertkit.tasks.calibration import softmax
from bertkit.tasks.inference import Work, batched
from bertkit.text.long_texts import Long

COSINE_SCALE = 20.0
"""Factor by which cosine similarities are multiplied before the softmax, as when embedding models
are trained."""

CHARACTERS_PER_TOKEN = 4
"""Estimated number of characters per token in a hypothesis."""

PAIRS_PER_BATCH = 4096
"""Number of pairs of a text and a label to compute at a time."""


class ZeroShotAnswer(msgspec.Struct, frozen=True):
    """The labels and their probabilities, with the most probable label first.

    The probabilities add up to 1, unless `multi_label` is true or there is only one label.
    """

    labels: list[str]
    scores: list[float]
    truncated: bool = False


class ZeroShotOptions(Settings, frozen=True):
    """Options of zero-shot classification, named as in transformers."""

    candidate_labels: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=200)], ...], Meta(max_length=1_000)
    ] = ()
    """Labels to choose from, such as "sports" and "politics". At least one is required, and at most
    1,000 are allowed."""
    hypothesis_template: Annotated[str, Meta(max_length=300)] = "This example is {}."
    """Sentence about the text, in which {} is replaced with a label."""
    multi_label: bool = False
    """Whether a text can have several labels. Each label then has its own probability."""

    def __post_init__(self) -> None:
        if len(set(self.candidate_labels)) < len(self.candidate_labels):
            raise ValueError("candidate_labels must not contain a label twice")
        if self.hypothesis_template.count("{}") != 1:
            template = self.hypothesis_template
            raise ValueError(f"hypothesis_template must contain {{}} once, got {template!r}")

    @property
    def hypotheses(self) -> list[str]:
        """The hypothesis for each label."""
        return [self.hypothesis_template.replace("{}", label) for label in self.candidate_labels]


class ZeroShot(ModelPipeline):
    """Classify texts with labels that are chosen at prediction time.

    A classifier that was trained on natural language inference (NLI) predicts whether the text
    entails the hypothesis, which is the template with a label. With an embedding model, the
    embeddings of the text and the hypothesis are compared. This is faster if there are many labels,
    but supports only one label per text.

    Args:
        loaded: The model.
        engine: Engine of the model, or the precision of a new engine.
        candidate_labels: Default labels for calls; see `ZeroShotOptions`.
        hypothesis_template: Default template for calls.
        multi_label: Default of this option for calls.
    """

    prediction, options = ZeroShotAnswer, ZeroShotOptions
    example = "The match ended with a penalty."

    def __init__(
        self,
        loaded: Loaded,
        engine: Engine | Inference = "fp32",
        *,
        candidate_labels: str | Sequence[str] = (),
        hypothesis_template: str = ZeroShotOptions().hypothesis_template,
        multi_label: bool = False,
    ) -> None:
        super().__init__(loaded, engine)
        self.given = {"candidate_labels": candidate_labels, "multi_label": multi_label}
        self.given |= {"hypothesis_template": hypothesis_template}
        names = [name.lower() for name in loaded.labels]
        entailed = [index for index, name in enumerate(names) if name.startswith("entail")]
        denied = [index for index, name in enumerate(names) if name.startswith(("contra", "not"))]
        self.embed: Embed | None = None
        if "classify" in loaded.model.heads:
            if len(entailed) != 1 or len(denied) != 1:
                raise CheckpointError(
                    f"{loaded.folder}: zero-shot classification requires a model with one label "
                    "that starts with 'entail' and one that starts with 'contra' or 'not', got "
                    f"{', '.join(map(repr, loaded.labels))}; use a model that was trained on NLI"
                )
            self.head = self._get_head("classify", "use a model that was trained on NLI")
            self.entailment, self.contradiction = entailed[0], denied[0]
        elif loaded.pooling is not None:
            self.embed = Embed(loaded, self.engine, normalize=True)
        else:
            raise CheckpointError(
                f"{loaded.folder}: the model is neither a classifier nor an embedding model; use "
                "a model that was trained on NLI, or an embedding model"
            )

    def __call__(
        self,
        sequences: str | Sequence[str],
        candidate_labels: str | Sequence[str] | None = None,
        *,
        long: Long = "truncate",
        batch_size: int | None = None,
        **options: Any,
    ) -> Any:
        """Classify texts, with the same arguments and results as in transformers.

        Args:
            sequences: A text, or several texts.
            candidate_labels: Labels to choose from, as a list or as a string with commas.
            long: What to do with texts that exceed the maximum length of the model.
            batch_size: This has no effect, because bertkit chooses batches by the number of tokens.
            options: The options hypothesis_template and multi_label; see `ZeroShotOptions`.

        Returns:
            A dict with the keys sequence, labels, and scores. For several texts, a list of such
            dicts. The most probable label comes first.

        Raises:
            ConfigError: If there are no labels, or an option is invalid.
            DataError: If a text is too long and `long` is "error".
        """
        check_names("ZeroShot", options, ZeroShotOptions.__struct_fields__)
        options = {**self.given, **options}
        if candidate_labels is not None:
            options["candidate_labels"] = candidate_labels
        checked = _checked(options)
        results = [
            {"sequence": text, "labels": answer.labels, "scores": answer.scores}
            for part in batched(as_list(sequences), PAIRS_PER_BATCH // len(checked.hypotheses) or 1)
            for text, answer in zip(part, self.run(self._works(part, checked, long)), strict=True)
        ]
        return results[0] if isinstance(sequences, str) else results

    def sequences_per_item(self, **options: Any) -> int:
        return len(_checked(options).candidate_labels) if self.embed is None else 1

    def prepare(
        self, texts: Sequence[str], *, long: Long = "truncate", **options: Any
    ) -> list[Work]:
        """Encode each text. If the model is an NLI classifier, pair each text with each label.

        Args:
            texts: The texts.
            long: What to do with texts that exceed the maximum length of the model.
            options: Fields of `ZeroShotOptions`.

        Raises:
            ConfigError: If there are no labels, or an option is invalid.
            DataError: If a text is too long and `long` is "error".
        """
        return self._works(texts, _checked(options), long)

    def _works(self, texts: Sequence[str], options: ZeroShotOptions, long: Long) -> list[Work]:
        if self.embed is not None:
            if options.multi_label or len(options.candidate_labels) == 1:
                raise ConfigError("multi_label or a single label requires an NLI model")
            texts_only = self.embed.prepare(texts, long=long)
            # `run` also computes the embeddings of the hypotheses, so add their cost.
            more = sum(map(len, options.hypotheses)) // CHARACTERS_PER_TOKEN // max(1, len(texts))
            return [Work(work.features, options, more) for work in texts_only]
        count = len(options.candidate_labels)
        firsts = [text for text in texts for _ in range(count)]
        works = batched(self._encode(firsts, options.hypotheses * len(texts), long), count)
        return [Work([f for work in group for f in work.features], options) for group in works]

    def run(self, works: Sequence[Work]) -> list[ZeroShotAnswer]:
        """Return the labels for each text with their probabilities."""
        score = self._entailments if self.embed is None else self._similarities
        scores = score(works)
        return [_answer(work, values) for work, values in zip(works, scores, strict=True)]

    def _entailments(self, works: Sequence[Work]) -> Iterator[NDArray[np.float32]]:
        """Compute the probabilities of the labels for each text from NLI logits."""
        pairs = [Work([feature]) for work in works for feature in work.features]
        logits = self._compute(pairs, self.head)
        start = 0
        for work in works:
            rows = logits[start : start + len(work.features)]
            start += len(rows)
            if work.item.multi_label or len(rows) == 1:
                yield softmax(rows[:, [self.contradiction, self.entailment]])[:, 1]
            else:
                yield softmax(rows[None, :, self.entailment])[0]

    def _similarities(self, works: Sequence[Work]) -> Iterator[NDArray[np.float32]]:
        """Compute the probabilities of the labels for each text from cosine similarities."""
        assert self.embed is not None
        texts = self.embed.run(works)
        hypotheses = dict.fromkeys(h for work in works for h in work.item.hypotheses)
        vectors = dict(zip(hypotheses, self.embed([*hypotheses], long="truncate"), strict=True))
        for text, work in zip(texts, works, strict=True):
            rows = np.stack([vectors[hypothesis] for hypothesis in work.item.hypotheses])
            yield softmax(COSINE_SCALE * (rows @ text)[None])[0]


def _checked(values: Mapping[str, Any]) -> ZeroShotOptions:
    """Check options, whose labels can be a list or a string with commas, and return them.

    Raises:
        ConfigError: If there are no labels, or an option is invalid.
    """
    labels = values.get("candidate_labels")
    if isinstance(labels, str):
        names = [name.strip() for name in labels.split(",")]
        values = {**values, "candidate_labels": [name for name in names if name]}
    options = decode(ZeroShotOptions, values)
    if not options.candidate_labels:
        raise ConfigError("candidate_labels: there are no labels; pass the labels to choose from")
    return options


def _answer(work: Work, scores: NDArray[np.float32]) -> ZeroShotAnswer:
    """Return the labels and their probabilities, with the most probable label first."""
    order = np.argsort(-scores, kind="stable")
    labels = [work.item.candidate_labels[index] for index in order]
    return ZeroShotAnswer(labels, scores[order].tolist(), work.truncated)
