"""Token ids of requests are converted to the texts that have exactly these ids."""

from __future__ import annotations

import pytest
import tokenizers
from tests.factories import tiny_tokenizer
from tokenizers import decoders, models, pre_tokenizers

from bertkit.errors import DataError
from bertkit.extensions.serving.token_ids import decode, text_of
from bertkit.text.tokenizer import Tokenizer
from bertkit.web import RequestError


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return tiny_tokenizer(["un", "##able", "cat", "##s", "."])


@pytest.mark.parametrize("text", ["unable cats", "cat. cats.", "cat [MASK]", "zebra cat"])
def test_text_of_ids_has_these_ids(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text).ids.tolist()
    assert tokenizer.encode(text_of(tokenizer, "input", ids)).ids.tolist() == ids


def test_ids_of_other_vocabularies_are_rejected(tokenizer: Tokenizer) -> None:
    """Special tokens are missing, an id or the text does not exist, or no text begins like this."""
    able, cat = tokenizer.core.token_to_id("##able"), tokenizer.core.token_to_id("cat")
    cls, sep = tokenizer.cls, tokenizer.sep
    assert text_of(tokenizer, "input", [cls, cat, sep]) == "cat"
    for inner in ([cat], [cls, cat], [cls, 10_000, sep], [cls, able, cat, sep], [cls, sep], [cls]):
        with pytest.raises(RequestError, match="check_embedding_ctx_length=False") as raised:
            text_of(tokenizer, "input", inner)
        assert (raised.value.status, raised.value.field) == (422, "input")


def test_decode_matches_tokenizers_library(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("unable [MASK] cats.").ids.tolist()
    for skip in (False, True):
        expected = tokenizer.core.decode(ids, skip_special_tokens=skip)
        assert decode(tokenizer, ids, skip_special_tokens=skip) == expected
    with pytest.raises(DataError, match="id 99 is not in the vocabulary"):
        decode(tokenizer, [99], skip_special_tokens=True)


def test_decode_joins_tokens_without_decoder() -> None:
    core = tokenizers.Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "b": 2}, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = Tokenizer(core, {"unk_token": "[UNK]"})
    assert decode(tokenizer, [1, 2], skip_special_tokens=False) == "a b"
    assert text_of(tokenizer, "input", [1, 2]) == "a b"
    core.decoder = decoders.Fuse()
    assert decode(tokenizer, [1, 2], skip_special_tokens=False) == "ab"
    with pytest.raises(RequestError):
        text_of(tokenizer, "input", [1, 2])
