"""Marian's vocabularies: two SentencePiece models, of the language that is read and of the one that
is written, and one numbering of the pieces of both. Junczys-Dowmunt et al. 2018 (Marian).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from bertkit.errors import TokenizerError
from bertkit.extensions.generation.shared_vocabulary import train_shared
from bertkit.storage import VOCABULARY, read_bytes, read_json
from bertkit.text.file_limits import check_added, check_charsmap, check_tokens
from bertkit.text.tokenizer_files import Language, Numbering, Opened, TokenizerFormat

FILES = ("source.spm", "target.spm", "vocab.json", "target_vocab.json")
"""Of a folder; the last where each side has a numbering of its own."""

UNIGRAM, NORMAL, UNKNOWN, USER = 1, 1, 2, 4
"""Kinds of models and of pieces, as SentencePiece's files number them."""


def open_marian(folder: Path, settings: dict[str, Any], side: Language) -> Opened:
    """Open the SentencePiece model of one side, with the ids of the vocabulary.

    Raises:
        TokenizerError: If a file is missing, damaged, or of another type.
    """
    present = [name for name in FILES if (folder / name).is_file()]
    for name in FILES[:3]:
        if name not in present:
            raise TokenizerError(f"{folder / name}: no such file; fetch the whole folder again")
    files = {name: read_bytes(folder / name, TokenizerError, most=VOCABULARY) for name in present}
    own = side == "target" and settings.get("separate_vocabs") is True
    vocabulary = folder / ("target_vocab.json" if own else "vocab.json")
    ids = read_json(vocabulary, TokenizerError, "fetch the file again", most=VOCABULARY)
    if not isinstance(ids, dict) or {*ids.values()} != {*range(len(ids))}:
        raise TokenizerError(f"{vocabulary}: does not number its pieces from 0; fetch it again")
    lacking = {"<unk>", "</s>", "<pad>"} - ids.keys()
    if lacking:
        raise TokenizerError(f"{vocabulary}: has no {min(lacking)}; fetch the file again")
    check_tokens(ids, str(vocabulary))
    core = _unigram(folder / f"{side}.spm", files[f"{side}.spm"])
    core.add_special_tokens(["</s>", "<unk>", "<pad>"])
    core.add_tokens([piece for piece in ids if piece.startswith(">>") and piece.endswith("<<")])
    core.post_processor = processors.TemplateProcessing(
        single="$A </s>",
        pair="$A $B </s>",
        special_tokens=[("</s>", core.token_to_id("</s>"))],
    )
    settings = {"tokenizer_class": "MarianTokenizer", **settings}
    return Opened(core, settings, folder, Numbering(ids, files))


def _unigram(path: Path, content: bytes) -> tokenizers.Tokenizer:
    """A SentencePiece model as an object of the `tokenizers` library."""
    try:
        from google.protobuf.message import DecodeError
        from sentencepiece import sentencepiece_model_pb2 as sentencepiece
    except ImportError:
        raise TokenizerError(
            f"{path}: reading it needs SentencePiece; pip install 'bertkit[generation]'"
        ) from None
    model = sentencepiece.ModelProto()  # type: ignore[attr-defined]  # made when it is imported
    try:
        model.ParseFromString(content)
    except DecodeError as error:
        raise TokenizerError(f"{path}: no SentencePiece model ({error}); fetch it again") from None
    how, rules = model.trainer_spec, model.normalizer_spec
    unknown = [place for place, piece in enumerate(model.pieces) if piece.type == UNKNOWN]
    if how.model_type != UNIGRAM or how.treat_whitespace_as_suffix or len(unknown) != 1:
        raise TokenizerError(
            f"{path}: not a Unigram model with spaces before words and one unknown piece, which "
            "alone are read"
        )
    check_tokens((piece.piece for piece in model.pieces), str(path))
    check_added((piece.piece for piece in model.pieces if piece.type == USER), str(path))
    check_charsmap(rules.precompiled_charsmap, str(path))
    # control pieces stand for no text: behind a space, which is gone by then, none finds them
    pieces = [
        (piece.piece if piece.type in (NORMAL, UNKNOWN, USER) else f" {piece.piece}", piece.score)
        for piece in model.pieces
    ]
    core = tokenizers.Tokenizer(models.Unigram(pieces, unknown[0], how.byte_fallback))
    steps: list[normalizers.Normalizer] = []
    if rules.precompiled_charsmap:
        steps.append(normalizers.Precompiled(rules.precompiled_charsmap))
    if rules.remove_extra_whitespaces:
        steps.append(normalizers.Replace(tokenizers.Regex("^ +| +$"), ""))
        steps.append(normalizers.Replace(tokenizers.Regex(" {2,}"), " "))
    core.normalizer = normalizers.Sequence(steps)
    scheme = "always" if rules.add_dummy_prefix else "never"
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    core.decoder = decoders.Metaspace(prepend_scheme=scheme)
    core.add_tokens([piece.piece for piece in model.pieces if piece.type == USER])
    return core


MARIAN = TokenizerFormat("source.spm", open_marian, train_shared)
