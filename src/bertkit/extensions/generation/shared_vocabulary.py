"""One vocabulary for two languages, in the files of Marian: SentencePiece learns it."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from pathlib import Path

from bertkit import storage
from bertkit.errors import ConfigError, DataError, missing_package
from bertkit.text.tokenizer import Tokenizer


def train_shared(texts: Iterable[str], out: Path, *, size: int) -> Tokenizer:
    """Learn `size` pieces (Unigram, Kudo 2018) from texts of both languages together.

    The folder has Marian's files, of which `source.spm` and `target.spm` are the same; so
    `transformers` and CTranslate2 open a model with it.
    Raises: ConfigError for a size that the texts do not fill, DataError if there is no text.
    """
    try:
        import sentencepiece
    except ImportError as error:
        raise missing_package(error) from None
    model = io.BytesIO()
    lines = [line for text in texts for line in text.split("\n") if line.strip()]
    if not lines:
        raise DataError("the texts hold no words; nothing can be learned from them")
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            vocab_size=size,  # of which <s> makes place for a pad
            character_coverage=1.0,
            max_sentence_length=max(len(line.encode()) for line in lines),  # it leaves out longer
            num_threads=1,  # or the pieces depend on the order of sums
            minloglevel=2,
        )
    except RuntimeError as error:
        said = str(error).split("] ", 1)[-1].strip()
        raise ConfigError(f"size = {size}: no vocabulary of the texts has it ({said})") from None
    learned = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    pieces = [learned.id_to_piece(i) for i in range(learned.get_piece_size())]
    names = ["</s>", "<unk>", *(p for p in pieces if p not in ("<s>", "</s>", "<unk>")), "<pad>"]
    with storage.new_folder(out) as place:
        for side in ("source", "target"):
            (place / f"{side}.spm").write_bytes(model.getvalue())
        vocabulary = json.dumps({name: i for i, name in enumerate(names)}, ensure_ascii=False)
        (place / "vocab.json").write_text(vocabulary, encoding="utf-8")
        settings = {"tokenizer_class": "MarianTokenizer", "source_lang": "", "target_lang": ""}
        (place / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return Tokenizer.load(out)
