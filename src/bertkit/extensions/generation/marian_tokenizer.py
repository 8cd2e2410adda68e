"""Marian tokenizers, with one SentencePiece model per language.

The source and the target language usually share the token ids in `vocab.json`. Junczys-Dowmunt et
al. 2018 (Marian).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import processors

from bertkit.errors import TokenizerError
from bertkit.extensions.generation.sentencepiece_model import (
    NORMAL,
    UNKNOWN,
    USER,
    read_model,
    unigram,
)
from bertkit.extensions.generation.shared_vocabulary import train_shared
from bertkit.storage import VOCABULARY, read_bytes, read_json
from bertkit.text.file_limits import check_tokens
from bertkit.text.tokenizer_files import Language, Numbering, Opened, TokenizerFormat

FILES = ("source.spm", "target.spm", "vocab.json", "target_vocab.json")
"""Tokenizer files in a model directory. The last exists only if each language has its own token
ids."""


def open_marian(folder: Path, settings: dict[str, Any], side: Language) -> Opened:
    """Load the tokenizer of the source or target language.

    The tokens come from the SentencePiece model, and their ids from `vocab.json` or
    `target_vocab.json`.

    Args:
        folder: The model directory.
        settings: The content of `tokenizer_config.json`.
        side: The language: source or target.

    Raises:
        TokenizerError: If a file is missing or corrupted, or has the wrong type.
    """
    present = [name for name in FILES if (folder / name).is_file()]
    for name in FILES[:3]:
        if name not in present:
            raise TokenizerError(f"{folder / name}: not found; download the model directory again")
    files = {name: read_bytes(folder / name, TokenizerError, most=VOCABULARY) for name in present}
    is_separate = side == "target" and settings.get("separate_vocabs") is True
    vocabulary = folder / ("target_vocab.json" if is_separate else "vocab.json")
    ids = read_json(vocabulary, TokenizerError, "download the file again", most=VOCABULARY)
    if not isinstance(ids, dict) or {*ids.values()} != {*range(len(ids))}:
        raise TokenizerError(f"{vocabulary}: token ids must be 0, 1, 2, …; download the file again")
    missing = {"<unk>", "</s>", "<pad>"} - ids.keys()
    if missing:
        raise TokenizerError(f"{vocabulary}: has no {min(missing)}; download the file again")
    check_tokens(ids, str(vocabulary))
    model = read_model(folder / f"{side}.spm")
    # Control tokens must not match text. A leading space prevents this, because the pre-tokenizer
    # replaces all spaces in the text.
    tokens = [
        (token.piece if token.type in (NORMAL, UNKNOWN, USER) else f" {token.piece}", token.score)
        for token in model.pieces
    ]
    core = unigram(model, tokens)
    core.add_special_tokens(["</s>", "<unk>", "<pad>"])
    core.add_tokens([token for token in ids if token.startswith(">>") and token.endswith("<<")])
    core.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A $B </s>", special_tokens=[("</s>", core.token_to_id("</s>"))]
    )
    settings = {"tokenizer_class": "MarianTokenizer", **settings}
    return Opened(core, settings, folder, Numbering(ids, files))


MARIAN = TokenizerFormat("source.spm", open_marian, train_shared)
