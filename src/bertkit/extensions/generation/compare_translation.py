"""Translation learned three ways at one budget: an LSTM, an LSTM with attention, a Transformer.

What attention was found for, and what came of it (Sutskever et al. 2014; Bahdanau et al. 2015,
figure 2; Luong et al. 2015; Vaswani et al. 2017, table 1).
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from msgspec import structs

from bertkit.checkpoint.directory import load
from bertkit.checkpoint.run_directory import RUN
from bertkit.checkpoint.weights import FILE as WEIGHTS
from bertkit.config import Count, Positive, Rate, Seed, Settings, override, plain
from bertkit.console import say
from bertkit.errors import ConfigError
from bertkit.extensions.generation.bleu import bleu
from bertkit.extensions.generation.decoding import Decoding
from bertkit.extensions.generation.length_groups import LengthGroup, groups_by_length
from bertkit.extensions.generation.long_pairs import VOCABULARY_SIZE, Texts, joined, reversals
from bertkit.extensions.generation.pairs import SIDES
from bertkit.extensions.generation.prepare_pairs import Side, prepare_pairs, read_pairs
from bertkit.extensions.generation.translation_report import sequential_steps, write_columns
from bertkit.metrics import plus_minus
from bertkit.nn.precision import Precision
from bertkit.pipelines import pipeline
from bertkit.recipes.pretrain import pretrain
from bertkit.recipes.pretrain_config import complete
from bertkit.recipes.run_file import read_run_file
from bertkit.recipes.study import study
from bertkit.recipes.vocabulary import train_vocabulary
from bertkit.storage import read_json, refuse_used, write_json, write_text
from bertkit.text.tokenizer import Tokenizer
from bertkit.training.journal import Journal

RECORD_FILE = "record.json"
"""What a comparison was asked to do."""


class CompareTranslation(Settings, frozen=True):
    """All models learn from the same pairs in the same order, so many a step, with as many layers
    of the same width."""

    seeds: Count = 1
    """Runs of each model, from `seed` on."""
    seed: Seed = 0
    steps: Count = 2_000
    """Training steps of each model."""
    batch_size: Count = 128
    """Pairs a step."""
    length: Count = 128
    """Tokens of either side of a pair that is learned from; longer ones are left out."""
    join: Count = 1
    """Sentences that follow each other are joined, 1 to so many at a time, for longer ones."""
    vocab_size: Count = 8_000
    """Pieces of the vocabulary, which is learned from both sides."""
    attention: Literal["luong", "bahdanau"] = "luong"
    """Attention of the LSTM with attention."""
    layers: Count = 2
    """Number of layers of each encoder and of each decoder."""
    hidden: Count = 256
    """Width of each layer."""
    dropout: Rate = 0.1
    lstm_learning_rate: Positive = 2e-3
    """Learning rate of both LSTMs."""
    transformer_learning_rate: Positive = 1e-3
    device: str = "auto"
    """Device that the models are trained on; auto is a GPU if PyTorch finds one."""
    precision: Precision = "fp32"
    """Precision of training."""
    beams: Count = 1
    """Number of beams of beam search; 1 is greedy search."""


class _Way(NamedTuple):
    """A model of the comparison."""

    folder: str
    run_file: str
    layers: str
    """What its encoder and its decoder are made of."""
    interaction: str
    """What the decoder gets from the encoder."""
    settings: Mapping[str, Any]


LSTM, ATTENTION, TRANSFORMER = "LSTM", "LSTM + attention", "Transformer"
"""The models, in the order of the table."""


def _ways(settings: CompareTranslation) -> dict[str, _Way]:
    """Without attention the encoder reads from the end, since then what is written first was read
    last (Sutskever et al. 2014, section 3.3); with attention, both ways."""
    lstm, width = {"train.learning_rate": settings.lstm_learning_rate}, settings.hidden
    alone = {"model.recurrent.attention": "none", "model.recurrent.direction": "backward"}
    looking = {
        "model.recurrent.attention": settings.attention,
        "model.recurrent.direction": "both",
    }
    stack = {
        "train.learning_rate": settings.transformer_learning_rate,
        "model.intermediate": 2 * width,
        "model.heads": next(heads for heads in (8, 4, 2, 1) if width % heads == 0),
    }
    return {
        LSTM: _Way("lstm", "lstm-small", "LSTM", "one vector", lstm | alone),
        ATTENTION: _Way("lstm-attention", "lstm-small", "LSTM", "attention", lstm | looking),
        TRANSFORMER: _Way("transformer", "transformer-small", "attention", "attention", stack),
    }


def compare_translation(
    *,
    out: Path,
    source: Path | None = None,
    target: Path | None = None,
    file: Path | None = None,
    dev_source: Path | None = None,
    dev_target: Path | None = None,
    dev_file: Path | None = None,
    source_column: str | None = None,
    target_column: str | None = None,
    reverse: Count | None = None,
    settings: CompareTranslation | None = None,
    resume: bool = False,
) -> dict[str, Any]:
    """Compare translation by an LSTM, with attention, and by a Transformer.

    Each is trained from nothing for as many steps of the same pairs, with one vocabulary that is
    learned from them, and scored on dev at the end: BLEU, or of letters the share in their place,
    in all and by the words of the source. Nothing is chosen on dev.
    `out` gets compare.json, .svg, .html, the texts, the models and what they wrote. Returns: what
    compare.json holds.
    Raises: ConfigError when `out` is in use or settings do not fit, DataError naming file and line;
    before any work.

    Args:
        out: The folder of what is made; it must not exist yet.
        source: Text to translate, a sentence a line; also .gz.
        target: Translation of the source, line by line.
        file: Instead of both: rows of .tsv, .csv or .jsonl.
        dev_source: Text to score on, as `source`.
        dev_target: Translation of the source.
        dev_file: Instead of both: rows to score on.
        source_column: With files of rows: column of the text to translate.
        target_column: With files of rows: column of its translation.
        reverse: Instead of files: letters to be written backwards, 5 to so many to learn from, and
            up to twice as many to score on.
        resume: Go on with a comparison that was stopped.
    """
    settings = settings or CompareTranslation()
    columns = source_column, target_column
    if reverse is None:
        train = read_pairs(source, target, file, *columns)
        dev = read_pairs(dev_source, dev_target, dev_file, *columns, prefix="dev-")
        texts = {"train": _texts(train, settings.join), "dev": _texts(dev, settings.join)}
        files = {"train": (source, target, file), "dev": (dev_source, dev_target, dev_file)}
        origin = {
            part: ", ".join(str(path) for path in paths if path) for part, paths in files.items()
        }
        bleu(["a"], ["a"])  # or it is missed when all is learned
    else:
        given = (source, target, file, dev_source, dev_target, dev_file, *columns)
        if any(one is not None for one in given) or settings.join > 1:
            raise ConfigError("--reverse: draws letters; leave out files, columns and --join")
        texts, settings = reversals(reverse), structs.replace(settings, vocab_size=VOCABULARY_SIZE)
        origin = {"train": f"at most {reverse} letters", "dev": f"at most {2 * reverse} letters"}
    trial = _Trial(texts, origin, out, settings, letters=reverse is not None)
    trial.begin(resume=resume)
    with _keeping(out):
        trial.prepare()
        runs = {name: trial.way(name) for name in trial.ways}
        seeds = range(settings.seed, settings.seed + settings.seeds)
        result = trial.result(study(runs, seeds, trial.metric))
    write_json(out / "compare.json", result)
    write_columns(out, result)
    for name, about in result["models"].items():
        score, steps = result["scores"][name], about["steps"]
        say(
            f"{name}: {trial.metric} {plus_minus(score[trial.metric])}, "
            f"{about['parameters']:,} parameters, {steps['learning']:.0f} steps a sentence to "
            f"learn, {steps['writing']:.0f} to write, {score['seconds']['mean']:,.0f} s"
        )
    return result


def words_in_place(texts: Sequence[str], references: Sequence[str]) -> float:
    """Return the fraction of the words of references that texts have at the same position."""
    hits = [
        [a == b for a, b in zip_longest(text.split(), whole.split())][: len(whole.split())]
        for text, whole in zip(texts, references, strict=True)
    ]
    return float(np.mean(np.concatenate(hits)))


def _texts(sides: tuple[Side, Side], most: int) -> Texts:
    """Both sides as lines, `most` of them joined."""
    source, target = ([" ".join(text.split()) for text in texts] for texts, _ in sides)
    return joined(source, target, most)


@contextmanager
def _keeping(out: Path) -> Iterator[None]:
    """What was trained stays, whatever happens; what is of no use does not."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"stopped; {out} goes on with --resume") from None
    except BaseException:
        if not any(out.rglob(WEIGHTS)):
            shutil.rmtree(out, ignore_errors=True)
        raise


class _Trial:
    """The texts and the settings of all models, and a run of each for a seed.

    Raises: ConfigError for settings that no model can have; nothing is written.
    """

    def __init__(
        self,
        texts: dict[str, Texts],
        origin: dict[str, str],
        out: Path,
        settings: CompareTranslation,
        *,
        letters: bool,
    ) -> None:
        self.texts, self.origin, self.out, self.settings = texts, origin, out, settings
        self.metric = "letters in place" if letters else "BLEU"
        self.score = words_in_place if letters else bleu
        self.ways = _ways(settings)
        self.groups = groups_by_length(texts["dev"][0])
        self.max_positions = settings.length
        for name in self.ways:
            complete(self.run_file(name, 0), vocab=settings.vocab_size, pad=0)
        learned = set(zip(*texts["train"], strict=True))
        self.known = sum(pair in learned for pair in zip(*texts["dev"], strict=True))
        if self.known:
            say(f"{self.known:,} of dev's {len(texts['dev'][0]):,} pairs stand in train, too")

    def run_file(self, name: str, seed: int) -> dict[str, Any]:
        """The settings of a model's run."""
        settings, way = self.settings, self.ways[name]
        steps = settings.steps
        given = {
            "model.layers": settings.layers,
            "model.hidden": settings.hidden,
            "model.dropout": settings.dropout,
            "model.max_positions": self.max_positions,
            "sampling.length": settings.length,
            "train.steps": steps,
            "train.warmup_steps": steps // 10,
            "train.batch_size": settings.batch_size,
            "train.seed": seed,
            "train.precision": settings.precision,
            "train.device": settings.device,
            "train.log_every": max(1, steps // 20),
            "train.evaluate_every": max(1, steps // 4),
            "train.save_every": max(1, steps // 4),
            "train.keep": 1,
            **way.settings,
        }
        words = [(key, str(value)) for key, value in given.items()]
        return override(read_run_file(way.run_file), words)

    def begin(self, *, resume: bool) -> None:
        """Make the folder, or go on in it.

        Raises: ConfigError when it is in use, or another comparison's.
        """
        contents = {
            self.text(part, side): "".join(f"{text}\n" for text in texts)
            for part, sides in self.texts.items()
            for side, texts in zip(SIDES, sides, strict=True)
        }
        settings = plain(self.settings)
        del settings["device"]  # a comparison may be resumed on another device
        record = {
            "settings": settings,
            "metric": self.metric,
            "sha256": {
                path.name: hashlib.sha256(content.encode()).hexdigest()
                for path, content in contents.items()
            },
        }
        place = self.out / RECORD_FILE
        if not resume:
            refuse_used(self.out, resumable=True)
        elif not place.exists():
            raise ConfigError(f"{self.out}: no comparison to resume here; leave out --resume")
        elif read_json(place, ConfigError, "start over in another --out") != record:
            raise ConfigError(
                f"{place}: says other settings or texts than these; resume with the same, or start "
                "over in another --out"
            )
        for path, content in contents.items():
            write_text(path, content)
        write_json(place, record)

    def text(self, part: str, side: str) -> Path:
        """The file with one side of the pairs."""
        return self.out / "text" / f"{part}.{side}.txt"

    def prepare(self) -> None:
        """The vocabulary, and the pairs as its pieces, where they are not there yet."""
        files = [self.text("train", side) for side in SIDES]
        vocabulary, pairs = self.out / "vocabulary", self.out / "pairs"
        if not vocabulary.exists():
            train_vocabulary(
                files,
                out=vocabulary,
                kind="unigram",
                use="translate",
                size=self.settings.vocab_size,
            )
        if not pairs.exists():
            prepare_pairs(source=files[0], target=files[1], tokenizer=vocabulary, out=pairs)
        tokenizer = Tokenizer.load(vocabulary)
        self.lengths = [
            np.array([len(ids) + 1 for ids in tokenizer.ids(side)]) for side in self.texts["dev"]
        ]
        # what a decoder has room for, and so all sources of dev
        self.max_positions = max(self.settings.length, 2 * int(self.lengths[0].max()) + 24)

    def way(self, name: str) -> Any:
        """A run of a model, from a seed to its scores."""

        def run(seed: int) -> dict[str, float]:
            folder = self.out / self.ways[name].folder / f"seed-{seed}"
            written = folder.with_suffix(".txt")
            if not written.exists():
                going = (folder / RUN).exists()
                pretrain(
                    self.run_file(name, seed), corpus=self.out / "pairs", out=folder, resume=going
                )
                answers = pipeline("generate", folder, device=self.settings.device)(
                    self.texts["dev"][0], Decoding(beams=self.settings.beams)
                )
                texts = [" ".join(best.text.split()) for best, *_ in answers]
                write_text(written, "".join(f"{text}\n" for text in texts))
            texts = written.read_text(encoding="utf-8").split("\n")[:-1]
            return {
                self.metric: self.score(texts, self.texts["dev"][1]),
                **{self.named(group): self.part(texts, group) for group in self.groups},
                "seconds": self.seconds(folder),
            }

        return run

    def named(self, group: LengthGroup) -> str:
        """The name of a group's score."""
        return f"{self.metric}, {group.name} words"

    def part(self, texts: list[str], group: LengthGroup) -> float:
        """The score of a group."""
        right = self.texts["dev"][1]
        return self.score([texts[n] for n in group.places], [right[n] for n in group.places])

    def seconds(self, folder: Path) -> float:
        """Of all steps, by those that the journal has: without evaluation, and without a stop."""
        rows = [row for row in Journal(folder).records() if "tokens_per_second" in row]
        each = [row["tokens"] / row["tokens_per_second"] for row in rows]
        return self.settings.steps * float(np.mean(each))

    def result(self, scores: Mapping[str, Any]) -> dict[str, Any]:
        """All of it, as data."""
        n, m = (float(side.mean()) for side in self.lengths)
        models = {}
        for name, way in self.ways.items():
            model = load(self.out / way.folder / f"seed-{self.settings.seed}").model
            assert model.decoder is not None
            models[name] = {
                "folder": way.folder,
                "encoder": way.layers,
                "decoder": way.layers,
                "interaction": way.interaction,
                "parameters": sum(weight.numel() for weight in model.parameters()),
                "steps": sequential_steps(model.config, model.decoder.config, n, m),
            }
        return {
            "origin": self.origin,
            "pairs": {part: len(sides[0]) for part, sides in self.texts.items()},
            "dev_in_train": self.known,
            "tokens": {"source": n, "target": m},
            "settings": plain(self.settings),
            "metric": self.metric,
            "groups": [
                {"low": group.low, "high": group.high, "pairs": len(group.places),
                 "score": self.named(group)}
                for group in self.groups
            ],
            "models": models,
            "scores": dict(scores),
        }  # fmt: skip
