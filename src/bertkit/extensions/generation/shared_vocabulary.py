"""Training of one SentencePiece vocabulary for two languages, in Marian's file format."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from pathlib import Path

from bertkit import storage
from bertkit.errors import ConfigError, DataError, missing_package
from bertkit.text.tokenizer import Tokenizer


def train_shared(texts: Iterable[str], out: Path, *, size: int) -> Tokenizer:
    """Train one Unigram vocabulary (Kudo 2018) for the source and the target language.

    The output directory contains the tokenizer files of Marian, which `transformers` and
    CTranslate2 can load. `source.spm` and `target.spm` are identical.

    Args:
        texts: Texts in both languages.
        out: Output directory. Must not exist.
        size: Number of tokens in the vocabulary.

    Returns:
        The tokenizer.

    Raises:
        ConfigError: If a vocabulary of `size` tokens is too large or too small for the texts.
        DataError: If the texts contain no words.
    """
    try:
        import sentencepiece
    except ImportError as error:
        raise missing_package(error) from None
    model = io.BytesIO()
    lines = [line for text in texts for line in text.split("\n") if line.strip()]
    if not lines:
        raise DataError("the texts contain no words; add text in both languages")
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            # <pad> replaces <s> below, so the size does not change.
            vocab_size=size,
            character_coverage=1.0,
            # SentencePiece would skip longer lines.
            max_sentence_length=max(len(line.encode()) for line in lines),
            # With several threads, the result would depend on the order of summation.
            num_threads=1,
            minloglevel=2,
        )
    except RuntimeError as error:
        reason = str(error).split("] ", 1)[-1].strip()
        raise ConfigError(
            f"size = {size}: not possible for these texts ({reason}); use another size"
        ) from None
    trained = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    tokens = [trained.id_to_piece(i) for i in range(trained.get_piece_size())]
    names = ["</s>", "<unk>", *(t for t in tokens if t not in ("<s>", "</s>", "<unk>")), "<pad>"]
    with storage.new_folder(out) as folder:
        for side in ("source", "target"):
            (folder / f"{side}.spm").write_bytes(model.getvalue())
        vocabulary = json.dumps({name: i for i, name in enumerate(names)}, ensure_ascii=False)
        (folder / "vocab.json").write_text(vocabulary, encoding="utf-8")
        settings = {"tokenizer_class": "MarianTokenizer", "source_lang": "", "target_lang": ""}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return Tokenizer.load(out)
