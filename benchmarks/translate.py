"""German captions into English (Multi30k): a Transformer from nothing, and how fast it writes.

Trained for ten epochs by `transformer-small`, with the vocabulary learned from the same pairs; BLEU
is that of sacrebleu on the validation set, case kept, beside what is published of a Transformer of
9 million parameters after as many epochs (of lower-cased words). The same folder is then opened by
`transformers` and, where it is installed, CTranslate2, and each translates the validation set with
five beams, tokenizing included: `transformers` 32 sentences at a time, of near-equal length;
CTranslate2 in batches of its own making. Needs BERTKIT_DATA.
"""

from __future__ import annotations

import gzip
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

import bertkit
from benchmarks import kept
from benchmarks.harness import Options, compare
from bertkit.config import override, read_toml
from bertkit.models.decoding import Decoding
from bertkit.recipes.bleu import evaluate_translation
from bertkit.recipes.prepare_pairs import prepare_pairs
from bertkit.recipes.pretrain import pretrain
from bertkit.recipes.variants import find_run_file
from bertkit.recipes.vocabulary import train_vocabulary

EPOCHS, PIECES, BEAMS = 10, 8000, 5
UNCASED = "9M parameters, lower-cased"
PUBLISHED = 36.52
"""BLEU of lower-cased words: bentrevett/pytorch-seq2seq at b3cd54c, notebook 6."""

Translate = Callable[[list[str]], list[str]]


def main(options: Options) -> None:
    data = os.environ.get("BERTKIT_DATA")
    if data is None:
        sys.exit("BERTKIT_DATA: names no folder of data sets, and Multi30k is among them")
    book = options.book("translate")
    with TemporaryDirectory() as place:
        folder = Path(place)
        for part in ("train", "val"):
            for language in ("de", "en"):
                packed = Path(data, "multi30k", f"{part}.{language}.gz").read_bytes()
                (folder / f"{part}.{language}").write_bytes(gzip.decompress(packed))
        run = trained(folder, quick=options.quick)
        quality = "BLEU on the validation set, five beams"
        if book.wanted(quality, UNCASED):
            found = evaluate_translation(
                run, folder / "val.de", folder / "val.en", decoding=Decoding(beams=BEAMS)
            )
            book.add(
                kept.row(
                    quality, found.bleu, PUBLISHED, peer_name=UNCASED,
                    unit="BLEU", target=33 / PUBLISHED, better="higher",
                    how=(kept.How(found.signatures[0]), kept.How("published")),
                )
            )  # fmt: skip
        texts = (folder / "val.de").read_text(encoding="utf-8").splitlines()
        ours = bertkit.pipeline("generate", run)
        decoding = Decoding(beams=BEAMS)

        def own() -> list[str]:
            return [best.text for best, *_ in ours(texts, decoding)]

        tokens = sum(best.tokens for best, *_ in ours(texts, decoding))
        what = f"decoding, {BEAMS} beams, fp32"
        for name, target, peer, settings in peers(run):
            if book.wanted(what, name):
                same = sum(a == b for a, b in zip(own(), peer(texts), strict=True))
                book.add(
                    compare(
                        what, own, partial(peer, texts), peer_name=name, unit="tokens",
                        work=tokens, target=target,
                        how=(
                            kept.How(f"{same} of {len(texts)} texts are alike"),
                            kept.How(settings),
                        ),
                    )
                )  # fmt: skip
    book.close()


def trained(folder: Path, *, quick: bool) -> Path:
    """The run of a model that learned the pairs."""
    files = [folder / "train.de", folder / "train.en"]
    named = [file.rename(file.with_name(f"{file.name}.txt")) for file in files]
    train_vocabulary(named, out=folder / "v", kind="unigram", use="translate", size=PIECES)
    pairs = prepare_pairs(
        source=named[0], target=named[1], tokenizer=folder / "v", out=folder / "pairs"
    )
    steps = 60 if quick else EPOCHS * pairs.manifest.pairs // 128
    settings = override(
        read_toml(find_run_file(Path("transformer-small"))),
        [("train.steps", str(steps)), ("train.evaluate_every", "500")],
    )
    pretrain(settings, corpus=folder / "pairs", out=folder / "run")
    return folder / "run"


def peers(run: Path) -> Iterator[tuple[str, float, Translate, str]]:
    """Each peer's name, what is aimed at, how it translates, and its settings."""
    from transformers import MarianMTModel

    model = MarianMTModel.from_pretrained(run).eval()
    ours = bertkit.pipeline("generate", run)
    source, target = ours.tokenizer, ours.target

    def transformers(texts: list[str]) -> list[str]:
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

    yield "transformers", 3.0, transformers, "32 sentences of near-equal length at a time"
    if importlib.util.find_spec("ctranslate2") is None:
        return
    import ctranslate2
    from ctranslate2.converters import TransformersConverter

    for numbers, aim in (("float32", 1.0), ("int8", 0.8)):
        place = str(run.parent / numbers)
        TransformersConverter(str(run)).convert(place, quantization=numbers)
        translator = ctranslate2.Translator(
            place, compute_type=numbers, intra_threads=torch.get_num_threads()
        )

        def translate(texts: list[str], translator: Any = translator) -> list[str]:
            rows = [source.pieces(one.ids) for one in source.encode_batch(texts)]
            found = translator.translate_batch(rows, beam_size=BEAMS, max_batch_size=64)
            return ["".join(one.hypotheses[0]).replace("▁", " ").strip() for one in found]

        yield f"CTranslate2, {numbers}", aim, translate, "64 sentences at a time"
