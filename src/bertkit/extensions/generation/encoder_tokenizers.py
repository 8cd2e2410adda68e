"""Tokenizers of DeBERTa and XLM-R directories that have no tokenizer.json.

Texts are normalized as in SentencePiece. transformers 5 omits this step for DeBERTa, so that
characters such as "…" are unknown tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import processors

from bertkit.errors import TokenizerError
from bertkit.extensions.generation.sentencepiece_model import read_model, unigram
from bertkit.text.special_tokens import find_specials, named_token, required
from bertkit.text.tokenizer_config import apply_settings
from bertkit.text.tokenizer_files import Language, Opened, TokenizerFormat, template

FAIRSEQ, MASK = ("<s>", "<pad>", "</s>", "<unk>"), "<mask>"
"""First tokens of XLM-R, and its last token."""


def open_deberta(folder: Path, settings: dict[str, Any], side: Language) -> Opened:
    """Load the tokenizer of DeBERTa 2 or 3. The id of its mask token follows the model's ids.

    Args:
        folder: Model directory.
        settings: Content of `tokenizer_config.json`.
        side: Not used.

    Raises:
        TokenizerError: If the file is corrupted, or lacks a special token.
    """
    path = folder / DEBERTA.file
    settings = {"tokenizer_class": "DebertaV2Tokenizer", **settings}
    model = read_model(path)
    core = unigram(model, _scored(model.pieces))
    core.add_special_tokens([named_token(settings, "mask") or "[MASK]"])
    specials = find_specials(core, settings, str(path))
    cls, sep = (required(specials, role, str(path)) for role in ("cls", "sep"))
    core.post_processor = template(core, cls, sep)
    core.add_special_tokens([*specials.values()])
    apply_settings(settings, core, folder)
    return Opened(core, settings, path)


def open_xlm_roberta(folder: Path, settings: dict[str, Any], side: Language) -> Opened:
    """Load the tokenizer of XLM-R, which has the ids of fairseq.

    Args:
        folder: Model directory.
        settings: Content of `tokenizer_config.json`.
        side: Not used.

    Raises:
        TokenizerError: If the file is corrupted, or has other special tokens.
    """
    path = folder / XLM_ROBERTA.file
    settings = {"tokenizer_class": "XLMRobertaTokenizer", **settings}
    model = read_model(path)
    if [token.piece for token in model.pieces[:3]] != ["<unk>", "<s>", "</s>"]:
        raise TokenizerError(f"{path}: must begin with <unk>, <s>, </s>; download it again")
    first = [(token, 0.0) for token in FAIRSEQ]
    core = unigram(model, [*first, *_scored(model.pieces[3:]), (MASK, 0.0)])
    core.add_special_tokens([*FAIRSEQ, MASK])
    ends = [(token, core.token_to_id(token)) for token in ("<s>", "</s>")]
    core.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=ends
    )
    apply_settings(settings, core, folder)
    return Opened(core, settings, path)


def _scored(pieces: Iterable[Any]) -> list[tuple[str, float]]:
    """Return tokens with their scores, rounded so that tokenizer.json has the same values."""
    return [(token.piece, round(token.score, 7)) for token in pieces]


DEBERTA = TokenizerFormat("spm.model", open_deberta)
XLM_ROBERTA = TokenizerFormat("sentencepiece.bpe.model", open_xlm_roberta)
