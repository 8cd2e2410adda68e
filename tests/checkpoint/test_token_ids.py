"""Special token ids in `config.json` match the tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.factories import tiny_folder

import bertkit
from bertkit.families import FAMILIES
from bertkit.text.vocabulary_training import train

transformers = pytest.importorskip("transformers", reason="pip install 'bertkit[dev]'")

FAMILY_NAMES = [
    "bert", "roberta", "xlm-roberta", "camembert", "data2vec-text", "albert", "electra", "mpnet",
    "modernbert", "gpt2", "llama",
]  # fmt: skip


@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_saved_token_ids_match_tokenizer(
    name: str, kind: Any, english: list[str], tmp_path: Path
) -> None:
    family = FAMILIES[name]
    if "lm" in family.heads and kind == "wordpiece":
        pytest.skip("models that generate have byte-level vocabularies")
    if name == "mpnet" and kind == "wordpiece":
        pytest.skip("bertkit trains WordPiece vocabularies with padding id 0, MPNet requires 1")
    tokenizer = train(english[:20], kind=kind, size=300)
    head = "lm" if "lm" in family.heads else "mlm"
    tiny_folder(tmp_path, tokenizer, head, family=family)
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    similar = {"bos": ("bos", "cls"), "cls": ("cls", "bos"), "eos": ("eos", "sep")}
    similar |= {"sep": ("sep", "eos"), "pad": ("pad",)}
    for role, roles in similar.items():
        found = getattr(config, f"{role}_token_id", None)
        known = {getattr(tokenizer, key) for key in roles if tokenizer.knows(key)}
        assert found is None or found in known, (role, found, known)
    defaults = type(config)()
    if "modernbert" in name:  # the control
        assert defaults.cls_token_id != config.cls_token_id == tokenizer.cls


def test_gpt2_without_bos_token_saves_null(tmp_path: Path) -> None:
    from tests.extensions.generation.test_chat_format import vocabulary

    tokenizer: bertkit.Tokenizer = vocabulary("chatml")
    tiny_folder(tmp_path, tokenizer, "lm", family=FAMILIES["gpt2"])
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    expected = tokenizer.bos if tokenizer.knows("bos") else None
    assert config.bos_token_id == expected
    assert config.bos_token_id != transformers.GPT2Config().bos_token_id
