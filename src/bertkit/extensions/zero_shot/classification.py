"""Zero-shot classification with an NLI classifier, or with text embeddings.

Source: Yin et al. 2019, "Benchmarking Zero-shot Text Classification".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from bertkit.pipelines.base import ModelPipeline, Work, batched
from bertkit.pipelines.embed import Embed
from bertkit.synonyms import check_keywords
from bertkit.tasks.calibration import softmax
from bertkit.text.long_texts import Long

COSINE_SCALE = 20.0
"""Factor of cosine similarities before the softmax, as in the training of embedding models."""

PAIRS_PER_BATCH = 4096
"""Number of pairs of a text and a label that are computed at a time."""


class ZeroShotAnswer(msgspec.Struct, frozen=True):
    """Labels with their probabilities, the most probable first.

    The probabilities add up to 1, unless `multi_label` is set or there is only one label.
    """

    labels: list[str]
    scores: list[float]
    truncated: bool = False

    @property
    def label(self) -> str:
        """The most probable label."""
        return self.labels[0]


class ZeroShotOptions(Settings, frozen=True):
    """Options of zero-shot classification."""

    labels: tuple[Annotated[str, Meta(min_length=1, max_length=200)], ...] = ()
    """Labels to choose from, such as "sports" and "politics". Required."""
    template: str = "This example is {}."
    """Sentence about the text, in which {} is replaced by a label."""
    multi_label: bool = False
    """Whether a text can have several labels. Each label then has its own probability."""

    def __post_init__(self) -> None:
        if len(set(self.labels)) < len(self.labels):
            raise ValueError("labels must differ from each other")
        if self.template.count("{}") != 1:
            raise ValueError(f"template must contain {{}} once, got {self.template!r}")

    @property
    def hypotheses(self) -> list[str]:
        """The sentence about each label."""
        return [self.template.replace("{}", label) for label in self.labels]


class ZeroShot(ModelPipeline):
    """Classify texts with labels that are chosen at prediction time.

    A classifier that was trained on natural language inference predicts whether the text entails
    the template with each label. An embedding model compares the embeddings of the two, which is
    faster for many labels and supports one label per text only.
    """

    prediction, options = ZeroShotAnswer, ZeroShotOptions
    example = "The match ended with a penalty."

    def __init__(self, loaded: Loaded, engine: Engine | Inference = "fp32") -> None:
        super().__init__(loaded, engine)
        names = [name.lower() for name in loaded.labels]
        entailed = [index for index, name in enumerate(names) if name.startswith("entail")]
        denied = [index for index, name in enumerate(names) if name.startswith(("contra", "not"))]
        self.embed: Embed | None = None
        if "classify" in loaded.model.heads:
            if len(entailed) != 1 or len(denied) != 1:
                raise CheckpointError(
                    f"{loaded.folder}: zero-shot classification requires one label that starts "
                    f"with 'entail' and one that starts with 'contra' or 'not', got "
                    f"{', '.join(map(repr, loaded.labels))}; use a model that was trained on NLI"
                )
            self.head = self._get_head("classify", "use a model that was trained on NLI")
            self.entailment, self.contradiction = entailed[0], denied[0]
        elif loaded.pooling is not None:
            self.embed = Embed(loaded, self.engine, normalize=True)
        else:
            raise CheckpointError(
                f"{loaded.folder}: neither a classifier nor an embedding model; use a model that "
                "was trained on NLI, or an embedding model"
            )

    @check_keywords
    def __call__(
        self,
        texts: str | Sequence[str],
        labels: Sequence[str],
        *,
        template: str = ZeroShotOptions().template,
        multi_label: bool = False,
        long: Long = "truncate",
    ) -> ZeroShotAnswer | list[ZeroShotAnswer]:
        """Return the labels of a text with their probabilities, or a list for several texts.

        Args:
            texts: A text, or several texts.
            labels: Labels to choose from.
            template: Sentence about the text, in which {} is replaced by a label.
            multi_label: Whether a text can have several labels.
            long: Policy for texts that exceed the maximum length of the model.

        Raises:
            ConfigError: If there are no labels, or an option is not valid.
            DataError: If a text is too long and `long` is "error".
        """
        size = max(1, PAIRS_PER_BATCH // max(1, len(labels)))
        options: dict[str, Any] = {"template": template, "multi_label": multi_label, "long": long}
        answers = [
            answer
            for part in batched(as_list(texts), size)
            for answer in self.run(self.prepare(part, labels=labels, **options))
        ]
        return answers[0] if isinstance(texts, str) else answers

    def prepare(
        self,
        texts: Sequence[str],
        *,
        labels: Sequence[str] = (),
        template: str = ZeroShotOptions().template,
        multi_label: bool = False,
        long: Long = "truncate",
    ) -> list[Work]:
        """Encode each text, with each label if the model is an NLI classifier.

        Raises:
            ConfigError: If there are no labels, or an option is not valid.
            DataError: If a text is too long and `long` is "error".
        """
        options = decode(
            ZeroShotOptions, {"labels": labels, "template": template, "multi_label": multi_label}
        )
        if not options.labels:
            raise ConfigError("labels: none given; pass the labels to choose from")
        if self.embed is not None:
            if multi_label or len(options.labels) == 1:
                raise ConfigError("multi_label or a single label requires an NLI model")
            return [Work(work.features, options) for work in self.embed.prepare(texts, long=long)]
        count = len(options.labels)
        firsts = [text for text in texts for _ in range(count)]
        works = batched(self._encode(firsts, options.hypotheses * len(texts), long), count)
        return [Work([f for work in group for f in work.features], options) for group in works]

    def run(self, works: Sequence[Work]) -> list[ZeroShotAnswer]:
        """Return the labels of each text with their probabilities."""
        score = self._entailments if self.embed is None else self._similarities
        scores = score(works)
        return [_answer(work, values) for work, values in zip(works, scores, strict=True)]

    def _entailments(self, works: Sequence[Work]) -> Iterator[NDArray[np.float32]]:
        """Compute the probabilities of the labels of each text from the logits of NLI."""
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
        """Compute the probabilities of the labels of each text from cosine similarities."""
        assert self.embed is not None
        texts = self.embed.run(works)
        hypotheses = dict.fromkeys(h for work in works for h in work.item.hypotheses)
        vectors = dict(zip(hypotheses, self.embed([*hypotheses], long="truncate"), strict=True))
        for text, work in zip(texts, works, strict=True):
            rows = np.stack([vectors[hypothesis] for hypothesis in work.item.hypotheses])
            yield softmax(COSINE_SCALE * (rows @ text)[None])[0]


def _answer(work: Work, scores: NDArray[np.float32]) -> ZeroShotAnswer:
    """Return the labels with their probabilities, the most probable first."""
    order = np.argsort(-scores, kind="stable")
    labels = [work.item.labels[index] for index in order]
    return ZeroShotAnswer(labels, scores[order].tolist(), work.truncated)
