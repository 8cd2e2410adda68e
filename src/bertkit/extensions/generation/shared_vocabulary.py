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
    """Train a Unigram vocabulary (Kudo 2018) on texts of both languages.

    The output directory contains Marian's files, with equal `source.spm` and `target.spm`, which
    `transformers` and CTranslate2 load.

    Args:
        texts: Texts of both languages.
        out: Output directory. Must not exist.
        size: Number of tokens.

    Returns:
        The tokenizer.

    Raises:
        ConfigError: If the texts are too small or too diverse for `size` tokens.
        DataError: If there is no text.
    """
    try:
        import sentencepiece
    except ImportError as error:
        raise missing_package(error) from None
    model = io.BytesIO()
    lines = [line for text in texts for line in text.split("\n") if line.strip()]
    if not lines:
        raise DataError("the texts contain no words")
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            # <pad> replaces <s> below, so the size stays the same.
            vocab_size=size,
            character_coverage=1.0,
            # SentencePiece would skip longer lines.
            max_sentence_length=max(len(line.encode()) for line in lines),
            # With several threads the result depends on the order of summation.
            num_threads=1,
            minloglevel=2,
        )
    except RuntimeError as error:
        reason = str(error).split("] ", 1)[-1].strip()
        raise ConfigError(f"size = {size}: does not fit the texts ({reason})") from None
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
