"""Pretrain a model from a prepared corpus: the whole run, top to bottom."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from bertkit.batch import Batch
from bertkit.checkpoint.folder import Loaded, load, save
from bertkit.config import plain
from bertkit.console import progress, say
from bertkit.data.collate import collate
from bertkit.data.corpus import Corpus
from bertkit.data.masking import Masking
from bertkit.data.segments import DRAWS, Samples, split_documents
from bertkit.engine.linear import packed
from bertkit.errors import ConfigError, DataError, StorageError, TrainingError
from bertkit.families import FAMILIES, Family
from bertkit.models.layers import keep_layers
from bertkit.models.model import Model, build
from bertkit.nn.precision import resolve, resolve_device
from bertkit.objectives.distill import Distillation, usual_layers
from bertkit.objectives.loss import Objective
from bertkit.objectives.pretrain import masked_words_of
from bertkit.objectives.pretrain import pretrain as masked_words
from bertkit.objectives.replace import GENERATOR, attach_generator, replaced_tokens
from bertkit.recipes.run_file import (
    FREE,
    PretrainConfig,
    Teacher,
    heads_of,
    read_config,
)
from bertkit.storage import read_json, refuse_used, sha256, sweep, write_json
from bertkit.text.tokenizer import Tokenizer
from bertkit.training.interrupt import Interrupt
from bertkit.training.journal import RUN, Journal, draw, left_out
from bertkit.training.loop import Step, ahead, evaluate, steps
from bertkit.training.masters import Masters
from bertkit.training.optim import adamw, muon
from bertkit.training.schedule import schedule
from bertkit.training.state import (
    newest_checkpoint,
    publish,
    recover,
    restore,
    rewritten,
    save_checkpoint,
)

OPTIMIZERS = {"adamw": adamw, "muon": muon}


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
    heads, family = heads_of(config), FAMILIES[config.family]
    if train.warmup_steps >= train.steps:
        say(
            f"train.warmup_steps = {train.warmup_steps} is not less than train.steps = "
            f"{train.steps}: the learning rate never reaches its peak"
        )
    teacher = None if config.teacher is None else _teacher(config.teacher, corpus, tokenizer)
    record = _checked_run(out, config, corpus, tokenizer, resume)
    learn, held_out = split_documents(text, config.sampling.held_out)
    source = _Source(text, tokenizer, config, learn, heads)
    evaluation = source.evaluation(held_out)
    open_board = _tensorboard() if train.tensorboard else None

    torch.manual_seed(train.seed)
    model = build(config.model, heads) if start_from is None else start_from.model
    objective: Objective = masked_words
    generator = None
    if config.generator is not None:
        generator = attach_generator(model, config.generator)
        objective = replaced_tokens(config.generator.weight)
    if teacher is not None:
        objective = _taught_by(teacher.model, model, config, device, dtype)
    write_json(out / RUN, record)
    model.to(device)
    own = Model(model.encoder, {head: model.heads[head] for head in heads})
    scored, judge = (own, masked_words) if generator is None else (model, objective)
    masters = Masters(model, dtype)
    optimizer = OPTIMIZERS[train.optimizer](
        masters.weights,
        learning_rate=train.learning_rate,
        weight_decay=train.weight_decay,
        betas=train.betas,
    )
    plan = schedule(
        train.schedule,
        steps=train.steps,
        warmup_steps=train.warmup_steps,
        decay_steps=train.decay_steps,
    )

    def show(folder: Path) -> None:
        """Make a checkpoint's weights those of the run's folder."""
        if len(model.heads) == len(heads):
            publish(folder, out)
        else:
            _save(out, own, masters, generator, tokenizer, family, start_from)

    journal, start = Journal(out), 0
    if resume:
        folder, damaged = recover(out)
        for sentence in damaged:
            say(sentence)
        if folder is not None:
            start = restore(folder, masters, optimizer, family)
            with rewritten(out) as anew:  # whatever has happened to the files since
                _save(out, own, masters, generator, tokenizer, family, start_from)
                show(folder)
            for sentence in anew:
                say(sentence)
        say(f"going on after step {start} of {train.steps}")
    if damaged_lines := journal.rewind(start):
        say(left_out(journal.path, damaged_lines))
    if start == 0:
        _save(out, own, masters, generator, tokenizer, family, start_from)
        parameters = sum(w.numel() for w in masters.weights.values())
        say(
            f"{parameters:,} parameters, {'fp32' if dtype == torch.float32 else 'bf16'}, "
            f"{len(source.main):,} samples an epoch, {text.tokens:,} tokens"
        )

    last = train.steps

    def score(number: int) -> dict[str, float]:
        if not evaluation or not (number in (0, last) or number % train.evaluate_every == 0):
            return {}
        known = [r for r in journal.records() if r["step"] == number and "held_out_accuracy" in r]
        if not known:  # else a kill came after it
            losses, accuracy = evaluate(scored, judge, evaluation)
            known = [{"step": number, "held_out": losses, "held_out_accuracy": accuracy}]
            journal.write(known[0])
            draw(out)
        return {
            **{f"{name}_loss": value for name, value in known[0]["held_out"].items()},
            **{f"{name}_accuracy": value for name, value in known[0]["held_out_accuracy"].items()},
        }

    def keep(number: int) -> None:
        show(save_checkpoint(out, number, masters, optimizer, family, keep=train.keep))

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


def _teacher(settings: Teacher, corpus: Path, tokenizer: Tokenizer) -> Loaded:
    """Raises: CheckpointError or ConfigError for one that cannot teach this corpus."""
    teacher = load(settings.model)
    if "mlm" not in teacher.model.heads:
        raise ConfigError(f"teacher.model: {settings.model} has no masked-LM head to learn from")
    if teacher.tokenizer.fingerprint != tokenizer.fingerprint:
        raise ConfigError(
            f"teacher.model: {settings.model} has another vocabulary than {corpus}; prepare it "
            f"again with --tokenizer {settings.model}"
        )
    return teacher


def _taught_by(
    teacher: Model, model: Model, config: PretrainConfig, device: str, dtype: torch.dtype
) -> Distillation:
    """The objective of a model with a teacher, whose weights it may begin with.

    Raises: ConfigError for a student that cannot follow its teacher, or begin as it.
    """
    assert config.teacher is not None
    if config.teacher.start:
        taken = keep_layers(teacher, usual_layers(model.config.layers, teacher.config.layers))
        theirs = taken.state_dict()
        for name, weight in model.state_dict().items():
            if name not in theirs or theirs[name].shape != weight.shape:
                raise ConfigError(
                    f"teacher.start: {name} of the teacher has another shape; give the model the "
                    "teacher's width, or leave it out"
                )
        model.load_state_dict({name: theirs[name] for name in model.state_dict()})
    return Distillation(
        masked_words_of,
        teacher=packed(teacher.to(device), dtype),
        student=model,
        head="mlm",
        terms=config.terms,
        layers=config.teacher.follow,
        single_label=True,
    )


def _save(
    out: Path,
    own: Model,
    masters: Masters,
    generator: Model | None,
    tokenizer: Tokenizer,
    family: Family,
    start_from: Loaded | None,
) -> None:
    """The model's folder, without what only its objective needs, and its generator's inside.

    It makes vectors as the folder does that it starts from.
    """
    weights = {name: masters.weights[name] for name, _ in own.named_parameters()}
    pooling = length = None
    if start_from is not None and start_from.pooling is not None:
        pooling, length = start_from.pooling, start_from.length
    save(out, own, tokenizer, family, weights=weights, pooling=pooling, length=length)
    if generator is not None:
        inside = {id(weight): masters.weights[n] for n, weight in masters.model.named_parameters()}
        theirs = {name: inside[id(weight)] for name, weight in generator.named_parameters()}
        save(out / GENERATOR, generator, tokenizer, family, weights=theirs)


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
        self.config, self.head = config, next((head for head in heads if head != "mlm"), None)
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
            drawn = samples.batch(*train.samples(step))
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
        "corpus_folder": str(corpus.resolve()),
        "tokenizer": tokenizer.fingerprint,
        "draws": DRAWS,
    }
    if out.is_dir():
        sweep(out)
    if not resume:
        refuse_used(out, resumable=True)
        return record
    try:
        if not (out / RUN).exists():
            raise ConfigError(f"{out}: no run to resume here; leave out --resume")
        before = read_json(out / RUN, ConfigError, "start over in another --out")
        settings, vocabulary, text = before["config"], before["tokenizer"], before["corpus"]
        _flat(settings)
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{out / RUN}: damaged ({error}); start over in another --out") from None
    if before.get("draws") != DRAWS:
        raise ConfigError(
            f"{out}: began with a version of bertkit that draws other samples; resume it with that "
            "version, or start another run"
        )
    if vocabulary != record["tokenizer"]:
        raise DataError(
            f"{corpus}: made with another tokenizer than {out}; resume with its own corpus"
        )
    if text != record["corpus"]:
        raise DataError(
            f"{corpus}: not the corpus that {out} began with; a resumed run would be another run"
        )
    # a group that was left out stands there as None; given now, it is a change
    now = dict.fromkeys(record["config"], "given") | _flat(record["config"])
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
