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
    "unbelievable",
    "Ünïcödé",
    "É",
    "İstanbul",
    "ﬁne",
    "don't",
    "e\u0301e\u0301",
    "東京 tower",
    "한국어",
    "👩‍👩‍👧",
    "𝔘𝔫𝔦",
    "ﷺ",
    "a\u00a0b",
    "\u200b",
    "\x00",
    "\ufffd",
    "\u2028",
    "[MASK]",
    "[SEP]",
    "<mask>",
    "[unused1]",
    "##ing",
    "``quoted''",
    "x" * 120,
    "...?!",
    "\r\n",
]
TEXT = st.lists(
    st.one_of(st.text(max_size=12), st.sampled_from(SNIPPETS)), min_size=0, max_size=8
).flatmap(lambda parts: st.sampled_from(["", " "]).map(lambda glue: glue.join(parts)))
WORDS = st.lists(st.text(min_size=1, max_size=8), max_size=10)


@pytest.fixture(scope="module")
def ours(minilm: Path) -> Tokenizer:
    return Tokenizer.load(minilm)


@pytest.fixture(scope="module")
def theirs(minilm: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(minilm)


def say(theirs: Any, text: Any, pair: Any = None, **settings: Any) -> Any:
    """As a batch of one: alone, `transformers` takes an empty second text for none."""
    pairs = None if pair is None else [pair]
    return theirs(
        [text], pairs, return_offsets_mapping=True, return_token_type_ids=True, **settings
    )


def assert_equal(ours: Encoding, theirs: Any, row: int = 0) -> None:
    assert ours.ids.tolist() == theirs["input_ids"][row]
    assert ours.types.tolist() == theirs["token_type_ids"][row]
    assert ours.offsets.tolist() == [list(pair) for pair in theirs["offset_mapping"][row]]
    assert ours.words == theirs.word_ids(row)
    assert ours.sequence == theirs.sequence_ids(row)


def check_texts(ours: Tokenizer, theirs: Any, text: str, pair: str) -> None:
    assert_equal(ours.encode(text, max_length=10_000), say(theirs, text))
    assert_equal(ours.encode(text, pair, max_length=10_000), say(theirs, text, pair))


@given(text=TEXT, pair=TEXT)
@settings(max_examples=FEW)
def test_texts_and_pairs_equal_transformers(
    ours: Tokenizer, theirs: Any, text: str, pair: str
) -> None:
    check_texts(ours, theirs, text, pair)


@pytest.mark.slow
@given(text=TEXT, pair=TEXT)
@settings(max_examples=MANY)
def test_very_many_texts_and_pairs_equal_transformers(
    ours: Tokenizer, theirs: Any, text: str, pair: str
) -> None:
    check_texts(ours, theirs, text, pair)


def test_control_another_normalization_differs(minilm: Path, theirs: Any, tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes((minilm / "vocab.txt").read_bytes())
    text = "The Café in İstanbul"
    for wrong in ({"do_lower_case": False}, {"strip_accents": False}):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(wrong), encoding="utf-8")
        cased = Tokenizer.load(tmp_path)
        assert cased.encode(text).ids.tolist() != theirs(text)["input_ids"]
    (tmp_path / "tokenizer_config.json").unlink()
    assert_equal(Tokenizer.load(tmp_path).encode(text), say(theirs, text))


@given(words=WORDS, pair=WORDS)
@settings(max_examples=FEW)
def test_words_already_split_equal_transformers(
    ours: Tokenizer, theirs: Any, words: list[str], pair: list[str]
) -> None:
    assert_equal(ours.encode(words), say(theirs, words, is_split_into_words=True))
    assert_equal(ours.encode(words, pair), say(theirs, words, pair, is_split_into_words=True))


STRATEGIES = {"longest": "longest_first", "first": "only_first", "second": "only_second"}


@given(
    first=st.integers(0, 30),
    second=st.one_of(st.none(), st.integers(0, 30)),
    limit=st.integers(4, 70),
    truncate=st.sampled_from(sorted(STRATEGIES)),
)
@settings(max_examples=FEW)
def test_truncation_equals_transformers(
    ours: Tokenizer, theirs: Any, first: int, second: int | None, limit: int, truncate: Any
) -> None:
    text = " ".join(["word", "unbelievable"] * first)[: 9 * first]
    pair = None if second is None else " ".join(["other", "embeddings"] * second)[: 9 * second]
    try:
        wanted = say(theirs, text, pair, truncation=STRATEGIES[truncate], max_length=limit)
    except Exception:  # what tokenizers raises has no class of its own
        wanted = None
    if wanted is None or (truncate == "second" and pair is None):
        with pytest.raises(DataError):
            ours.encode(text, pair, max_length=limit, truncate=truncate)
        return
    got = ours.encode(text, pair, max_length=limit, truncate=truncate)
    assert_equal(got, wanted)
    assert got.truncated == (len(got) < len(ours.encode(text, pair)))


@given(
    words=st.integers(0, 60),
    other=st.one_of(st.none(), st.integers(0, 5)),
    limit=st.integers(12, 40),
    overlap=st.integers(0, 3),
    slide=st.sampled_from(["first", "second"]),
)
@settings(max_examples=FEW)
def test_windows_equal_transformers(
    ours: Tokenizer,
    theirs: Any,
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
    wanted = say(
        theirs,
        text,
        pair,
        truncation=STRATEGIES[slide],
        max_length=limit,
        stride=overlap,
        return_overflowing_tokens=True,
    )
    got = ours.windows(text, pair, max_length=limit, overlap=overlap, slide=slide)
    assert len(got) == len(wanted["input_ids"])
    for row, window in enumerate(got):
        assert_equal(window, wanted, row)


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
@pytest.mark.parametrize("lowercase", [True, False])
def test_transformers_opens_what_was_trained(
    kind: Any, lowercase: bool, english: list[str], tmp_path: Path
) -> None:
    trained = train(english[:20], kind=kind, size=900, lowercase=lowercase)
    trained.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs.model_max_length == trained.max_length
    for role in ("pad", "unk", "cls", "sep", "mask"):
        assert getattr(theirs, f"{role}_token_id") == getattr(trained, role)
    for text in [*SNIPPETS, *english[20:30], "a <mask> b [MASK] c"]:
        assert_equal(trained.encode(text, max_length=10**6), say(theirs, text))
        assert_equal(trained.encode(text, "Über", max_length=10**6), say(theirs, text, "Über"))


@pytest.mark.parametrize("with_model", [True, False])
def test_transformers_bert_class_opens_what_was_saved(
    with_model: bool, ours: Tokenizer, theirs: Any, tmp_path: Path
) -> None:
    ours.save(tmp_path)
    if with_model:
        (tmp_path / "config.json").write_text('{"model_type": "bert"}', encoding="utf-8")
    for kind in (transformers.AutoTokenizer, transformers.BertTokenizerFast):
        saved = kind.from_pretrained(tmp_path)
        for text in SNIPPETS:
            assert_equal(ours.encode(text), say(saved, text))
            assert saved(text)["input_ids"] == theirs(text)["input_ids"]


def test_older_roberta_folder_equals_transformers(english: list[str], tmp_path: Path) -> None:
    trained = train(english[:20], kind="bpe", size=600)
    trained.core.model.save(str(tmp_path))
    ours = Tokenizer.load(tmp_path)
    vocab = json.loads((tmp_path / "vocab.json").read_text(encoding="utf-8"))
    merges = (tmp_path / "merges.txt").read_text(encoding="utf-8").split("\n")[1:-1]
    theirs = transformers.RobertaTokenizer(
        vocab=vocab, merges=[tuple(merge.split(" ")) for merge in merges]
    )
    for text in [s for s in SNIPPETS if s != "<mask>"]:
        assert_equal(ours.encode(text, text), say(theirs, text, text))


def test_words_of_byte_level_bpe_equal_transformers_behind_the_first(
    english: list[str], tmp_path: Path
) -> None:
    ours = train(english[:20], kind="bpe", size=600)
    ours.save(tmp_path)
    spaced, plain = (
        transformers.RobertaTokenizerFast.from_pretrained(tmp_path, add_prefix_space=flag)
        for flag in (True, False)
    )

    def behind(found: Any, offsets: Any, owner: list[int | None]) -> list[tuple[int, Any]]:
        rows = zip(found, offsets, owner, strict=True)
        return [(token, tuple(place)) for token, place, word in rows if word]

    # of a word that begins with white space, theirs takes that for the space, and before a word
    # that is spelled as a special token it has none
    word = st.text(min_size=1, max_size=8).map(str.strip)
    special = set(ours.pieces(sorted(ours.special_ids)))
    words = st.lists(word.filter(lambda word: word and word not in special), max_size=10)

    @given(words=words)
    @settings(max_examples=FEW)
    def check(words: list[str]) -> None:
        found = ours.encode(words)
        theirs = say(spaced, words, is_split_into_words=True)
        wanted = behind(theirs["input_ids"][0], theirs["offset_mapping"][0], theirs.word_ids(0))
        assert behind(found.ids.tolist(), found.offsets.tolist(), found.words) == wanted

    check()
    text = ["New", "York"]
    without = plain.backend_tokenizer.encode(text, is_pretokenized=True)
    assert ours.encode(text).ids.tolist() != without.ids


@pytest.mark.parametrize("case", ["cased", "uncased"])
def test_google_vocabulary_equals_transformers(case: str, data_folder: Path) -> None:
    path = data_folder / "vocab" / f"bert_{case}_vocab.txt"
    ours = Tokenizer.load(path)
    theirs = transformers.BertTokenizerFast(vocab=str(path), do_lower_case=case == "uncased")
    assert ours.vocab_size == len(theirs)

    @given(text=TEXT, pair=TEXT)
    @settings(max_examples=FEW)
    def check(text: str, pair: str) -> None:
        check_texts(ours, theirs, text, pair)

    check()
    wrong = transformers.BertTokenizerFast(vocab=str(path), do_lower_case=case == "cased")
    assert ours.encode("The Café").ids.tolist() != wrong("The Café")["input_ids"]


def test_starts_word_agrees_with_word_ids(ours: Tokenizer, english: list[str]) -> None:
    text = english[0]
    found = ours.encode(text, max_length=10**6)
    begins = np.array([a != b for a, b in zip(found.words, [None, *found.words], strict=False)])
    begins |= np.array([word is None for word in found.words])
    assert (ours.starts_word[found.ids] == begins).all()


# ---- vocabularies of models that write: no [CLS], no [SEP]


def gpt2_folder(folder: Path, english: list[str]) -> Path:
    trained = json.loads(train(english[:50], kind="bpe", size=600).core.to_str())["model"]
    pieces = [piece for piece in trained["vocab"] if piece not in SPECIALS["bpe"]]
    vocab = {piece: i for i, piece in enumerate([*pieces, "<|endoftext|>"])}
    merges = [tuple(pair) for pair in trained["merges"]]
    transformers.GPT2Tokenizer(vocab=vocab, merges=merges).save_pretrained(folder)
    return folder


def gpt_folder(folder: Path, english: list[str]) -> Path:
    """GPT's: lower-cased words with marked ends, and no token but that for what is unknown."""
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
    """The same vocabulary in GPT's and GPT-2's older layout."""
    model = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]), encoding="utf-8")
    lines = ["#version: 0.2", *(" ".join(pair) for pair in model["merges"])]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def t5_folder(folder: Path, english: list[str]) -> Path:
    trained = json.loads(train(english[:50], kind="unigram", size=600).core.to_str())["model"]
    pieces = [(p, score) for p, score in trained["vocab"] if p not in SPECIALS["unigram"]]
    vocab = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *pieces]
    vocab += [(f"<extra_id_{i}>", 0.0) for i in reversed(range(10))]
    transformers.T5Tokenizer(vocab=vocab, extra_ids=10).save_pretrained(folder)
    return folder


@pytest.fixture(
    scope="module", params=["gpt2", "gpt2 in two files", "gpt", "gpt in two files", "t5"]
)
def writing(
    request: pytest.FixtureRequest, english: list[str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Tokenizer, Any]:
    folder = tmp_path_factory.mktemp("writes")
    if request.param == "t5":
        t5_folder(folder, english)
        return Tokenizer.load(folder), transformers.T5Tokenizer.from_pretrained(folder)
    gpt2 = "gpt2" in request.param
    (gpt2_folder if gpt2 else gpt_folder)(folder, english)
    kind = transformers.GPT2Tokenizer if gpt2 else transformers.OpenAIGPTTokenizer
    theirs = kind.from_pretrained(folder)
    if "files" in request.param:
        in_two_files(folder)
    return Tokenizer.load(folder), theirs


@given(text=TEXT)
@settings(max_examples=FEW)
def test_models_that_write_have_the_same_tokens(writing: tuple[Tokenizer, Any], text: str) -> None:
    ours, theirs = writing
    wanted = theirs(text, return_offsets_mapping=True)
    found = ours.encode(text)
    assert found.ids.tolist() == wanted["input_ids"]
    assert [tuple(o) for o in found.offsets.tolist()] == wanted["offset_mapping"]


def test_only_roles_that_are_asked_for_are_missed(writing: tuple[Tokenizer, Any]) -> None:
    ours, theirs = writing
    assert ours.ends == ((theirs.eos_token_id,) if theirs.eos_token_id is not None else ())
    assert ours.unk == theirs.unk_token_id
    for role in ("cls", "mask", *(() if ours.ends else ("eos",))):
        with pytest.raises(TokenizerError, match=f"has no {role} token"):
            getattr(ours, role)
    assert ours.special_ids == frozenset(theirs.all_special_ids)
    if theirs.bos_token_id is None:
        assert ours.knows("pad") == (theirs.pad_token_id is not None)
        assert not ours.knows("pad") or theirs.pad_token_id == ours.pad
    else:
        assert theirs.bos_token_id == ours.bos


@given(text=st.text(max_size=60))
def test_text_comes_back_from_bytes(writing: tuple[Tokenizer, Any], text: str) -> None:
    ours, theirs = writing
    if not isinstance(theirs, transformers.GPT2Tokenizer):
        pytest.skip("a vocabulary of characters does not hold them all")
    assert ours.decode(ours.ids([text])[0]) == text


def test_words_come_back(writing: tuple[Tokenizer, Any], english: list[str]) -> None:
    ours, _ = writing
    split = (text.lower().split() for text in english[:50])
    texts = [" ".join(w for w in words if w.isascii() and w.isalpha()) for words in split]
    assert sum(map(len, texts)) > 1_000
    assert [ours.decode(ids) for ids in ours.ids(texts)] == texts


def test_mpnets_frame_is_that_of_its_folder(tmp_path: Path) -> None:
    pieces = ["<s>", "<pad>", "</s>", "[UNK]", "<mask>", "a", "b", "##c"]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    theirs = transformers.MPNetTokenizer(vocab=vocab)
    theirs.save_pretrained(tmp_path)
    ours = Tokenizer.load(tmp_path)
    for texts in (("a bc",), ("A b", "bc a")):
        assert ours.encode(*texts).ids.tolist() == theirs(*texts)["input_ids"]
    assert (ours.pad, ours.mask) == (theirs.pad_token_id, theirs.mask_token_id)


@pytest.mark.parametrize(
    "settings", [{}, {"do_lower_case": True}, {"split_by_punct": True, "add_prefix_space": False}]
)
def test_debertas_texts_are_those_of_its_folder(
    settings: dict[str, Any], english: list[str], tmp_path: Path
) -> None:
    trained = json.loads(train(english[:40], kind="unigram", size=400).core.to_str())
    specials = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
    pieces = [row for row in trained["model"]["vocab"] if row[0][0] not in "[<"]
    vocab = [*((piece, 0.0) for piece in specials), *map(tuple, pieces)]
    theirs = transformers.DebertaV2Tokenizer(vocab=vocab, **settings)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = Tokenizer.load(tmp_path / "theirs")
    ours.save(tmp_path / "ours")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    texts = [*english[:20], "  Two  spaces,\nthen (a line). ", "Don't", ""]
    for text, pair in itertools.pairwise(texts):
        found = ours.encode(text, pair, max_length=10_000)
        for other in (theirs, again):
            said = say(other, text, pair)
            assert found.ids.tolist() == said["input_ids"][0]
            assert found.types.tolist() == said["token_type_ids"][0]
    assert (ours.pad, ours.mask) == (theirs.pad_token_id, theirs.mask_token_id)
    plain = Tokenizer.load(tmp_path / "ours").ids(["Don't"])[0].tolist()
    assert again("Don't", add_special_tokens=False)["input_ids"] == plain


def test_a_saved_folder_is_the_same_tokenizer(
    writing: tuple[Tokenizer, Any], english: list[str], tmp_path: Path
) -> None:
    ours, theirs = writing
    ours.save(tmp_path, segments=False)
    again = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert Tokenizer.load(tmp_path).fingerprint == ours.fingerprint
    for text in english[:20]:
        assert again(text)["input_ids"] == theirs(text)["input_ids"]
    assert again.eos_token_id == (ours.eos if ours.ends else None)
