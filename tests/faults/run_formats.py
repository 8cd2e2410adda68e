"""Tiny corpora, stores, and run directories, and how to open them."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.factories import tiny_model
from tests.faults.model_formats import ENGLISH, sides, vocabulary
from tests.faults.user_formats import write_rows

from bertkit.checkpoint.directory import save
from bertkit.checkpoint.run_directory import warn_unfinished
from bertkit.data.corpus import Corpus
from bertkit.extensions.generation.pairs import Pairs
from bertkit.extensions.generation.prepare_pairs import prepare_pairs
from bertkit.families import BERT
from bertkit.recipes.finetune import finetune
from bertkit.recipes.prepare import prepare
from bertkit.recipes.pretrain import pretrain
from bertkit.recipes.pretrain_config import read_config
from bertkit.recipes.pretrain_samples import RunSamples
from bertkit.recipes.run_file import read_run_file
from bertkit.recipes.runs import runs
from bertkit.training.distributed import Ranks

RUN = """
[model]
layers = 1
hidden = 16
heads = 2
intermediate = 32
max_positions = 32
[sampling]
length = 16
held_out = 0.2
pairs = "none"
[train]
steps = 3
batch_size = 4
learning_rate = 1e-3
warmup_steps = 1
precision = "fp32"
device = "cpu"
log_every = 1
save_every = 1
evaluate_every = 3
evaluate_samples = 4
"""


def make_corpus(folder: Path) -> None:
    texts = [folder / f"{number}.txt" for number in range(6)]
    folder.mkdir()
    for number, path in enumerate(texts):
        path.write_text(ENGLISH[1][number * 200 :][:200], encoding="utf-8")
    prepare(texts, tokenizer=vocabulary("wordpiece"), out=folder / "corpus", processes=1)
    for path in texts:
        path.unlink()
    (folder / "run.toml").write_text(RUN, encoding="utf-8")


def use_corpus(folder: Path) -> None:
    use_samples(Corpus.open(folder / "corpus"), read_run_file(folder / "run.toml"))


def use_samples(text: Corpus | Pairs, settings: Mapping[str, Any]) -> None:
    config = read_config(settings, text.tokenizer())
    samples = RunSamples(text, text.tokenizer(), config, Ranks())
    samples.batches(0)
    samples.evaluation()


def make_pairs(folder: Path) -> None:
    vocabulary = folder / "vocabulary"
    sides(folder).save(vocabulary)
    file = folder / "rows.tsv"
    file.write_text("source\ttarget\n" + "a b\tc d\n" * 20, encoding="utf-8")
    prepare_pairs(file=file, tokenizer=vocabulary, out=folder / "pairs")
    shutil.rmtree(vocabulary)
    file.unlink()


def use_pairs(folder: Path) -> None:
    settings = {
        "family": "lstm",
        "objective": "translate",
        "model": {"hidden": 8, "layers": 1},
        "sampling": {"pairs": "none"},
        "train": {"steps": 1, "device": "cpu"},
    }
    use_samples(Pairs.open(folder / "pairs"), settings)


def make_pretraining(folder: Path) -> None:
    make_corpus(folder)
    use_pretraining(folder)


def use_pretraining(folder: Path) -> None:
    if resume := (folder / "run").exists():
        inspect_run(folder / "run")
    pretrain(folder / "run.toml", corpus=folder / "corpus", out=folder / "run", resume=resume)


def make_finetuning(folder: Path, *, finished: bool) -> None:
    write_rows(folder, "classify")
    for name in ("train.csv", "train.jsonl"):
        (folder / name).unlink()
    tokenizer = vocabulary("wordpiece")
    save(folder / "model", tiny_model(tokenizer), tokenizer, BERT)

    def stop(*_: Any) -> None:
        if not finished:
            raise InterruptedError

    with contextlib.suppress(InterruptedError):
        use_finetuning(folder, on_epoch=stop)


def use_finetuning(folder: Path, **options: Any) -> None:
    with contextlib.chdir(folder):  # the record of a run contains paths
        if not options:
            inspect_run(Path("run"))
        finetune(
            "classify",
            "model",
            train="train.tsv",
            dev="train.tsv",
            out="run",
            settings={"epochs": 2, "batch_size": 4, "save_minutes": 0.0, "device": "cpu"},
            **(options or {"resume": True}),
        )


def inspect_run(run: Path) -> None:
    """Read a run like `bertkit info` and `bertkit runs`."""
    warn_unfinished(run)
    runs([str(run)])


def make_store(folder: Path) -> None:
    from bertkit.extensions.search.index import index

    tokenizer = vocabulary("wordpiece")
    save(folder / "model", tiny_model(tokenizer), tokenizer, BERT)
    (folder / "a.md").write_text("# One\n\na we bc\n\n# Two\n\nthe cat", encoding="utf-8")
    index([folder / "a.md"], model=folder / "model", store=str(folder / "store"), device="cpu")


def use_store(folder: Path) -> None:
    from bertkit.extensions.search.search import search

    options = {"model": str(folder / "model"), "device": "cpu", "json": True}
    search(str(folder / "store"), "a we", **options)
    search(str(folder / "store"), "the cat", hybrid=True, **options)
