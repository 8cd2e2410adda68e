"""SentencePiece models (Unigram), and their conversion to the `tokenizers` library."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from bertkit.errors import TokenizerError
from bertkit.storage import VOCABULARY, read_bytes
from bertkit.text.file_limits import check_added, check_charsmap, check_tokens

UNIGRAM, NORMAL, UNKNOWN, USER = 1, 1, 2, 4
"""Model type and token types of SentencePiece's protobuf format."""


def read_model(path: Path) -> Any:
    """Read a SentencePiece model.

    Args:
        path: The file.

    Returns:
        The message of SentencePiece's protobuf format.

    Raises:
        TokenizerError: If the file is corrupted, or not a Unigram model with one unknown token, or
            SentencePiece is not installed.
    """
    try:
        from google.protobuf.message import DecodeError
        from sentencepiece import sentencepiece_model_pb2 as sentencepiece
    except ImportError:
        raise TokenizerError(
            f"{path}: requires SentencePiece; run pip install 'bertkit[generation]'"
        ) from None
    # protobuf creates the class only when the module is imported.
    model = sentencepiece.ModelProto()  # type: ignore[attr-defined]
    try:
        model.ParseFromString(read_bytes(path, TokenizerError, most=VOCABULARY))
    except DecodeError as error:
        raise TokenizerError(
            f"{path}: not a SentencePiece model ({error}); download the file again"
        ) from None
    trainer, unknown = model.trainer_spec, [t for t in model.pieces if t.type == UNKNOWN]
    if trainer.model_type != UNIGRAM or trainer.treat_whitespace_as_suffix or len(unknown) != 1:
        raise TokenizerError(
            f"{path}: this SentencePiece model is not supported; use a Unigram model with spaces "
            "before words and one unknown token"
        )
    check_tokens((token.piece for token in model.pieces), str(path))
    check_added((token.piece for token in model.pieces if token.type == USER), str(path))
    check_charsmap(model.normalizer_spec.precompiled_charsmap, str(path))
    return model


def unigram(model: Any, tokens: Sequence[tuple[str, float]]) -> tokenizers.Tokenizer:
    """Return a tokenizer with the normalization of a SentencePiece model.

    Args:
        model: Result of `read_model`.
        tokens: Tokens in the order of their ids, with their scores, including the unknown token.
    """
    rules = model.normalizer_spec
    names = [token for token, _ in tokens]
    unknown = names.index(next(token.piece for token in model.pieces if token.type == UNKNOWN))
    core = tokenizers.Tokenizer(
        models.Unigram(list(tokens), unknown, model.trainer_spec.byte_fallback)
    )
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
    core.add_tokens([token.piece for token in model.pieces if token.type == USER])
    return core
