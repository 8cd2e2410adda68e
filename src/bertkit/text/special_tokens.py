"""Special tokens of a vocabulary, by role."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tokenizers

from bertkit.errors import TokenizerError

ROLES = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]", "</s>"),
    "mask": ("[MASK]", "<mask>"),
    "bos": ("<s>",),
    "eos": ("</s>", "<|endoftext|>"),
}
"""Roles of special tokens -> the tokens to look for if the directory does not specify the token.

A vocabulary may lack tokens for some roles. GPT-2 has only an EOS token, and T5 has no BOS token.
"""


def named_token(settings: Mapping[str, Any], role: str) -> str | None:
    """Return the token that the settings specify for a role, or None if they specify none.

    The setting is a string, or an object that contains the token as `content`.
    """
    named = settings.get(f"{role}_token")
    if isinstance(named, Mapping):
        named = named.get("content")
    return named if isinstance(named, str) else None


def find_specials(
    core: tokenizers.Tokenizer, settings: Mapping[str, Any], source: str
) -> dict[str, str]:
    """Return the special token of each role, for the roles that have a token.

    If the settings set the token of a role to null, the role has no token.

    Raises:
        TokenizerError: If the vocabulary lacks a token that the settings specify.
    """
    specials = {}
    for role, defaults in ROLES.items():
        named = named_token(settings, role)
        if settings.get(f"{role}_token", "") is None:
            continue
        for token in defaults if named is None else (named,):
            if core.token_to_id(token) is not None:
                specials[role] = token
                break
        else:
            if named is not None and role not in LATE:
                raise TokenizerError(lacks(role, source, named))
    return specials


LATE = ("mask", "bos", "eos")
"""Roles whose tokens are checked only when they are used.

Directories can specify these tokens even if the vocabulary does not contain them, because a class
of transformers requires them.
"""


def required(specials: Mapping[str, str], role: str, source: str) -> str:
    """Return the token of a role.

    Raises:
        TokenizerError: If the vocabulary has no token for the role.
    """
    if role not in specials:
        raise TokenizerError(lacks(role, source))
    return specials[role]


def lacks(role: str, source: str, named: str | None = None) -> str:
    """Return the error message for a vocabulary that lacks the token of a role.

    Args:
        role: The role.
        source: Name of the tokenizer.
        named: Token that was expected. Default: the usual tokens of the role.
    """
    names = " or ".join(ROLES[role]) if named is None else named
    return (
        f"{source}: the vocabulary has no {role} token ({names}); "
        f"add this token, or set {role}_token in tokenizer_config.json"
    )


def is_special(core: tokenizers.Tokenizer, token: str) -> bool:
    """Return whether a token is marked as special in a tokenizer."""
    added = core.get_added_tokens_decoder().values()
    return any(t.content == token and t.special for t in added)
