"""German captions into English (Multi30k): how fast a Transformer learns, what it has learned from
nothing, and how fast it writes.

Trained for ten epochs by `transformer-small`, with the vocabulary learned from the same pairs; BLEU
is that of sacrebleu on the validation set, case kept, beside what is published of a Transformer of
9 million parameters after as many epochs (of lower-cased words). The same folder is then opened by
`transformers` and, where it is installed, CTranslate2, and each translates the validation set with
five beams in one precision, tokenizing included: `transformers` 32 sentences at a time, of
near-equal length; CTranslate2 in batches of its own making. Where joeynmt is installed
(`benchmarks/joey.py` says how), it translates with the same weights, and learns beside ours and
transformers' `Trainer` (`benchmarks/marian.py`; --only training). All sides have
processes of their own: once CTranslate2 has run in one, torch is a fourth slower there. What was
trained stays in runs/translate and is not trained again. Needs BERTKIT_DATA.
"""

from __future__ import annotations

import gzip
import importlib.util
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from sacrebleu import corpus_bleu

import bertkit
from benchmarks import kept, marian
from benchmarks.harness import Options, apart, bf16_here, once
from benchmarks.joey import LANGUAGES, Joey, installed
from bertkit.config import override
from bertkit.data.pairs import Pairs
from bertkit.models.decoding import Decoding
from bertkit.recipes.bleu import evaluate_translation
from bertkit.recipes.prepare_pairs import prepare_pairs
from bertkit.recipes.pretrain import pretrain
from bertkit.recipes.run_file import read_config, read_run_file
from bertkit.recipes.vocabulary import train_vocabulary

RUNS = Path("runs", "translate")
EPOCHS, PIECES, BEAMS = 10, 8000, 5
UNCASED = "9M parameters, lower-cased"
PUBLISHED = 36.52
"""BLEU of lower-cased words: bentrevett/pytorch-seq2seq at b3cd54c, notebook 6."""

DECODING = f"decoding, {BEAMS} beams, {{}}"
THEIRS = {"fp32": "float32", "bf16": "bfloat16", "int8": "int8"}
"""Our precision -> CTranslate2's name of it."""

HOW = {
    "transformers": "32 of near-equal length at a time",
    "CTranslate2": "64 sentences at a time",
    "joeynmt": "the same weights, no bias; 32 sentences of near-equal length at a time",
}

Translate = Callable[[list[str]], list[str]]


def main(options: Options) -> None:
    data = os.environ.get("BERTKIT_DATA")
    if data is None:
        sys.exit("BERTKIT_DATA: names no folder of data sets, and Multi30k is among them")
    book = options.book("translate")
    if not installed():
        book.leave_out("joeynmt: not measured, benchmarks/joey.py says how to install it")
    with ExitStack() as stack:
        folder = RUNS
        if options.quick:
            folder = Path(stack.enter_context(TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        unpack(Path(data, "multi30k"), folder, quick=options.quick)
        pairs, settings = prepared(folder)
        joey = Joey(folder / "joey", pairs.tokenizer(), read_config(settings, pairs.tokenizer()))
        if book.wanted(marian.WHAT, *marian.PEERS):
            for part in ("train", "val"):
                joey.write(part, [lines(folder / f"{part}.{side}.txt") for side in LANGUAGES])
            book.add(*marian.rows(settings, pairs.folder, joey, quick=options.quick))
        learn = partial(learned, folder, pairs, settings, quick=options.quick)
        quality = "BLEU on the validation set, five beams"
        if book.wanted(quality, UNCASED):
            learn()
            book.add(scored(quality, folder))
        for precision in ("fp32", *["bf16"] * bf16_here(), "int8"):
            for name, target in targets(precision).items():
                if book.wanted(DECODING.format(precision), name):
                    learn()
                    book.add(decoding(folder, joey, precision, name, target))
    book.close()


def unpack(packed: Path, folder: Path, *, quick: bool) -> None:
    for part in ("train", "val"):
        for side in ("de", "en"):
            content = gzip.decompress((packed / f"{part}.{side}.gz").read_bytes())
            some = content.splitlines(keepends=True)[: 64 if quick and part == "val" else None]
            (folder / f"{part}.{side}.txt").write_bytes(b"".join(some))


def lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines()


def prepared(folder: Path) -> tuple[Pairs, dict[str, Any]]:
    """Pairs to learn from, with a vocabulary learned from them, and the run file."""
    files, place = [folder / "train.de.txt", folder / "train.en.txt"], folder / "pairs"
    settings = read_run_file("transformer-small")
    vocabulary = once(
        folder / "v",
        lambda out: train_vocabulary(files, out=out, kind="unigram", use="translate", size=PIECES),
    )
    once(
        place,
        lambda out: prepare_pairs(source=files[0], target=files[1], tokenizer=vocabulary, out=out),
    )
    return Pairs.open(place), settings


def learned(folder: Path, pairs: Pairs, settings: dict[str, Any], *, quick: bool) -> None:
    """The run, where it is not there yet."""
    steps = 60 if quick else EPOCHS * pairs.manifest.pairs // 128
    settings = override(settings, [("train.steps", str(steps))])
    once(folder / "run", lambda out: pretrain(settings, corpus=pairs.folder, out=out))


def scored(what: str, folder: Path) -> kept.Row:
    """BLEU of the run."""
    found = evaluate_translation(
        folder / "run", folder / "val.de.txt", folder / "val.en.txt", decoding=Decoding(beams=BEAMS)
    )
    return kept.row(
        what, found.bleu, PUBLISHED, peer_name=UNCASED,
        unit="BLEU", target=33 / PUBLISHED, better="higher",
        how=(kept.How(found.signatures[0]), kept.How("published")),
    )  # fmt: skip


def targets(precision: str) -> dict[str, float]:
    """The peers that write in a precision, and what is aimed at beside each."""
    peers: dict[str, float] = {}
    if precision != "int8":
        peers["transformers"] = 3.0
    if importlib.util.find_spec("ctranslate2") is not None:
        from ctranslate2 import get_supported_compute_types

        if THEIRS[precision] in get_supported_compute_types("cpu"):
            peers["CTranslate2"] = 0.8 if precision == "int8" else 1.0
    if precision == "fp32" and installed():
        peers["joeynmt"] = 5.0
    return peers


def decoding(folder: Path, joey: Joey, precision: str, name: str, target: float) -> kept.Row:
    """How fast the run's folder writes, here and in a peer: tokens/s of processes of their own, in
    turn, medians. A peer's texts may differ, and so each side's own tokens count."""
    right = lines(folder / "val.en.txt")
    rates: dict[str, list[float]] = {"ours": [], name: []}
    texts: dict[str, list[str]] = {}
    for _ in range(3):
        for side, measured in rates.items():
            if side == "joeynmt":
                read = lines(folder / "val.de.txt")
                seconds, tokens, texts[side] = joey.decode(folder / "run", read, beams=BEAMS)
            else:
                seconds, tokens, texts[side] = apart(translated, folder, precision, side)
            measured.append(tokens / seconds)
    same = sum(a == b for a, b in zip(*texts.values(), strict=True))
    bleus = [f"BLEU {corpus_bleu(side, [right]).score:.2f}" for side in texts.values()]
    return kept.row(
        DECODING.format(precision), median(rates["ours"]), median(rates[name]), peer_name=name,
        unit="tokens/s", target=target, better="higher",
        how=(
            kept.How(f"{same} of {len(right)} texts are alike, {bleus[0]}"),
            kept.How(f"{HOW[name]}, {bleus[1]}"),
        ),
    )  # fmt: skip


def translated(folder: Path, precision: str, side: str) -> tuple[float, int, list[str]]:
    """Seconds of the second time, tokens with their ends, and the texts."""
    makers = {"ours": ours, "transformers": transformers, "CTranslate2": ctranslate2}
    texts, translate = lines(folder / "val.de.txt"), makers[side](folder / "run", precision)
    translate(texts)
    start = time.perf_counter()
    written = translate(texts)
    seconds = time.perf_counter() - start
    target = bertkit.load(folder / "run").target
    return seconds, sum(len(ids) + 1 for ids in target.ids(written)), written


def ours(run: Path, precision: str) -> Translate:
    """How bertkit translates."""
    pipeline = bertkit.pipeline("generate", run, precision=precision)  # type: ignore[call-overload]

    def translate(texts: list[str]) -> list[str]:
        return [best.text for best, *_ in pipeline(texts, Decoding(beams=BEAMS))]

    return translate


def ctranslate2(run: Path, precision: str) -> Translate:
    """How CTranslate2 translates."""
    from ctranslate2 import Translator
    from ctranslate2.converters import TransformersConverter

    source, numbers = bertkit.load(run).tokenizer, THEIRS[precision]
    place = str(run.parent / f"ctranslate2-{precision}")
    TransformersConverter(str(run)).convert(place, quantization=numbers, force=True)
    translator = Translator(place, compute_type=numbers, intra_threads=torch.get_num_threads())

    def translate(texts: list[str]) -> list[str]:
        rows = [source.pieces(one.ids) for one in source.encode_batch(texts)]
        found = translator.translate_batch(rows, beam_size=BEAMS, max_batch_size=64)
        return ["".join(one.hypotheses[0]).replace("▁", " ").strip() for one in found]

    return translate


def transformers(run: Path, precision: str) -> Translate:
    """How transformers translates."""
    from transformers import MarianMTModel

    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    model = MarianMTModel.from_pretrained(run, dtype=dtype).eval()
    loaded = bertkit.load(run)
    source, target = loaded.tokenizer, loaded.target

    def translate(texts: list[str]) -> list[str]:
        read = [torch.from_numpy(one.ids) for one in source.encode_batch(texts)]
        order = sorted(range(len(read)), key=lambda place: len(read[place]))
        written = [""] * len(read)
        for first in range(0, len(order), 32):
            places = order[first : first + 32]
            rows = [read[place] for place in places]
            ids = torch.nn.utils.rnn.pad_sequence(rows, True, source.pad)
            with torch.inference_mode():
                found = model.generate(
                    ids, attention_mask=(ids != source.pad).long(), num_beams=BEAMS,
                    max_new_tokens=2 * ids.shape[1] + 20,
                )  # fmt: skip
            for place, row in zip(places, found, strict=True):
                written[place] = target.decode(row)
        return written

    return translate
