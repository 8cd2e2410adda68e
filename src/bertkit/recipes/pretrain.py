"""Pretrain a model from a prepared corpus: the whole run, top to bottom."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from msgspec import Meta

from bertkit.batch import Batch
from bertkit.checkpoint.folder import Loaded, save
from bertkit.config import Count, Settings, decode, plain
from bertkit.data.collate import collate
from bertkit.data.corpus import Corpus
from bertkit.data.masking import Masking
from bertkit.data.segments import Samples, Sampling, split_documents
from bertkit.errors import ConfigError, DataError, StorageError, TrainingError, did_you_mean
from bertkit.families import BERT, FAMILIES
from bertkit.models.config import TransformerConfig
from bertkit.models.model import build
from bertkit.nn.precision import Precision, resolve, resolve_device
from bertkit.objectives.pretrain import pretrain as objective
from bertkit.recipes.console import progress, say
from bertkit.storage import sha256, sweep, write_json
from bertkit.text.tokenizer import Tokenizer
from bertkit.training.interrupt import Interrupt
from bertkit.training.journal import Journal, draw
from bertkit.training.loop import Step, ahead, evaluate, steps
from bertkit.training.masters import Masters
from bertkit.training.optim import adamw
from bertkit.training.schedule import schedule
from bertkit.training.state import newest_checkpoint, publish, recover, restore, save_checkpoint

RUN = "run.json"


class Train(Settings, frozen=True):
    """How long, how fast, how often."""

    steps: Count
    """Optimizer steps."""
    batch_size: Count = 256
    """Samples a step."""
    budget_tokens: Count = 8192
    """Tokens that go through the model at a time; a step is cut into as many batches as that
    takes, which changes memory and speed but not the result beyond rounding and
    the draws of dropout."""
    learning_rate: Annotated[float, Meta(gt=0.0)] = 1e-4
    schedule: Literal["linear", "wsd", "constant"] = "linear"
    warmup_steps: Annotated[int, Meta(ge=0)] = 0
    decay_steps: Annotated[int, Meta(ge=0)] = 0
    """Steps of the final decay of `wsd`."""
    weight_decay: Annotated[float, Meta(ge=0.0)] = 0.01
    clip: Annotated[float, Meta(gt=0.0)] = 1.0
    """Largest norm of the gradient."""
    seed: Annotated[int, Meta(ge=0, lt=2**31)] = 0
    precision: Precision = "auto"
    """bf16 computes with bf16 weights and keeps fp32 masters; auto takes it where the machine has
    the instructions."""
    device: str = "auto"
    log_every: Count = 10
    evaluate_every: Count = 500
    evaluate_samples: Annotated[int, Meta(ge=0)] = 512
    save_every: Count = 500
    keep: Count = 2
    """Checkpoints kept; the newest complete one always is."""
    tensorboard: bool = False
    """Also write TensorBoard events (needs `pip install bertkit[track]`)."""

    def __post_init__(self) -> None:
        if self.schedule == "wsd" and not self.decay_steps:
            raise ValueError("decay_steps: wsd decays over as many steps; set it, or use constant")


class PretrainConfig(Settings, frozen=True):
    """A complete run file."""

    model: TransformerConfig
    train: Train
    sampling: Sampling = Sampling()
    masking: Masking = Masking()
    family: str = "bert"
    """Whose folder the model is saved as, by its `model_type`."""

    def __post_init__(self) -> None:
        if self.sampling.pairs != "none" and self.model.types < 2:
            raise ValueError(
                f"model.types = {self.model.types} cannot tell sentence A from B; "
                'set it to 2, or sampling.pairs to "none"'
            )
        for name in ("length", "first_length"):
            asked = getattr(self.sampling, name)
            if asked is not None and asked > self.model.length:
                raise ValueError(
                    f"sampling.{name} = {asked} is longer than the model's positions "
                    f"(model.length = {self.model.length})"
                )


FREE = ("log_every", "evaluate_every", "save_every", "keep", "tensorboard", "budget_tokens")
"""Settings of `train` that may differ when a run is resumed."""


def read_config(data: Mapping[str, Any], tokenizer: Tokenizer) -> PretrainConfig:
    """A run's settings; the vocabulary's size is the tokenizer's unless the file says more.

    Raises: ConfigError with the key path.
    """
    config = complete(data, vocab=tokenizer.vocab_size, pad=tokenizer.pad)
    if config.model.vocab < tokenizer.vocab_size:
        raise ConfigError(
            f"model.vocab: {config.model.vocab} rows cannot hold the tokenizer's "
            f"{tokenizer.vocab_size} pieces; leave it out"
        )
    return config


def complete(data: Mapping[str, Any], *, vocab: int, pad: int) -> PretrainConfig:
    """A run's settings, with those that its family and its vocabulary decide.

    Raises: ConfigError with the key path, also for what no model of the family can have.
    """
    name = data.get("family", BERT.name)
    if name not in FAMILIES:
        raise ConfigError(f"family: no family {name!r}; {did_you_mean(str(name), FAMILIES)}")
    family = FAMILIES[name]
    if isinstance(data.get("model"), Mapping):
        known = {**family.defaults, **family.fixed, "vocab": vocab, "pad": pad}
        data = {**data, "model": {**known, **data["model"]}}
    config = decode(PretrainConfig, data)
    family.write_config(config.model)
    if frozenset(_heads(config)) not in family.architectures:
        raise ConfigError(
            f"sampling.pairs = {config.sampling.pairs!r}: a folder of {name} cannot hold the head "
            "that learns it; choose another, or none"
        )
    return config


def pretrain(
    settings: Mapping[str, Any],
    *,
    corpus: Path,
    out: Path,
    resume: bool = False,
    start_from: Loaded | None = None,
) -> dict[str, float]:
    """Run (or go on with) a pretraining and return the held-out scores at its end.

    It begins with fresh weights, or with those of a model that is open, whose shape the settings
    have to name.

    `out` becomes a model folder that `bertkit.load` and transformers open, with checkpoints,
    a journal and a loss curve beside.
    Raises: ConfigError, DataError, CheckpointError, TrainingError, before work starts where the
    fault can be seen then.
    """
    text = Corpus.open(corpus)
    tokenizer = text.tokenizer()
    if start_from is not None and start_from.tokenizer.fingerprint != tokenizer.fingerprint:
        raise DataError(
            f"{corpus}: made with another vocabulary than {start_from.folder}; prepare it again "
            f"with --tokenizer {start_from.folder}"
        )
    config = read_config(settings, tokenizer)
    train = config.train
    device = resolve_device(train.device, "train.device")
    dtype = resolve(train.precision, device)
    heads, family = _heads(config), FAMILIES[config.family]
    if train.warmup_steps >= train.steps:
        say(
            f"train.warmup_steps = {train.warmup_steps} is not less than train.steps = "
            f"{train.steps}: the learning rate never reaches its peak"
        )
    record = _checked_run(out, config, corpus, tokenizer, resume)
    learn, held_out = split_documents(text, config.sampling.held_out, train.seed)
    source = _Source(text, tokenizer, config, learn, heads)
    evaluation = source.evaluation(held_out)
    open_board = _tensorboard() if train.tensorboard else None
    write_json(out / RUN, record)

    torch.manual_seed(train.seed)
    model = (build(config.model, heads) if start_from is None else start_from.model).to(device)
    masters = Masters(model, dtype)
    optimizer = adamw(
        masters.weights, learning_rate=train.learning_rate, weight_decay=train.weight_decay
    )
    plan = schedule(
        train.schedule,
        steps=train.steps,
        warmup_steps=train.warmup_steps,
        decay_steps=train.decay_steps,
    )
    journal, start = Journal(out), 0
    if resume:
        folder, damaged = recover(out)
        for sentence in damaged:
            say(sentence)
        start = restore(folder, masters, optimizer, family) if folder else 0
        say(f"going on after step {start} of {train.steps}")
    journal.rewind(start)
    if start == 0:
        save(out, model, tokenizer, family, weights=masters.weights)
        parameters = sum(w.numel() for w in masters.weights.values())
        say(
            f"{parameters:,} parameters, {'fp32' if dtype == torch.float32 else 'bf16'}, "
            f"{len(source.main):,} samples an epoch, {text.tokens:,} tokens"
        )

    last = train.steps

    def score(number: int) -> dict[str, float]:
        if not evaluation or not (number in (0, last) or number % train.evaluate_every == 0):
            return {}
        known = [r for r in journal.records() if r["step"] == number and "held_out" in r]
        if not known:  # else a kill came after it
            losses, accuracy = evaluate(model, objective, evaluation)
            known = [{"step": number, "held_out": losses, "held_out_accuracy": accuracy}]
            journal.write(known[0])
            draw(out)
        return {
            **{f"{name}_loss": value for name, value in known[0]["held_out"].items()},
            **{f"{name}_accuracy": value for name, value in known[0]["held_out_accuracy"].items()},
        }

    def keep(number: int) -> None:
        publish(save_checkpoint(out, number, masters, optimizer, family, keep=train.keep), out)

    scores = score(start)
    board = open_board(str(out / "tensorboard")) if open_board is not None else None
    with progress() as bar, Interrupt() as interrupt, ahead(source.groups(start)) as groups:
        task = bar.add_task("pretraining", total=train.steps, completed=start, note="")
        try:
            for step in steps(
                masters,
                objective,
                groups,
                optimizer,
                plan,
                clip=train.clip,
                seed=train.seed,
                start=start,
            ):
                number = step.number
                bar.update(task, completed=number, note=_note(step))
                if number % train.log_every == 0 or number == last:
                    journal.write(_record(step))
                    if board is not None:
                        for name, value in _record(step).items():
                            board.add_scalar(name, value, number)
                    if bar.disable:
                        say(f"step {number}/{train.steps}  {_note(step)}")
                if number == last or number % train.save_every == 0 or interrupt.asked:
                    keep(number)
                if interrupt.asked and number < last:
                    draw(out)
                    raise KeyboardInterrupt(
                        f"stopped after step {number}, which is saved; go on with --resume"
                    )
                scores = score(number) or scores
        except (TrainingError, StorageError) as error:
            good = newest_checkpoint(out)
            kept = f"{good} is the last good checkpoint" if good else "nothing was saved yet"
            raise type(error)(f"{error}; {kept}") from None
    if board is not None:
        board.close()
    draw(out)
    return scores


def _heads(config: PretrainConfig) -> tuple[str, ...]:
    return ("mlm",) if config.sampling.pairs == "none" else ("mlm", config.sampling.pairs)


class _Source:
    """Batches of every step, from the step's number alone."""

    def __init__(
        self,
        corpus: Corpus,
        tokenizer: Tokenizer,
        config: PretrainConfig,
        documents: Any,
        heads: Sequence[str],
    ) -> None:
        self.config, self.head = config, heads[1] if len(heads) > 1 else None
        self._args = (corpus, tokenizer, config.sampling, config.masking)
        seed = config.train.seed
        self.main = Samples(*self._args, documents=documents, seed=seed)
        self.first, self.until = self.main, 0
        if config.sampling.first_length is not None:
            self.first = Samples(
                *self._args, documents=documents, seed=seed, length=config.sampling.first_length
            )
            self.until = round(config.sampling.first_share * config.train.steps)

    def groups(self, start: int) -> Iterator[list[Batch]]:
        train = self.config.train
        for step in range(start, train.steps):
            samples = self.first if step < self.until else self.main
            drawn = samples.batch(step * train.batch_size, train.batch_size)
            yield collate(drawn, head=self.head, budget_tokens=train.budget_tokens)

    def evaluation(self, documents: Any) -> list[Batch]:
        """Held-out batches whose masks are always 15 % tokens, so that losses compare."""
        limit = self.config.train.evaluate_samples
        if not len(documents) or not limit:
            return []
        corpus, tokenizer, sampling, _ = self._args
        samples = Samples(corpus, tokenizer, sampling, Masking(), documents=documents)
        drawn = samples.evaluation(limit)
        return collate(drawn, head=self.head, budget_tokens=self.config.train.budget_tokens)


def _checked_run(
    out: Path, config: PretrainConfig, corpus: Path, tokenizer: Tokenizer, resume: bool
) -> dict[str, Any]:
    """What `run.json` will say. Raises: ConfigError or DataError when `out` is another run's."""
    record: dict[str, Any] = {
        "config": plain(config),
        "corpus": sha256(corpus / "manifest.json"),
        "tokenizer": tokenizer.fingerprint,
    }
    if out.is_dir():
        sweep(out)
    if not resume:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise ConfigError(
                f"{out}: exists already; go on with --resume, or choose another --out"
            )
        return record
    try:
        before = json.loads((out / RUN).read_text(encoding="utf-8"))
        settings, vocabulary, text = before["config"], before["tokenizer"], before["corpus"]
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(f"{out}: no run to resume here; leave out --resume") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{out / RUN}: damaged ({error}); start over in another --out") from None
    if vocabulary != record["tokenizer"]:
        raise DataError(
            f"{corpus}: made with another tokenizer than {out}; resume with its own corpus"
        )
    if text != record["corpus"]:
        raise DataError(
            f"{corpus}: not the corpus that {out} began with; a resumed run would be another run"
        )
    now = _flat(record["config"])
    changed = [
        f"{key} (was {was!r})"
        for key, was in _flat(settings).items()
        if key.removeprefix("train.") not in FREE and now.get(key) != was
    ]
    if changed:
        raise ConfigError(
            f"{', '.join(changed)}: changed since {out} began; resume with the same settings, or "
            "start another run"
        )
    return record


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by their dotted paths."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        inner = _flat(value) if isinstance(value, Mapping) else {"": value}
        found |= {f"{name}.{key}".rstrip("."): v for key, v in inner.items()}
    return found


def _note(step: Step) -> str:
    parts = "  ".join(f"{name} {value:.3f}" for name, value in step.parts.items())
    return f"loss {step.loss:.3f}  {parts}  {step.tokens / step.seconds:,.0f} tokens/s"


def _record(step: Step) -> dict[str, float]:
    return {
        "step": step.number,
        "loss": step.loss,
        **step.parts,
        **{f"{name}_accuracy": value for name, value in step.accuracy.items()},
        "gradient_norm": step.gradient_norm,
        "learning_rate": step.learning_rate,
        "tokens": step.tokens,
        "tokens_per_second": step.tokens / step.seconds,
    }


def _tensorboard() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ConfigError(
            "train.tensorboard: TensorBoard is not installed; pip install 'bertkit[track]'"
        ) from None
    return SummaryWriter
