"""Tokens, offsets and word ids equal those of `transformers`, on arbitrary Unicode."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, normalizers, pre_tokenizers, trainers

from bertkit.errors import DataError, TokenizerError
from bertkit.text.encoding import Encoding
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.vocabulary_training import SPECIALS, train

transformers = pytest.importorskip("transformers", reason="parity needs transformers")

FEW, MANY = 200, 20_000

SNIPPETS = [
    "unbelievable", "Ünïcödé", "É", "İstanbul", "ﬁne", "don't", "e\u0301e\u0301", "東京 tower",
    "한국어", "👩‍👩‍👧", "𝔘𝔫𝔦", "ﷺ", "a\u00a0b", "\u200b", "\x00", "\ufffd", "\u2028", "[MASK]",
    "[SEP]", "<mask>", "[unused1]", "##ing", "``quoted''", "x" * 120, "...?!", "\r\n",
]  # fmt: skip
TEXT = st.lists(
    st.one_of(st.text(max_size=12), st.sampled_from(SNIPPETS)), min_size=0, max_size=8
).flatmap(lambda parts: st.sampled_from(["", " "]).map(lambda glue: glue.join(parts)))
WORDS = st.lists(st.text(min_size=1, max_size=8), max_size=10)


@pytest.fixture(scope="module")
def bertkit_tokenizer(minilm: Path) -> Tokenizer:
    return Tokenizer.load(minilm)


@pytest.fixture(scope="module")
def hf_tokenizer(minilm: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(minilm)


def encode_with_hf(hf_tokenizer: Any, text: Any, pair: Any = None, **settings: Any) -> Any:
    """Encode as a batch, since `transformers` ignores an empty second text of a single pair."""
    pairs = None if pair is None else [pair]
    return hf_tokenizer(
        [text], pairs, return_offsets_mapping=True, return_token_type_ids=True, **settings
    )


def assert_equal(encoding: Encoding, hf_encoding: Any, row: int = 0) -> None:
    assert encoding.ids.tolist() == hf_encoding["input_ids"][row]
    assert encoding.types.tolist() == hf_encoding["token_type_ids"][row]
    assert encoding.offsets.tolist() == [list(pair) for pair in hf_encoding["offset_mapping"][row]]
    assert encoding.words == hf_encoding.word_ids(row)
    assert encoding.sequence == hf_encoding.sequence_ids(row)


def check_texts(bertkit_tokenizer: Tokenizer, hf_tokenizer: Any, text: str, pair: str) -> None:
    assert_equal(
        bertkit_tokenizer.encode(text, max_length=10_000), encode_with_hf(hf_tokenizer, text)
    )
    assert_equal(
        bertkit_tokenizer.encode(text, pair, max_length=10_000),
        encode_with_hf(hf_tokenizer, text, pair),
    )


@given(text=TEXT, pair=TEXT)
@settings(max_examples=FEW)
def test_texts_and_pairs_match_transformers(
    bertkit_tokenizer: Tokenizer, hf_tokenizer: Any, text: str, pair: str
) -> None:
    check_texts(bertkit_tokenizer, hf_tokenizer, text, pair)


@pytest.mark.slow
@given(text=TEXT, pair=TEXT)
@settings(max_examples=MANY)
def test_many_texts_and_pairs_match_transformers(
    bertkit_tokenizer: Tokenizer, hf_tokenizer: Any, text: str, pair: str
) -> None:
    check_texts(bertkit_tokenizer, hf_tokenizer, text, pair)


def test_control_different_normalization_differs(
    minilm: Path, hf_tokenizer: Any, tmp_path: Path
) -> None:
    (tmp_path / "vocab.txt").write_bytes((minilm / "vocab.txt").read_bytes())
    text = "The Café in İstanbul"
    for wrong in ({"do_lower_case": False}, {"strip_accents": False}):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(wrong), encoding="utf-8")
        cased = Tokenizer.load(tmp_path)
        assert cased.encode(text).ids.tolist() != hf_tokenizer(text)["input_ids"]
    (tmp_path / "tokenizer_config.json").unlink()
    assert_equal(Tokenizer.load(tmp_path).encode(text), encode_with_hf(hf_tokenizer, text))


@given(words=WORDS, pair=WORDS)
@settings(max_examples=FEW)
def test_split_words_match_transformers(
    bertkit_tokenizer: Tokenizer, hf_tokenizer: Any, words: list[str], pair: list[str]
) -> None:
    assert_equal(
        bertkit_tokenizer.encode(words),
        encode_with_hf(hf_tokenizer, words, is_split_into_words=True),
    )
    assert_equal(
        bertkit_tokenizer.encode(words, pair),
        encode_with_hf(hf_tokenizer, words, pair, is_split_into_words=True),
    )


STRATEGIES = {"longest": "longest_first", "first": "only_first", "second": "only_second"}


@given(
    first=st.integers(0, 30),
    second=st.one_of(st.none(), st.integers(0, 30)),
    limit=st.integers(4, 70),
    truncate=st.sampled_from(sorted(STRATEGIES)),
)
@settings(max_examples=FEW)
def test_truncation_matches_transformers(
    bertkit_tokenizer: Tokenizer,
    hf_tokenizer: Any,
    first: int,
    second: int | None,
    limit: int,
    truncate: Any,
) -> None:
    text = " ".join(["word", "unbelievable"] * first)[: 9 * first]
    pair = None if second is None else " ".join(["other", "embeddings"] * second)[: 9 * second]
    try:
        expected = encode_with_hf(
            hf_tokenizer, text, pair, truncation=STRATEGIES[truncate], max_length=limit
        )
    except Exception:  # tokenizers raises plain exceptions
        expected = None
    if expected is None or (truncate == "second" and pair is None):
        with pytest.raises(DataError):
            bertkit_tokenizer.encode(text, pair, max_length=limit, truncate=truncate)
        return
    got = bertkit_tokenizer.encode(text, pair, max_length=limit, truncate=truncate)
    assert_equal(got, expected)
    assert got.truncated == (len(got) < len(bertkit_tokenizer.encode(text, pair)))


@given(
    words=st.integers(0, 60),
    other=st.one_of(st.none(), st.integers(0, 5)),
    limit=st.integers(12, 40),
    overlap=st.integers(0, 3),
    slide=st.sampled_from(["first", "second"]),
)
@settings(max_examples=FEW)
def test_windows_match_transformers(
    bertkit_tokenizer: Tokenizer,
    hf_tokenizer: Any,
    words: int,
    other: int | None,
    limit: int,
    overlap: int,
    slide: Any,
) -> None:
    long = " ".join(["one", "embeddings"] * words)
    short = None if other is None else "and " * other
    if short is None:
        slide = "first"
    text, pair = (long, short) if slide == "first" else (short, long)
    expected = encode_with_hf(
        hf_tokenizer,
        text,
        pair,
        truncation=STRATEGIES[slide],
        max_length=limit,
        stride=overlap,
        return_overflowing_tokens=True,
    )
    got = bertkit_tokenizer.windows(text, pair, max_length=limit, overlap=overlap, slide=slide)
    assert len(got) == len(expected["input_ids"])
    for row, window in enumerate(got):
        assert_equal(window, expected, row)


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
@pytest.mark.parametrize("lowercase", [True, False])
def test_trained_tokenizer_loads_in_transformers(
    kind: Any, lowercase: bool, english: list[str], tmp_path: Path
) -> None:
    trained = train(english[:20], kind=kind, size=900, lowercase=lowercase)
    trained.save(tmp_path)
    hf_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert hf_tokenizer.model_max_length == trained.max_length
    for role in ("pad", "unk", "cls", "sep", "mask"):
        assert getattr(hf_tokenizer, f"{role}_token_id") == getattr(trained, role)
    for text in [*SNIPPETS, *english[20:30], "a <mask> b [MASK] c"]:
        assert_equal(trained.encode(text, max_length=10**6), encode_with_hf(hf_tokenizer, text))
        assert_equal(
            trained.encode(text, "Über", max_length=10**6),
            encode_with_hf(hf_tokenizer, text, "Über"),
        )


@pytest.mark.parametrize("with_model", [True, False])
def test_saved_tokenizer_loads_in_bert_classes(
    with_model: bool, bertkit_tokenizer: Tokenizer, hf_tokenizer: Any, tmp_path: Path
) -> None:
    bertkit_tokenizer.save(tmp_path)
    if with_model:
        (tmp_path / "config.json").write_text('{"model_type": "bert"}', encoding="utf-8")
    for kind in (transformers.AutoTokenizer, transformers.BertTokenizerFast):
        saved = kind.from_pretrained(tmp_path)
        for text in SNIPPETS:
            assert_equal(bertkit_tokenizer.encode(text), encode_with_hf(saved, text))
            assert saved(text)["input_ids"] == hf_tokenizer(text)["input_ids"]


def test_older_roberta_directory_matches_transformers(english: list[str], tmp_path: Path) -> None:
    trained = train(english[:20], kind="bpe", size=600)
    trained.core.model.save(str(tmp_path))
    bertkit_tokenizer = Tokenizer.load(tmp_path)
    vocab = json.loads((tmp_path / "vocab.json").read_text(encoding="utf-8"))
    merges = (tmp_path / "merges.txt").read_text(encoding="utf-8").split("\n")[1:-1]
    hf_tokenizer = transformers.RobertaTokenizer(
        vocab=vocab, merges=[tuple(merge.split(" ")) for merge in merges]
    )
    for text in [s for s in SNIPPETS if s != "<mask>"]:
        assert_equal(bertkit_tokenizer.encode(text, text), encode_with_hf(hf_tokenizer, text, text))


def test_byte_level_words_match_transformers_after_first_word(
    english: list[str], tmp_path: Path
) -> None:
    bertkit_tokenizer = train(english[:20], kind="bpe", size=600)
    bertkit_tokenizer.save(tmp_path)
    spaced, plain = (
        transformers.RobertaTokenizerFast.from_pretrained(tmp_path, add_prefix_space=flag)
        for flag in (True, False)
    )

    def without_first_word(
        actual: Any, offsets: Any, owner: list[int | None]
    ) -> list[tuple[int, Any]]:
        rows = zip(actual, offsets, owner, strict=True)
        return [(token, tuple(span)) for token, span, word in rows if word]

    # transformers treats leading white space of a word as the space before it, and adds no space
    # before a word that is a special token.
    word = st.text(min_size=1, max_size=8).map(str.strip)
    special = set(bertkit_tokenizer.pieces(sorted(bertkit_tokenizer.special_ids)))
    words = st.lists(word.filter(lambda word: word and word not in special), max_size=10)

    @given(words=words)
    @settings(max_examples=FEW)
    def check(words: list[str]) -> None:
        actual = bertkit_tokenizer.encode(words)
        hf_tokenizer = encode_with_hf(spaced, words, is_split_into_words=True)
        expected = without_first_word(
            hf_tokenizer["input_ids"][0],
            hf_tokenizer["offset_mapping"][0],
            hf_tokenizer.word_ids(0),
        )
        assert (
            without_first_word(actual.ids.tolist(), actual.offsets.tolist(), actual.words)
            == expected
        )

    check()
    text = ["New", "York"]
    without = plain.backend_tokenizer.encode(text, is_pretokenized=True)
    assert bertkit_tokenizer.encode(text).ids.tolist() != without.ids


@pytest.mark.parametrize("case", ["cased", "uncased"])
def test_google_vocabulary_matches_transformers(case: str, data_folder: Path) -> None:
    path = data_folder / "vocab" / f"bert_{case}_vocab.txt"
    bertkit_tokenizer = Tokenizer.load(path)
    hf_tokenizer = transformers.BertTokenizerFast(vocab=str(path), do_lower_case=case == "uncased")
    assert bertkit_tokenizer.vocab_size == len(hf_tokenizer)

    @given(text=TEXT, pair=TEXT)
    @settings(max_examples=FEW)
    def check(text: str, pair: str) -> None:
        check_texts(bertkit_tokenizer, hf_tokenizer, text, pair)

    check()
    wrong = transformers.BertTokenizerFast(vocab=str(path), do_lower_case=case == "cased")
    assert bertkit_tokenizer.encode("The Café").ids.tolist() != wrong("The Café")["input_ids"]


def test_starts_word_matches_word_ids(bertkit_tokenizer: Tokenizer, english: list[str]) -> None:
    text = english[0]
    actual = bertkit_tokenizer.encode(text, max_length=10**6)
    begins = np.array([a != b for a, b in zip(actual.words, [None, *actual.words], strict=False)])
    begins |= np.array([word is None for word in actual.words])
    assert (bertkit_tokenizer.starts_word[actual.ids] == begins).all()


# ---- Vocabularies of generative models, without [CLS] and [SEP]


def gpt2_folder(folder: Path, english: list[str]) -> Path:
    trained = json.loads(train(english[:50], kind="bpe", size=600).core.to_str())["model"]
    tokens = [token for token in trained["vocab"] if token not in SPECIALS["bpe"].values()]
    vocab = {token: i for i, token in enumerate([*tokens, "<|endoftext|>"])}
    merges = [tuple(pair) for pair in trained["merges"]]
    transformers.GPT2Tokenizer(vocab=vocab, merges=merges).save_pretrained(folder)
    return folder


def gpt_folder(folder: Path, english: list[str]) -> Path:
    """Write the tokenizer of GPT: lower-cased words, end-of-word suffixes, and only <unk>."""
    core = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    core.normalizer = normalizers.BertNormalizer(lowercase=True)
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False
    )
    core.train_from_iterator(english[:50], trainer)
    trained = json.loads(core.to_str())["model"]
    vocab, merges = trained["vocab"], [tuple(pair) for pair in trained["merges"]]
    transformers.OpenAIGPTTokenizer(vocab=vocab, merges=merges).save_pretrained(folder)
    return folder


def in_two_files(folder: Path) -> Path:
    """Write the vocabulary in the older layout of GPT and GPT-2."""
    model = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]), encoding="utf-8")
    lines = ["#version: 0.2", *(" ".join(pair) for pair in model["merges"])]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def t5_folder(folder: Path, english: list[str]) -> Path:
    trained = json.loads(train(english[:50], kind="unigram", size=600).core.to_str())["model"]
    tokens = [(p, score) for p, score in trained["vocab"] if p not in SPECIALS["unigram"].values()]
    vocab = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *tokens]
    vocab += [(f"<extra_id_{i}>", 0.0) for i in reversed(range(10))]
    transformers.T5Tokenizer(vocab=vocab, extra_ids=10).save_pretrained(folder)
    return folder


@pytest.fixture(
    scope="module", params=["gpt2", "gpt2 in two files", "gpt", "gpt in two files", "t5"]
)
def generative(
    request: pytest.FixtureRequest, english: list[str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Tokenizer, Any]:
    folder = tmp_path_factory.mktemp("writes")
    if request.param == "t5":
        t5_folder(folder, english)
        return Tokenizer.load(folder), transformers.T5Tokenizer.from_pretrained(folder)
    gpt2 = "gpt2" in request.param
    (gpt2_folder if gpt2 else gpt_folder)(folder, english)
    kind = transformers.GPT2Tokenizer if gpt2 else transformers.OpenAIGPTTokenizer
    hf_tokenizer = kind.from_pretrained(folder)
    if "files" in request.param:
        in_two_files(folder)
    return Tokenizer.load(folder), hf_tokenizer


@given(text=TEXT)
@settings(max_examples=FEW)
def test_generative_tokenizers_match_transformers(
    generative: tuple[Tokenizer, Any], text: str
) -> None:
    bertkit_tokenizer, hf_tokenizer = generative
    expected = hf_tokenizer(text, return_offsets_mapping=True)
    actual = bertkit_tokenizer.encode(text)
    assert actual.ids.tolist() == expected["input_ids"]
    assert [tuple(o) for o in actual.offsets.tolist()] == expected["offset_mapping"]


def test_missing_roles_raise_only_on_access(generative: tuple[Tokenizer, Any]) -> None:
    bertkit_tokenizer, hf_tokenizer = generative
    assert bertkit_tokenizer.ends == (
        (hf_tokenizer.eos_token_id,) if hf_tokenizer.eos_token_id is not None else ()
    )
    assert bertkit_tokenizer.unk == hf_tokenizer.unk_token_id
    for role in ("cls", "mask", *(() if bertkit_tokenizer.ends else ("eos",))):
        with pytest.raises(TokenizerError, match=f"has no {role} token"):
            getattr(bertkit_tokenizer, role)
    assert bertkit_tokenizer.special_ids == frozenset(hf_tokenizer.all_special_ids)
    if hf_tokenizer.bos_token_id is None:
        assert bertkit_tokenizer.knows("pad") == (hf_tokenizer.pad_token_id is not None)
        assert (
            not bertkit_tokenizer.knows("pad") or hf_tokenizer.pad_token_id == bertkit_tokenizer.pad
        )
    else:
        assert hf_tokenizer.bos_token_id == bertkit_tokenizer.bos


@given(text=st.text(max_size=60))
def test_byte_level_decode_returns_text(generative: tuple[Tokenizer, Any], text: str) -> None:
    bertkit_tokenizer, hf_tokenizer = generative
    if not isinstance(hf_tokenizer, transformers.GPT2Tokenizer):
        pytest.skip("a character vocabulary does not contain all characters")
    assert bertkit_tokenizer.decode(bertkit_tokenizer.ids([text])[0]) == text


def test_decode_returns_words(generative: tuple[Tokenizer, Any], english: list[str]) -> None:
    bertkit_tokenizer, _ = generative
    split = (text.lower().split() for text in english[:50])
    texts = [" ".join(w for w in words if w.isascii() and w.isalpha()) for words in split]
    assert sum(map(len, texts)) > 1_000
    assert [bertkit_tokenizer.decode(ids) for ids in bertkit_tokenizer.ids(texts)] == texts


def test_mpnet_special_tokens_match_transformers(tmp_path: Path) -> None:
    tokens = ["<s>", "<pad>", "</s>", "[UNK]", "<mask>", "a", "b", "##c"]
    vocab = {token: i for i, token in enumerate(tokens)}
    hf_tokenizer = transformers.MPNetTokenizer(vocab=vocab)
    hf_tokenizer.save_pretrained(tmp_path)
    bertkit_tokenizer = Tokenizer.load(tmp_path)
    for texts in (("a bc",), ("A b", "bc a")):
        assert bertkit_tokenizer.encode(*texts).ids.tolist() == hf_tokenizer(*texts)["input_ids"]
    assert (bertkit_tokenizer.pad, bertkit_tokenizer.mask) == (
        hf_tokenizer.pad_token_id,
        hf_tokenizer.mask_token_id,
    )


@pytest.mark.parametrize(
    "settings", [{}, {"do_lower_case": True}, {"split_by_punct": True, "add_prefix_space": False}]
)
def test_deberta_texts_match_transformers(
    settings: dict[str, Any], english: list[str], tmp_path: Path
) -> None:
    trained = json.loads(train(english[:40], kind="unigram", size=400).core.to_str())
    specials = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
    tokens = [row for row in trained["model"]["vocab"] if row[0][0] not in "[<"]
    vocab = [*((token, 0.0) for token in specials), *map(tuple, tokens)]
    hf_tokenizer = transformers.DebertaV2Tokenizer(vocab=vocab, **settings)
    hf_tokenizer.save_pretrained(tmp_path / "theirs")
    bertkit_tokenizer = Tokenizer.load(tmp_path / "theirs")
    bertkit_tokenizer.save(tmp_path / "ours")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    texts = [*english[:20], "  Two  spaces,\nthen (a line). ", "Don't", ""]
    for text, pair in itertools.pairwise(texts):
        actual = bertkit_tokenizer.encode(text, pair, max_length=10_000)
        for other in (hf_tokenizer, again):
            expected = encode_with_hf(other, text, pair)
            assert actual.ids.tolist() == expected["input_ids"][0]
            assert actual.types.tolist() == expected["token_type_ids"][0]
    assert (bertkit_tokenizer.pad, bertkit_tokenizer.mask) == (
        hf_tokenizer.pad_token_id,
        hf_tokenizer.mask_token_id,
    )
    plain = Tokenizer.load(tmp_path / "ours").ids(["Don't"])[0].tolist()
    assert again("Don't", add_special_tokens=False)["input_ids"] == plain


def test_saved_generative_tokenizer_matches(
    generative: tuple[Tokenizer, Any], english: list[str], tmp_path: Path
) -> None:
    bertkit_tokenizer, hf_tokenizer = generative
    bertkit_tokenizer.save(tmp_path, segments=False)
    again = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert Tokenizer.load(tmp_path).fingerprint == bertkit_tokenizer.fingerprint
    for text in english[:20]:
        assert again(text)["input_ids"] == hf_tokenizer(text)["input_ids"]
    assert again.eos_token_id == (bertkit_tokenizer.eos if bertkit_tokenizer.ends else None)
