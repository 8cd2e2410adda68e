"""Tokenizers of Marian models, compared with transformers."""

from __future__ import annotations

import io
import json
import re
import shutil
import unicodedata
from functools import cache
from pathlib import Path

import pytest
import sentencepiece
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from bertkit.errors import TokenizerError
from bertkit.text.tokenizer import Tokenizer

pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")

ODD = [
    "", " ", "  two  spaces ", ">>de<< A dog.", "a tab\there", "ﬁne Ⅳ ½ e\u0301 n\u0303",
    "日本 ß ñ 🙂🙂 dog🙂", "a</s>b <unk> <pad> <s> [CLS]", "a new\nline", "\u200b zero",
    "a dog >>xx",
]  # fmt: skip


def sentences(english: list[str]) -> list[str]:
    lines = " ".join(" ".join(english).split()).split(". ")
    lines = [line for line in lines if 20 < len(line) < 300]
    # Repeated symbols have many segmentations with equal scores; rounding selects one.
    return [line for line in lines if not re.search(r"([^\w\s])\1\1", line)]


@cache
def trained(texts: tuple[str, ...], rule: str) -> bytes:
    """Return a SentencePiece model that is trained on the texts."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=model, vocab_size=600,
        normalization_rule_name=rule, minloglevel=2,
    )  # fmt: skip
    return model.getvalue()


def write_folder(folder: Path, texts: list[str], rule: str) -> Path:
    """Write SentencePiece models of the texts and of the texts in uppercase.

    Every 50th token has no id.
    """
    folder.mkdir()
    tokens: set[str] = set()
    for side, side_texts in (("source", texts), ("target", [text.upper() for text in texts])):
        (folder / f"{side}.spm").write_bytes(trained(tuple(side_texts), rule))
        model = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{side}.spm"))
        tokens |= {model.id_to_piece(i) for i in range(model.get_piece_size())}
    numbered = [p for i, p in enumerate(sorted(tokens - {"<s>", "</s>", "<unk>"})) if i % 50]
    names = ["</s>", "<unk>", *numbered, ">>de<<", "<pad>"]
    ids = {token: i for i, token in enumerate(names)}
    (folder / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
    config = {"tokenizer_class": "MarianTokenizer", "source_lang": "en", "target_lang": "de"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@pytest.fixture(scope="module", params=["nmt_nfkc", "identity"])
def folder(
    request: pytest.FixtureRequest, english: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    path = tmp_path_factory.mktemp("marian") / "model"
    return write_folder(path, sentences(english)[:1500], request.param)


def test_ids_and_texts_match_transformers(folder: Path, english: list[str]) -> None:
    hf_tokenizer = transformers.MarianTokenizer.from_pretrained(folder)
    source, target = Tokenizer.load(folder), Tokenizer.load(folder, side="target")
    lines = sentences(english)[1400:1700]
    texts = [*lines, *(text.upper() for text in lines), *ODD]
    num_different = 0
    for text in texts:
        ids = source.encode(text).ids.tolist()
        assert ids == hf_tokenizer(text)["input_ids"]
        assert source.decode(ids) == hf_tokenizer.decode(ids, skip_special_tokens=True)
        ids = target.encode(text).ids.tolist()
        assert ids == hf_tokenizer(text_target=text)["input_ids"]
        assert target.decode(ids) == hf_tokenizer.decode(
            ids, skip_special_tokens=True, use_source_tokenizer=False
        )
        num_different += ids != source.encode(text).ids.tolist()
    assert num_different > len(texts) / 2  # control: the sides have different vocabularies
    assert any(source.unk in encoding.ids for encoding in source.encode_batch(texts))


def test_ids_match_encode(folder: Path, english: list[str]) -> None:
    """`ids` creates no token strings."""
    tokenizer = Tokenizer.load(folder)
    texts = sentences(english)[:200]
    for text, ids in zip(texts, tokenizer.ids(texts), strict=True):
        assert [*ids, tokenizer.eos] == tokenizer.encode(text).ids.tolist()
        assert len({*ids}) > 1


def test_decode_restores_text_without_unknown_tokens(folder: Path, english: list[str]) -> None:
    tokenizer = Tokenizer.load(folder)
    num_known = 0
    for text in sentences(english)[:300]:
        encoding = tokenizer.encode(text)
        if tokenizer.unk not in encoding.ids:
            num_known += 1
            assert tokenizer.decode(encoding.ids) in (text, unicodedata.normalize("NFKC", text))
    assert num_known > 50
    assert tokenizer.decode([tokenizer.eos, tokenizer.pad]) == ""


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.load(folder)


@given(text=st.text(max_size=40))
@settings(max_examples=100)
def test_offsets_are_sorted_and_within_the_text(text: str, tokenizer: Tokenizer) -> None:
    encoding = tokenizer.encode(text)
    spans = [
        tuple(span) for span, s in zip(encoding.offsets, encoding.sequence, strict=True) if s == 0
    ]
    assert all(0 <= start <= end <= len(text) for start, end in spans)
    assert spans == sorted(spans)
    assert encoding.ids[-1] == tokenizer.eos


def test_offsets_match_the_characters_of_each_token(folder: Path) -> None:
    text = "the list of names"
    tokenizer = Tokenizer.load(folder)
    encoding = tokenizer.encode(text)
    for token, (start, end) in zip(tokenizer.pieces(encoding.ids), encoding.offsets, strict=True):
        if token not in ("</s>", "<unk>"):
            assert unicodedata.normalize("NFKC", text[start:end]).strip() in token


def test_saved_tokenizer_equals_original(folder: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(folder)
    tokenizer.save(tmp_path)
    reloaded, text = Tokenizer.load(tmp_path), "the list of names"
    assert reloaded.fingerprint == tokenizer.fingerprint
    assert Tokenizer.load(folder, side="target").fingerprint != tokenizer.fingerprint
    hf_tokenizer = transformers.MarianTokenizer.from_pretrained(tmp_path)
    assert hf_tokenizer(text)["input_ids"] == reloaded.encode(text).ids.tolist()
    assert (tmp_path / "source.spm").read_bytes() == (folder / "source.spm").read_bytes()


def test_tokenizer_has_only_special_tokens_with_ids(folder: Path) -> None:
    tokenizer = Tokenizer.load(folder)
    assert (tokenizer.eos, tokenizer.unk, tokenizer.pad) == (0, 1, tokenizer.vocab_size - 1)
    for role in ("bos", "cls", "mask"):  # the SentencePiece token <s> has no id
        with pytest.raises(TokenizerError, match=f"has no {role} token"):
            tokenizer.need(role)
    [ids] = tokenizer.ids(["a</s>"])
    assert tokenizer.eos not in ids
    assert tokenizer.starts_word[tokenizer.encode("the list").ids[0]]
    with pytest.raises(TokenizerError, match="because its ids are in a separate file"):
        tokenizer.remade(tokenizer.core)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("target.spm", None, r"target\.spm: not found; download the model directory again"),
        ("source.spm", b"nothing\xff", r"source\.spm: not a SentencePiece model"),
        ("source.spm", b"", r"source\.spm: .* not supported; use a Unigram model"),
        ("vocab.json", b"[]", r"vocab\.json: token ids must be 0, 1, 2"),
        ("vocab.json", b'{"a": 0, "b": 0}', r"vocab\.json: token ids must be 0, 1, 2"),
        ("vocab.json", b'{"a": 0, "b": "1"}', r"vocab\.json: token ids must be 0, 1, 2"),
        ("vocab.json", b'{"a": 0}', r"vocab\.json: has no </s>; download"),
    ],
)
def test_load_rejects_damaged_files(
    name: str, content: bytes | None, message: str, folder: Path, tmp_path: Path
) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(folder, damaged)
    (damaged / name).unlink()
    if content is not None:
        (damaged / name).write_bytes(content)
    with pytest.raises(TokenizerError, match=message):
        Tokenizer.load(damaged)
