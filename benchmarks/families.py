"""BERT and its relatives at one small size, from the same text: what each learns, and how fast.

Every variant is pretrained by bertkit's recipe on the film reviews of `prose_reviews`, cut by one
WordPiece vocabulary, for as many steps of as many samples; then fine-tuned with three seeds on a
part of SST-2 and on MRPC. Held-out text is masked alike for all, 15 % of its tokens, so that the
losses of masked words compare; ELECTRA's is that of its generator, smaller than the others.

Speed is that of one optimizer step: ours draws its samples and masks them within the measured
time, the peer's are in memory, and it neither clips gradients nor schedules the learning rate. The
peer of ELECTRA is written out here: transformers has a generator and a discriminator, and nothing
that trains the two. BERTKIT_DATA names the folder of the data.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.nn import functional as F

from benchmarks import harness
from benchmarks.finetune import WORKS, data_folder, read
from benchmarks.pretrain import LENGTH, every_nth, ours, row_of, samples
from bertkit.console import quietly
from bertkit.data.corpus import Corpus
from bertkit.data.readers import documents
from bertkit.data.segments import Sample
from bertkit.families import FAMILIES
from bertkit.models.model import build
from bertkit.recipes.finetune import Finetune, finetune_seeds
from bertkit.recipes.page import bars
from bertkit.recipes.prepare import prepare
from bertkit.recipes.pretrain import pretrain
from bertkit.recipes.run_file import PretrainConfig, heads_of, read_config
from bertkit.storage import write_text
from bertkit.text.train import train as train_vocabulary

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
        "model": {"intermediate": 384, "window": 32},
        "sampling": ACROSS,
        "masking": {"rate": 0.3},
        "train": {"schedule": "wsd", "decay_steps": STEPS // 5},
    },
}
"""What each changes of BERT, beside what its family decides."""

TASKS = {"sst2": 3, "mrpc": 5}
"""Epochs of fine-tuning, on at most so many rows."""
ROWS = 4_000
PICTURES = Path(__file__).parents[1] / "docs" / "science"
SPEEDS = (5.0, 2.0)
"""Targets of the speed, against the peer in fp32 and under bf16 autocast."""
PEER_BATCH, PEER_SAMPLES = 32, 64


def main(*, quick: bool = False) -> None:
    data = data_folder()
    rows: list[harness.Row] = []
    scores: dict[str, dict[str, float]] = {}
    drawn: dict[str, dict[str, list[float]]] = {}
    with TemporaryDirectory() as place:
        corpus = make_corpus(data, Path(place), quick)
        for name in VARIANTS:
            scores[name], seeds = learned(name, corpus, data, Path(place), quick=quick)
            for what, each in seeds.items():
                drawn.setdefault(what, {})[name] = each
            rows += [*beside_bert(name, scores), *speeds(name, corpus, quick=quick)]
            if not quick:
                harness.write("families", rows)
    if quick:
        harness.show("families, quick", rows)
        return
    for what, bars_of in drawn.items():
        bars(PICTURES / f"families-{what.split()[0]}.svg", bars_of, what)


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


def learned(
    name: str, corpus: Corpus, data: Path, place: Path, *, quick: bool
) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Pretrain one variant and fine-tune it.

    Its scores, size (millions) and time (s), and what is drawn of it: one score a seed.
    """
    out = place / name
    seeds: dict[str, list[float]] = {}
    with quietly():
        began = time.perf_counter()
        found = pretrain(settings(name, quick=quick), corpus=corpus.folder, out=out)
        scores = {
            "pretraining": time.perf_counter() - began,
            "masked-word loss": found["mlm_loss"],
            "masked words right": found["mlm_accuracy"],
        }
        for task, epochs in TASKS.items():
            work = WORKS[task]
            train, dev = read(work, data, quick=quick)
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
            scores[f"{task} {work.scores[0]}"] = score["mean"]
            scores[f"{task} sd"] = score["sd"]
            seeds[f"{task} {work.scores[0]}"] = score["each"]
    config = read_config(settings(name, quick=quick), corpus.tokenizer())
    model = build(config.model, heads_of(config))
    scores["parameters"] = sum(p.numel() for p in model.parameters()) / 1e6
    return scores, {"masked-word loss, held out": [scores["masked-word loss"]], **seeds}


def beside_bert(name: str, scores: Mapping[str, Mapping[str, float]]) -> list[harness.Row]:
    """A row for each figure of a variant, beside BERT's."""
    units = {"pretraining": "s", "parameters": "million"}
    mine, berts = scores[name], scores["BERT"]
    return [
        harness.row(
            f"{name}, {what}" + (f" (± {mine[sd]:.4f}, BERT's ± {berts[sd]:.4f})" if tuned else ""),
            mine[what],
            berts[what],
            peer_name="BERT, as many steps",
            unit=units.get(what, ""),
            target=1.0,
            better="higher" if tuned or what == "masked words right" else "lower",
        )
        for what in mine
        if not what.endswith(" sd")
        for sd in [f"{what.partition(' ')[0]} sd"]
        for tuned in [sd in mine]
    ]


# ---- speed


def speeds(name: str, corpus: Corpus, *, quick: bool) -> list[harness.Row]:
    """Our step against the peer's steps, in its default precision and under bf16 autocast."""
    config = read_config(settings(name, quick=quick), corpus.tokenizer())
    drawn = samples(config, corpus).batch(0, BATCH)
    fed = every_nth(drawn, PEER_SAMPLES)
    return [
        harness.compare(
            f"{name}, pretraining step",
            ours(config, corpus),
            peer(config, fed, corpus, autocast=autocast),
            peer_name=f"transformers, {'bf16 autocast' if autocast else 'fp32'}",
            unit="tokens/s",
            work=(sum(map(len, drawn)), sum(map(len, fed))),
            target=target,
            repeats=1 if quick else 5,
        )
        for autocast, target in zip((False, True), SPEEDS, strict=True)
    ]


def peer(
    config: PretrainConfig, fed: Sequence[Sample], corpus: Corpus, *, autocast: bool
) -> Callable[[], None]:
    """Steps of the same model in transformers over the samples: mask, pad, learn."""
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
    weights = [weight for model in models for weight in model.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=1e-4)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(corpus.folder / "tokenizer" / "tokenizer.json"),
        pad_token="[PAD]",
        mask_token="[MASK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        unk_token="[UNK]",
    )
    collator = transformers.DataCollatorForLanguageModeling(
        tokenizer, mlm_probability=config.masking.rate, pad_to_multiple_of=LENGTH
    )
    rows = [row_of(sample, heads, types=config.model.types) for sample in fed]

    def call() -> None:
        for start in range(0, len(rows), PEER_BATCH):
            batch = collator(rows[start : start + PEER_BATCH])
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                loss = _loss(models, batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    return call


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
