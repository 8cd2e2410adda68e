"""German captions into English (Multi30k): how fast a Transformer learns, what it has learned from
nothing, and how fast it writes.

Trained for ten epochs by `transformer-small`, with the vocabulary learned from the same pairs; BLEU
is that of sacrebleu on the validation set, case kept, beside what is published of a Transformer of
9 million parameters after as many epochs (of lower-cased words). The same folder is then opened by
`transformers` and, where it is installed, CTranslate2, and each translates the validation set with
five beams in one precision, tokenizing included: `transformers` 32 sentences at a time, of
near-equal length; CTranslate2 in batches of its own making. Where joeynmt is installed
(`benchmarks/joey.py` says how), it translates with the same weights, and learns beside ours and
transformers' `Trainer` (`benchmarks/marian.py`; --only training). Needs BERTKIT_DATA.
"""

from __future__ import annotations

import gzip
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from sacrebleu import corpus_bleu

import bertkit
from benchmarks import kept, marian
from benchmarks.harness import Options, bf16_here, compare
from benchmarks.joey import LANGUAGES, Joey, installed
from bertkit.config import override, read_toml
from bertkit.data.pairs import Pairs
from bertkit.models.decoding import Decoding
from bertkit.recipes.bleu import evaluate_translation
from bertkit.recipes.prepare_pairs import prepare_pairs
from bertkit.recipes.pretrain import pretrain
from bertkit.recipes.run_file import read_config
from bertkit.recipes.variants import find_run_file
from bertkit.recipes.vocabulary import train_vocabulary

EPOCHS, PIECES, BEAMS = 10, 8000, 5
UNCASED = "9M parameters, lower-cased"
PUBLISHED = 36.52
"""BLEU of lower-cased words: bentrevett/pytorch-seq2seq at b3cd54c, notebook 6."""

DECODING = f"decoding, {BEAMS} beams, {{}}"
THEIRS = {"fp32": "float32", "bf16": "bfloat16", "int8": "int8"}
"""Our precision -> CTranslate2's name of it."""

Translate = Callable[[list[str]], list[str]]


def main(options: Options) -> None:
    data = os.environ.get("BERTKIT_DATA")
    if data is None:
        sys.exit("BERTKIT_DATA: names no folder of data sets, and Multi30k is among them")
    book = options.book("translate")
    if not installed():
        book.leave_out("joeynmt: not measured, benchmarks/joey.py says how to install it")
    with TemporaryDirectory() as place:
        folder = Path(place)
        unpack(Path(data, "multi30k"), folder, quick=options.quick)
        pairs, settings = prepared(folder)
        config = read_config(settings, pairs.tokenizer())
        joey = Joey(folder / "joey", pairs.tokenizer(), config)
        if book.wanted(marian.WHAT, *marian.PEERS):
            for part in ("train", "val"):
                joey.write(part, [lines(folder / f"{part}.{side}.txt") for side in LANGUAGES])
            book.add(*marian.rows(settings, pairs.folder, joey, quick=options.quick))
        quality = "BLEU on the validation set, five beams"
        names = ["transformers", "CTranslate2", "joeynmt"]
        writes = any(book.wanted(DECODING.format(precision), *names) for precision in THEIRS)
        if book.wanted(quality, UNCASED) or writes:
            steps = 60 if options.quick else EPOCHS * pairs.manifest.pairs // 128
            settings = override(settings, [("train.steps", str(steps))])
            pretrain(settings, corpus=pairs.folder, out=folder / "run")
            if book.wanted(quality, UNCASED):
                book.add(scored(quality, folder))
            decoded(book, folder, joey)
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
    files = [folder / "train.de.txt", folder / "train.en.txt"]
    train_vocabulary(files, out=folder / "v", kind="unigram", use="translate", size=PIECES)
    pairs = prepare_pairs(
        source=files[0], target=files[1], tokenizer=folder / "v", out=folder / "pairs"
    )
    return pairs, read_toml(find_run_file(Path("transformer-small")))


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


def decoded(book: kept.Book, folder: Path, joey: Joey) -> None:
    """How fast the run's folder writes: here, in transformers, in CTranslate2, in joeynmt."""
    run, texts = folder / "run", lines(folder / "val.de.txt")
    right = lines(folder / "val.en.txt")
    precisions = ["fp32", *["bf16"] * bf16_here(), "int8"]
    for precision in precisions:
        what = DECODING.format(precision)
        pipeline = bertkit.pipeline("generate", run, precision=precision)  # type: ignore[call-overload]

        def own(pipeline: Any = pipeline) -> list[str]:
            return [best.text for best, *_ in pipeline(texts, Decoding(beams=BEAMS))]

        tokens = sum(best.tokens for best, *_ in pipeline(texts, Decoding(beams=BEAMS)))
        for name, target, peer, settings in peers(run, precision):
            if book.wanted(what, name):
                ours, theirs = own(), peer(texts)
                same = sum(a == b for a, b in zip(ours, theirs, strict=True))
                bleus = [corpus_bleu(side, [right]).score for side in (ours, theirs)]
                book.add(
                    compare(
                        what, own, partial(peer, texts), peer_name=name, unit="tokens",
                        work=tokens, target=target,
                        how=(
                            kept.How(
                                f"{same} of {len(texts)} texts are alike, BLEU {bleus[0]:.2f}"
                            ),
                            kept.How(f"{settings}, BLEU {bleus[1]:.2f}"),
                        ),
                    )
                )  # fmt: skip
        if precision == "fp32" and installed() and book.wanted(what, "joeynmt"):
            book.add(beside_joeynmt(joey, run, texts, own, tokens))


def beside_joeynmt(
    joey: Joey, run: Path, texts: list[str], own: Callable[[], list[str]], tokens: int
) -> kept.Row:
    """Tokens/s of the same weights in joeynmt. Its texts differ where its length penalty decides
    otherwise, and so each side's own tokens count."""
    rates: tuple[list[float], list[float]] = ([], [])
    own()
    for _ in range(3):
        start = time.perf_counter()
        ours = own()
        rates[0].append(tokens / (time.perf_counter() - start))
        seconds, written, theirs = joey.decode(run, texts, beams=BEAMS)
        rates[1].append(written / seconds)
    same = sum(a == b for a, b in zip(ours, theirs, strict=True))
    return kept.row(
        DECODING.format("fp32"), median(rates[0]), median(rates[1]), peer_name="joeynmt",
        unit="tokens/s", target=5.0, better="higher",
        how=(
            kept.How(f"{same} of {len(texts)} texts are alike"),
            kept.How("the same weights, no bias; 32 sentences of near-equal length at a time"),
        ),
    )  # fmt: skip


def peers(run: Path, precision: str) -> Iterator[tuple[str, float, Translate, str]]:
    """Each peer's name, what is aimed at, how it translates, and its settings."""
    loaded = bertkit.load(run)
    source = loaded.tokenizer
    if precision != "int8":
        yield "transformers", 3.0, transformers(run, precision), "32 of near-equal length at a time"
    if importlib.util.find_spec("ctranslate2") is None:
        return
    import ctranslate2
    from ctranslate2.converters import TransformersConverter

    place, numbers = str(run.parent / precision), THEIRS[precision]
    TransformersConverter(str(run)).convert(place, quantization=numbers)
    translator = ctranslate2.Translator(
        place, compute_type=numbers, intra_threads=torch.get_num_threads()
    )

    def translate(texts: list[str]) -> list[str]:
        rows = [source.pieces(one.ids) for one in source.encode_batch(texts)]
        found = translator.translate_batch(rows, beam_size=BEAMS, max_batch_size=64)
        return ["".join(one.hypotheses[0]).replace("▁", " ").strip() for one in found]

    yield "CTranslate2", 0.8 if precision == "int8" else 1.0, translate, "64 sentences at a time"


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
