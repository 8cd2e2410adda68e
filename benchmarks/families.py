"""BERT and its relatives at one small size, from the same text: what each learns, and how fast.

Every variant is pretrained by bertkit's recipe on the film reviews of `prose_reviews`, cut by one
WordPiece vocabulary, for as many steps of as many samples; then fine-tuned with three seeds on a
part of SST-2 and on MRPC. Held-out documents are the same for all, and 15 % of their tokens are
masked; but samples are of each variant's own kind, and BERT's pairs show less of one text around a
masked word. ELECTRA's loss is that of its generator, smaller than the others.

Speed is that of one optimizer step, measured as `pretrain` does it, beside the same ways of the
peer. That of ELECTRA is written out here: transformers has a generator and a discriminator, and
nothing that trains the two. What was measured is not measured again (`families.jsonl` beside the
results). BERTKIT_DATA names the folder of the data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import torch
from torch.nn import functional as F

from benchmarks import kept
from benchmarks.finetune import WORKS, data_folder, read
from benchmarks.harness import Options
from benchmarks.pretrain import LENGTH, MEGA, Peer, Way, compared, row_of, samples, ways
from bertkit.console import quietly
from bertkit.data.corpus import Corpus
from bertkit.data.readers import documents
from bertkit.families import FAMILIES
from bertkit.models.model import build
from bertkit.recipes.finetune import Finetune
from bertkit.recipes.prepare import prepare
from bertkit.recipes.pretrain import pretrain
from bertkit.recipes.run_file import PretrainConfig, heads_of, read_config
from bertkit.recipes.seeds import finetune_seeds
from bertkit.storage import write_text
from bertkit.text.train import train as train_vocabulary
from bertkit.view.chart import score_bars, write_svg

SHAPE = {"layers": 4, "hidden": 128, "heads": 2, "intermediate": 512, "length": LENGTH}
PIECES = 8_000
STEPS, BATCH = 1_000, 64
TRAIN = {
    "steps": STEPS,
    "batch_size": BATCH,
    "learning_rate": 1e-3,
    "warmup_steps": STEPS // 10,
    "evaluate_every": STEPS,
    "save_every": STEPS,
    "device": "cpu",
}
ALONE = {"pairs": "none", "length": LENGTH}
ACROSS = {**ALONE, "across": True, "short": 0.0}

VARIANTS: Mapping[str, dict[str, Any]] = {
    "BERT": {"family": "bert", "model": {}, "sampling": {"pairs": "nsp", "length": LENGTH}},
    "RoBERTa-style": {"family": "roberta", "model": {}, "sampling": ACROSS},
    "ALBERT-style": {
        "family": "albert",
        "model": {"embedding": 64, "order": [0, 0, 0, 0]},
        "sampling": {"pairs": "sop", "length": LENGTH},
        "masking": {"unit": "ngram"},
    },
    "ELECTRA-style": {
        "family": "electra",
        "model": {"embedding": 64},
        "generator": {"hidden": 64, "heads": 1, "intermediate": 256},
        "sampling": ALONE,
    },
    "modern encoder": {
        "family": "modernbert",
        "model": {"intermediate": 384, "attention": {"window": {"tokens": 32}}},
        "sampling": ACROSS,
        "masking": {"rate": 0.3},
        "train": {"schedule": "wsd", "decay_steps": STEPS // 5},
    },
}
"""What each changes of BERT, beside what its family decides."""

TASKS = {"sst2": 3, "mrpc": 5}
"""Epochs of fine-tuning, on at most so many rows."""
ROWS = 4_000
PEER_BATCH = 32


class Learned(msgspec.Struct, frozen=True, kw_only=True, tag="learned"):
    """A line of the log: what a variant came to. Of a score: mean and, over seeds, sd."""

    variant: str
    parameters: float
    scores: dict[str, dict[str, float]]


class Timed(msgspec.Struct, frozen=True, kw_only=True, tag="timed"):
    """A line of the log: how fast a variant's step is."""

    variant: str
    rows: list[kept.Row]


def main(options: Options) -> None:
    data, quick = data_folder(), options.quick
    path = kept.log_of("families")
    log = [] if quick else read_log(path)
    asked = [name for name in VARIANTS if options.only.lower() in name.lower()]
    book = options.book("families", lambda what, _: what.split(",")[0] in asked)
    if options.fresh and path.exists() and not quick:
        log = [line for line in log if line.variant not in asked]
        write_text(path, "".join(map(written, log)))
    with TemporaryDirectory() as place:
        corpus = make_corpus(data, Path(place), quick)
        for kind in (Learned, Timed):
            for name in VARIANTS:
                if any(isinstance(line, kind) and line.variant == name for line in log):
                    continue
                if options.late or name not in asked:
                    continue
                line: Learned | Timed
                if kind is Learned:
                    line = learned(name, corpus, data, Path(place), quick=quick)
                else:
                    line = Timed(variant=name, rows=speeds(name, corpus, quick=quick))
                log.append(line)
                if not quick:
                    kept.append(path, written(line))
    known = {line.variant: line for line in log if isinstance(line, Learned)}
    for name in known if "BERT" in known else ():
        book.add(*beside_bert(known[name], known["BERT"]))
    book.add(*(row for line in log if isinstance(line, Timed) for row in line.rows))
    book.close()
    if quick or known.keys() != VARIANTS.keys():
        return
    for what in known["BERT"].scores:
        scores = {name: known[name].scores[what] for name in VARIANTS}
        write_svg(kept.LOCAL / f"families-{what.split()[0]}.svg", score_bars(scores, what))


def written(line: Learned | Timed) -> str:
    return msgspec.json.encode(line).decode() + "\n"


def read_log(path: Path) -> list[Learned | Timed]:
    """What was measured before; it goes on from there."""
    return kept.lines(path, Learned | Timed)


def make_corpus(data: Path, place: Path, quick: bool) -> Corpus:
    """The reviews as a corpus, with a vocabulary of their own."""
    (source,) = (data / "prose_reviews").glob("*.jsonl.gz")
    texts = [document.text for document in islice(documents([source]), 300 if quick else 5_000)]
    tokenizer = train_vocabulary(texts, kind="wordpiece", size=PIECES)
    if quick:
        source = place / "few.jsonl"
        write_text(source, "".join(json.dumps({"text": text}) + "\n" for text in texts))
    with quietly():
        return prepare([source], tokenizer=tokenizer, out=place / "corpus")


def settings(name: str, *, quick: bool) -> dict[str, Any]:
    variant = VARIANTS[name]
    train = {**TRAIN, **variant.get("train", {})}
    if quick:
        train |= {"steps": 4, "warmup_steps": 1}
        train |= {"decay_steps": 2} if "decay_steps" in train else {}
    return {**variant, "model": {**SHAPE, **variant["model"]}, "train": train}


def learned(name: str, corpus: Corpus, data: Path, place: Path, *, quick: bool) -> Learned:
    """Pretrain one variant and fine-tune it."""
    out = place / name
    with quietly():
        found = pretrain(settings(name, quick=quick), corpus=corpus.folder, out=out)
        scores = {
            "loss of masked words": {"mean": found["mlm_loss"], "sd": 0.0},
            "masked words right": {"mean": found["mlm_accuracy"], "sd": 0.0},
        }
        for task, epochs in TASKS.items():
            work = WORKS[task]
            train, dev = read(work, data, "quick" if quick else "whole")
            tuned = finetune_seeds(
                2 if quick else 3,
                work.task,
                out,
                train=train[:ROWS],
                dev=dev,
                out=place / f"{name}, {task}",
                settings=Finetune(
                    epochs=1 if quick else epochs, learning_rate=3e-4, length=LENGTH, device="cpu"
                ),
            )
            score = tuned[work.scores[0]]
            scores[f"{task} {work.scores[0]}"] = {"mean": score["mean"], "sd": score["sd"]}
    config = read_config(settings(name, quick=quick), corpus.tokenizer())
    model = build(config.model, heads_of(config))
    parameters = sum(p.numel() for p in model.parameters()) / 1e6
    return Learned(variant=name, parameters=parameters, scores=scores)


def beside_bert(mine: Learned, bert: Learned) -> list[kept.Row]:
    """A row for each figure of a variant, beside BERT's."""
    rows = []
    for what, score in mine.scores.items():
        theirs = bert.scores[what]
        spread = f" (± {score['sd']:.4f}, BERT's ± {theirs['sd']:.4f})" if score["sd"] else ""
        rows.append(
            kept.row(
                f"{mine.variant}, {what}{spread}",
                score["mean"],
                theirs["mean"],
                peer_name="BERT, as many steps",
                unit="",
                target=1.0,
                better="lower" if what.startswith("loss") else "higher",
            )
        )
    rows.append(
        kept.row(
            f"{mine.variant}, parameters",
            mine.parameters,
            bert.parameters,
            peer_name="BERT, as many steps",
            unit="million",
            target=1.0,
            better="lower",
        )
    )
    return rows


# ---- speed


def speeds(name: str, corpus: Corpus, *, quick: bool) -> list[kept.Row]:
    """Our step against those of the peer; all sides take turns."""
    config = read_config(settings(name, quick=quick), corpus.tokenizer())
    return compared(
        f"{name}, pretraining step",
        config,
        corpus,
        {way: peer(config, corpus, way) for way in ways() if not way.masked_only},
        samples=BATCH,
        batch=PEER_BATCH,
        rounds=1 if quick else 5,
    )


def peer(config: PretrainConfig, corpus: Corpus, way: Way) -> Peer:
    """The same model in transformers."""
    import transformers

    family, heads = FAMILIES[config.family], heads_of(config)
    special = {"bos_token_id": None, "eos_token_id": None}
    shape = {**family.write_config(config.model), **special, "num_labels": 2}
    known = transformers.CONFIG_MAPPING[shape.pop("model_type")]
    torch.manual_seed(0)
    models: list[Any] = [
        getattr(transformers, family.architectures[frozenset(heads)])(known(**shape)).train()
    ]
    if config.generator is not None:
        small = {
            "hidden_size": config.generator.hidden,
            "num_attention_heads": config.generator.heads,
            "intermediate_size": config.generator.intermediate,
        }
        electra: Any = known(**{**shape, **small})
        models.append(transformers.ElectraForMaskedLM(electra).train())
    if way.numbers == "bf16":
        models = [model.to(torch.bfloat16) for model in models]
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(corpus.folder / "tokenizer" / "tokenizer.json"),
        pad_token="[PAD]",
        mask_token="[MASK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        unk_token="[UNK]",
    )
    drawn = samples(config, corpus).batch(0, MEGA * PEER_BATCH)
    return Peer(
        [row_of(sample, heads, types=config.model.token_types) for sample in drawn],
        [weight for model in models for weight in model.parameters()],
        lambda batch: _loss(models, batch),
        tokenizer,
        way,
        rate=config.masking.mlm_probability,
        samples=BATCH,
        batch=PEER_BATCH,
    )


def _loss(models: Sequence[Any], batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """The peer's own loss, or ELECTRA's from its two models."""
    model, *others = models
    if not others:
        own: torch.Tensor = model(**batch).loss
        return own
    (generator,) = others
    answer = generator(**batch)
    masked = batch["labels"] != -100
    chances = torch.softmax(answer.logits[masked].detach().float(), -1)
    drawn = torch.multinomial(chances, 1).squeeze(1)
    whole = torch.where(masked, batch["labels"], batch["input_ids"])
    ids = batch["input_ids"].masked_scatter(masked, drawn)
    seen = {k: v for k, v in batch.items() if k not in ("labels", "input_ids")}
    logits = model(input_ids=ids, **seen).logits[batch["attention_mask"] == 1]
    replaced = (ids != whole)[batch["attention_mask"] == 1]
    found: torch.Tensor = answer.loss + 50.0 * F.binary_cross_entropy_with_logits(
        logits.float(), replaced.float()
    )
    return found
