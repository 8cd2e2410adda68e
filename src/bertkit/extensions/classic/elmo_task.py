"""What a task has learned on top of a frozen ELMo, in the folder of that ELMo.

Beside options.json and weights.hdf5 stand `task.json`: which task, its labels and the shape of the
network; `task.safetensors`: the network's weights and those of the ELMo's layers; and vectors.txt,
or .txt.gz, where the network reads word vectors, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from bertkit import tasks
from bertkit.checkpoint.run_directory import SCORES
from bertkit.checkpoint.weights import read_file, write_tensors
from bertkit.config import Count, Rate, Settings, decode, plain
from bertkit.data.tagged_text import TaggedText, untagged
from bertkit.engine.engine import Engine
from bertkit.errors import CheckpointError, ConfigError, DataError
from bertkit.extensions.classic.elmo_files import OPTIONS, WEIGHTS, only_file
from bertkit.extensions.classic.feature_classifier import Features, MeanHead, WordHead
from bertkit.extensions.classic.words import Words, whole_words
from bertkit.models.model import Model
from bertkit.models.transformer import Transformer
from bertkit.pipelines.base import Work
from bertkit.pipelines.task import TaskPipeline
from bertkit.progress import progress
from bertkit.storage import link_or_copy, new_folder, read_json, write_json
from bertkit.tasks.classify import Classify
from bertkit.tasks.tag import Tag
from bertkit.tasks.task import Feature, Item, Reading, Task, by_example
from bertkit.tasks.trained_columns import columns_in, with_columns
from bertkit.text.encoding import Encoding
from bertkit.text.long_texts import Long
from bertkit.text.word_vectors import Vectors

RECORD, NETWORK = "task.json", "task.safetensors"
VECTORS = "vectors.txt", "vectors.txt.gz"
"""Of the file of word vectors, where there is one."""

OF_ELMO = ("tag", "classify")
"""The tasks that can be learned so."""


class Network(Settings, frozen=True):
    """The network on top: a BiLSTM, and a head."""

    width: Count = 128
    """Hidden size of the BiLSTM in each direction."""
    layers: Count = 1
    """Number of layers of the BiLSTM."""
    dropout: Rate = 0.5
    """Dropout before, within and after the BiLSTM."""


class TaskRecord(Settings, frozen=True):
    """What `task.json` says."""

    settings: dict[str, Any]
    """Those of the task, as a config.json has them."""
    labels: list[str]
    network: Network
    mixture: dict[str, float]
    """The weight of each layer, which add up to 1, and what their sum is multiplied by."""


def new_network(
    task: Task[Any, Any],
    states: Tensor,
    shape: Network,
    learned: int = 0,
    beside: Tensor | None = None,
) -> tuple[Features, nn.Module]:
    """A network with fresh weights: the weighted sum of all layers (J, W, D), with word vectors
    `beside` (W, D') where there are some, under a BiLSTM; and the head of the task.

    Layers differ in scale and have a large mean in common, by which a small network learns little:
    all are standardized over the first `learned` words, those that are learned from.
    """
    features = Features(
        states,
        range(len(states)),
        "mix",
        width=shape.width,
        layers=shape.layers,
        dropout=shape.dropout,
        beside=beside,
    )
    features.standardize(states[:, :learned])
    inputs = 2 * shape.width
    if task.name == "tag":
        return features, WordHead(inputs, task.labels, crf=task.head == "crf")
    return features, MeanHead(inputs, len(task.labels))


def save_elmo_task(
    out: Path,
    elmo: Path,
    task: Task[Any, Any],
    features: Features,
    head: nn.Module,
    shape: Network,
    scores: Mapping[str, Any],
    vectors: Path | None = None,
    reading: Reading | None = None,
) -> None:
    """Write the folder, whole or not at all; `scores` are told beside. `vectors` is the file of the
    word vectors that the network reads, `reading` the columns that were named."""
    record = TaskRecord(
        settings=with_columns(task.settings(), reading or Reading()),
        labels=list(task.labels),
        network=shape,
        mixture=features.mixture(features.rows),
    )
    with new_folder(out) as place:
        for pattern in (OPTIONS, WEIGHTS):
            link_or_copy(only_file(elmo, pattern), place / pattern.removeprefix("*"))
        if vectors is not None:
            link_or_copy(vectors, place / VECTORS[vectors.suffix == ".gz"])
        write_json(place / RECORD, plain(record))
        write_tensors(place / NETWORK, _weights(features, head))
        write_json(place / SCORES, scores)


def _weights(features: Features, head: nn.Module) -> dict[str, Tensor]:
    return {
        f"{name}.{key}": weight
        for name, module in (("features", features), ("head", head))
        for key, weight in module.state_dict().items()
    }


def read_record(folder: Path) -> TaskRecord:
    """Raises: CheckpointError for one that is damaged."""
    remedy = "learn it again in another --out"
    record = read_json(folder / RECORD, CheckpointError, remedy)
    try:
        return decode(TaskRecord, record)
    except ConfigError as error:
        raise CheckpointError(f"{folder / RECORD}: damaged ({error}); {remedy}") from None


def load_vectors(folder: Path) -> Vectors | None:
    """The word vectors of a folder that has some. Raises: DataError naming the line."""
    for name in VECTORS:
        if (folder / name).is_file():
            return Vectors.load(folder / name)
    return None


def load_elmo_task(
    folder: Path, layers: int, hidden: int, vectors: Vectors | None
) -> tuple[Task[Any, Any], Features, nn.Module]:
    """The task, and its network without states, to be given before it is asked.

    Raises: CheckpointError for files that do not belong together.
    """
    record = read_record(folder)
    name = tasks.recorded(record.settings)
    if name not in OF_ELMO:
        raise CheckpointError(f"{folder / RECORD}: names no task of {OF_ELMO}; learn it again")
    task = tasks.find(name).restore(record.labels, record.settings)
    beside = None if vectors is None else vectors_beside(vectors, [])
    nothing = torch.zeros(layers + 1, 0, hidden)
    features, head = new_network(task, nothing, record.network, beside=beside)
    weights, _ = read_file(folder / NETWORK, "learn it again in another --out")
    for name, module in (("features", features), ("head", head)):
        own = {
            k.removeprefix(f"{name}."): w for k, w in weights.items() if k.startswith(f"{name}.")
        }
        try:
            module.load_state_dict(own)
        except RuntimeError as error:
            reason = str(error).splitlines()[-1].strip()
            raise CheckpointError(
                f"{folder / NETWORK}: does not fit {RECORD} and the ELMo ({reason}); learn it again"
            ) from None
    return task, features.eval(), head.eval()


# ---- what is read


def word_features(
    words: Words, task: Task[Any, Any], examples: Sequence[Any], *, labelled: bool
) -> list[Feature]:
    """The words of each example as an ELMo reads them: a sequence for each, between its marks.

    Raises: DataError for a text without words, or a pair.
    """
    for example in examples:
        if getattr(example, "pair", None) is not None:
            raise DataError(f"{example.where}: a pair, and an ELMo labels single texts; give one")
    built = []
    for number, split in enumerate(words.split(example_words(examples))):
        encoding = whole_words(words.ids(split))
        target = _target(task, examples[number], encoding) if labelled else None
        built.append(Feature(encoding, number, np.arange(1, len(split) + 1), target))
    return built


def example_words(examples: Sequence[Any]) -> list[list[str]]:
    """Return the words of each example, split like raw text."""
    texts = (one if isinstance(one, TaggedText) else untagged(one.text) for one in examples)
    return [[one.text[start:end] for start, end in one.parts.spans] for one in texts]


def vectors_beside(vectors: Vectors, examples: Sequence[Any]) -> Tensor:
    """The vectors of all words, one example after another, in fp16. Shapes: (W, D')."""
    every = [word for words in example_words(examples) for word in words]
    return torch.from_numpy(vectors.scaled(every)).half()


def _target(task: Task[Any, Any], example: Any, encoding: Encoding) -> Any:
    if isinstance(task, Tag):
        return task.word_targets(example, encoding)
    assert isinstance(task, Classify)
    return task.target(example)


def read_states(words: Words, features: Sequence[Feature], *, watched: bool = True) -> Tensor:
    """The states of all layers at all words, one feature after another, in fp16.

    Shapes: (J, W, D).
    """
    config = words.model.config
    starts = np.cumsum([0, *(len(feature.encoding) - 2 for feature in features)])
    states = torch.empty(config.layers + 1, int(starts[-1]), config.hidden, dtype=torch.float16)
    with progress(watched=watched) as bar:
        shown = bar.add_task("reading", total=len(features), note="")
        for place, rows in words.stream([feature.encoding.ids for feature in features]):
            states[:, starts[place] : starts[place + 1]] = rows[:, 1:-1].half()
            bar.update(shown, advance=1)
    return states


def stored(task: Task[Any, Any], features: Sequence[Feature], first: int = 0) -> list[Feature]:
    """The same features whose ids are rows of their states, from `first` on."""
    sequences = []
    for feature in features:
        count = len(feature.encoding) - 2
        encoding = Encoding(
            ids=np.arange(first, first + count),
            types=np.zeros(count, np.int64),
            offsets=np.zeros((count, 2), np.int64),
            words=list(range(count)),
            sequence=[0] * count,
            truncated=False,
        )
        places = np.arange(count) if isinstance(task, Tag) else None
        sequences.append(Feature(encoding, feature.example, places, feature.target))
        first += count
    return sequences


class ElmoAnswer(TaskPipeline[Any]):
    """The folder of a task that was learned on an ELMo: it answers as a fine-tuned model does.

    `mixture` is what each layer weighs in the sum that the network reads, and its scale.
    """

    policies = ("error",)

    def __init__(
        self,
        folder: Path,
        task: str | type[Task[Any, Any]] | None = None,
        words: Words | None = None,
    ) -> None:
        """`words` is the ELMo of the folder where it is open already.

        Raises: CheckpointError for a folder that is damaged, or of another task.
        """
        self.words = words or Words(folder)
        config = self.words.model.config
        self.vectors = load_vectors(folder)
        self.task, self.features, self.head = load_elmo_task(
            folder, config.layers, config.hidden, self.vectors
        )
        self.columns = columns_in(read_record(folder).settings)
        asked = tasks.find(task) if isinstance(task, str) else task
        if asked is not None and not isinstance(self.task, asked):
            raise CheckpointError(
                f"{folder}: was fine-tuned for {self.task.name}, not for {asked.name}; ask it that"
            )
        self.item, self.prediction, self.example = self.task.signature()
        self.mixture = self.features.mixture(self.features.rows)
        # a task asks no more of an encoder than to be called with a batch
        model = Model(cast(Transformer, self.features), {self.task.head: self.head})
        self.engine = Engine(model, precision=None)

    def __repr__(self) -> str:
        config = self.words.model.config
        return (
            f"<Answer to {self.task.name} of an ELMo of {config.layers} layers of {config.hidden}>"
        )

    def prepare(self, items: Sequence[Item], *, long: Long | None = None) -> list[Work]:
        """`long` decides nothing: no text is cut, or read in windows.

        Raises: DataError for a pair, a text without words or with more than there may be.
        """
        return self._works([self._example(item) for item in items], "error")

    def run(self, works: Sequence[Work]) -> list[Any]:
        read = [feature for work in works for feature in work.features]
        watched = self.words.length is None  # by nobody, in a server
        self.features.states = read_states(self.words, read, watched=watched)
        examples = [work.item for work in works]
        if self.vectors is not None:
            self.features.beside = vectors_beside(self.vectors, examples)
        outputs = self.task.run(self.engine, stored(self.task, read))
        groups = [stored(self.task, work.features) for work in works]
        return self.task.answers(by_example(examples, groups, outputs), self.head)

    def _works(self, examples: Sequence[Any], long: Long) -> list[Work]:
        features = word_features(self.words, self.task, examples, labelled=False)
        return [Work([f], item) for f, item in zip(features, examples, strict=True)]
