"""Tokenizers: offsets, limits, windows, model directories, and errors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import processors

from bertkit.errors import ConfigError, DataError, TokenizerError
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.vocabulary_training import train

VOCABULARY = [
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cafe", "##s", "un", "##able", ".",
]  # fmt: skip


@pytest.fixture
def vocab(tmp_path: Path) -> Path:
    path = tmp_path / "google" / "vocab.txt"
    path.parent.mkdir()
    path.write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module", params=["wordpiece", "bpe", "unigram"])
def trained(request: pytest.FixtureRequest, english: list[str]) -> Tokenizer:
    return train(english[:30], kind=request.param, size=700, lowercase=True)


def test_offsets_index_the_text_before_normalization(vocab: Path) -> None:
    text = "\x00The  CAFÉS\u200b."
    found = Tokenizer.load(vocab).encode(text)
    spans = [text[a:b] for a, b in found.offsets[1:-1]]
    assert spans == ["The", "CAFÉ", "S", "."]
    assert found.words == [None, 0, 1, 1, 2, None]
    assert found.sequence == [None, 0, 0, 0, 0, None]


@given(text=st.text(max_size=40))
def test_offsets_are_ordered_and_within_text(trained: Tokenizer, text: str) -> None:
    found = trained.encode(text)
    body = found.offsets[[s is not None for s in found.sequence]]
    assert (body[:, 0] <= body[:, 1]).all()
    assert (body >= 0).all()
    assert (body <= len(text)).all()
    assert (np.diff(body[:, 0]) >= 0).all()


@given(text=st.text(max_size=40), prompt=st.sampled_from(["query: ", "find:", "a long one . "]))
def test_prompt_shifts_offsets_to_the_text(trained: Tokenizer, text: str, prompt: str) -> None:
    (found,) = trained.encode_batch([text], prompts=[prompt])
    joined = trained.encode(prompt + text)
    assert found.ids.tolist() == joined.ids.tolist()
    own = [index for index, owner in enumerate(found.sequence) if owner is not None]
    np.testing.assert_array_equal(
        found.offsets[own], np.maximum(joined.offsets[own] - len(prompt), 0)
    )
    assert (found.offsets <= len(text)).all()
    rest = [index for index in range(len(found)) if index not in own]
    assert not found.offsets[rest].any()
    assert all(found.words[index] is None for index in rest)
    assert own == list(range(own[0], own[-1] + 1)) if own else True
    words = [found.words[index] for index in own]
    assert not words or words[0] == 0


@given(text=st.text("abc .", min_size=20, max_size=60))
def test_windows_contain_the_complete_prompt(trained: Tokenizer, text: str) -> None:
    prompt = "query: "
    (whole,) = trained.encode_batch([text], prompts=[prompt])
    before = len(whole) - len([owner for owner in whole.sequence if owner is not None])
    length = before + 6
    windows = trained.windows(text, max_length=length, overlap=2, prompt=prompt)
    (short,) = trained.encode_batch([text], max_length=length, truncate="longest", prompts=[prompt])
    encodings = [*windows, short]
    assert all(len(encoding) <= length for encoding in encodings)
    assert all(encoding.sequence.count(None) == before for encoding in encodings)
    assert all((e.ids[: before - 1] == whole.ids[: before - 1]).all() for e in encodings)
    assert short.ids.tolist() == [*whole.ids[: len(short) - 1], whole.ids[-1]]
    spans = {tuple(span) for window in windows for span in window.offsets.tolist()}
    assert spans == {tuple(span) for span in whole.offsets.tolist()}
    # Without the prompt, windows contain more of the text.
    if len(windows) > 1:
        bare = trained.windows(text, max_length=length, overlap=2)
        assert bare[0].sequence.count(0) > windows[0].sequence.count(0)


@given(text=st.text(max_size=40))
def test_byte_level_offsets_cover_every_visible_character(english: list[str], text: str) -> None:
    tokenizer = _byte_level(tuple(english[:5]))
    found = tokenizer.encode(text)
    covered = {i for a, b in found.offsets for i in range(a, b)}
    assert {i for i, c in enumerate(text) if c.isalnum()} <= covered


_BYTE_LEVEL: dict[tuple[str, ...], Tokenizer] = {}


def _byte_level(texts: tuple[str, ...]) -> Tokenizer:
    if texts not in _BYTE_LEVEL:
        _BYTE_LEVEL[texts] = train(texts, kind="bpe", size=400)
    return _BYTE_LEVEL[texts]


# ---- Pre-split words

BYTE_LEVEL = ("bpe", "modernbert", "prefix")
SPLIT = st.lists(
    st.one_of(
        st.text(max_size=8),
        st.sampled_from(
            ["New", "York", ".", "'s", "``", "e\u0301", "\u0301", "a b", "東京", "👩‍👩‍👧"]
        ),
        st.sampled_from(["<mask>", "\u0130", "\x00", "\u200b"]),
        # Spaces at the edge of a word are merged with the space next to it.
    ).map(str.strip),  # Spaces at the edge of a word are merged with the space next to it.
    max_size=10,
)


def _kind(name: str, english: list[str]) -> Tokenizer:
    """Return a byte-level BPE: bertkit's, ModernBERT's, or with a space before each text."""
    own = _byte_level(tuple(english[:5]))
    if name == "bpe":
        return own
    spec = json.loads(own.core.to_str())
    if name == "prefix":
        spec["pre_tokenizer"]["add_prefix_space"] = True
        spec["post_processor"]["add_prefix_space"] = True
    else:
        spec["normalizer"] = {"type": "NFC"}
        frame = processors.TemplateProcessing(
            single="<s>:0 $A:0 </s>:0",
            pair="<s>:0 $A:0 </s>:0 $B:0 </s>:0",
            special_tokens=[("<s>", own.cls), ("</s>", own.sep)],
        )
        spec["post_processor"] = json.loads(frame.__getstate__())
    return own.remade(tokenizers.Tokenizer.from_str(json.dumps(spec)))


def _as_text(tokenizer: Tokenizer, words: list[str]) -> list[tuple[int, int, int, int]]:
    """Return the id, the word index, and the offsets in the word for each token of the text."""
    ends = np.cumsum([len(word) + bool(word) for word in words]) - 1
    text = tokenizer.encode(" ".join(filter(None, words)), max_length=10**6)
    found = []
    for token, (start, end), owner in zip(text.ids, text.offsets, text.sequence, strict=True):
        if owner is not None:
            word = int(np.searchsorted(ends, max(start, end - 1), side="right"))
            begin = ends[word] - len(words[word])
            found.append((int(token), word, int(max(start - begin, 0)), int(end - begin)))
    return found


@pytest.mark.parametrize("kind", BYTE_LEVEL)
def test_pre_split_words_match_tokens_of_text(kind: str, english: list[str]) -> None:
    tokenizer = _kind(kind, english)

    @given(words=SPLIT, pair=SPLIT)
    def check(words: list[str], pair: list[str]) -> None:
        found = tokenizer.encode(words, pair, max_length=10**6)
        columns = zip(
            found.ids.tolist(), found.words, *found.offsets.T.tolist(), found.sequence, strict=True
        )
        rows = [(token, word, start, end, which) for token, word, start, end, which in columns]
        for which, given_words in enumerate((words, pair)):
            own = [row[:-1] for row in rows if row[-1] == which]
            assert own == _as_text(tokenizer, given_words)
            assert all(0 <= a <= b <= len(given_words[word]) for _, word, a, b in own)

    check()


@pytest.mark.parametrize("kind", BYTE_LEVEL[:2])
def test_core_tokenizer_drops_spaces_of_words(kind: str, english: list[str]) -> None:
    tokenizer, words = _kind(kind, english), ["in", "New", "York"]
    alone = tokenizer.core.encode(words, is_pretokenized=True)
    assert alone.ids != tokenizer.encode("in New York").ids.tolist()
    assert tokenizer.encode(words).ids.tolist() == tokenizer.encode("in New York").ids.tolist()


@given(words=SPLIT, pair=SPLIT)
def test_other_tokenizers_keep_pre_split_words(
    trained: Tokenizer, words: list[str], pair: list[str]
) -> None:
    if trained._words_lose_their_space:
        assert isinstance(trained.core.model, tokenizers.models.BPE)
        return
    found = trained.encode(words, pair, max_length=10**6)
    alone = trained.core.encode(words, pair, is_pretokenized=True)
    assert found.ids.tolist() == alone.ids
    assert found.words == alone.word_ids
    assert found.offsets.tolist() == [list(index) for index in alone.offsets]


def test_truncated_words_and_windows_keep_offsets(english: list[str]) -> None:
    tokenizer, words = _kind("bpe", english), ["York"] * 20
    whole = tokenizer.encode(words)
    cut = tokenizer.encode(words, max_length=12, truncate="first")
    assert cut.offsets[1:-1].tolist() == whole.offsets[1:11].tolist()
    assert cut.words[1:-1] == whole.words[1:11]
    windows = tokenizer.windows(words, max_length=12, overlap=0)
    assert [word for w in windows for word in w.words[1:-1]] == whole.words[1:-1]
    assert np.concatenate([w.offsets[1:-1] for w in windows]).tolist() == (
        whole.offsets[1:-1].tolist()
    )


def test_lone_surrogate_in_word_reports_its_position(english: list[str]) -> None:
    with pytest.raises(DataError, match="text 0, character 2"):
        _kind("bpe", english).encode(["fine", "ab\ud800"])


def test_empty_text_contains_only_special_tokens(trained: Tokenizer) -> None:
    assert trained.encode("").ids.tolist() == [trained.cls, trained.sep]
    assert trained.encode([]).ids.tolist() == [trained.cls, trained.sep]
    assert trained.encode_batch([]) == []
    assert trained.ids([]) == []
    assert trained.ids([""])[0].tolist() == []


def test_ids_equal_encode_without_specials(trained: Tokenizer, english: list[str]) -> None:
    texts = english[30:60]
    for found, whole in zip(
        trained.ids(texts), trained.encode_batch(texts, max_length=10**6), strict=True
    ):
        assert found.tolist() == whole.ids[1:-1].tolist()
        assert found.dtype == np.int64


def test_ids_ignores_special_tokens_in_text(trained: Tokenizer) -> None:
    specials = " ".join(trained.pieces(sorted(trained.special_ids)))
    found = trained.ids([f"They write {specials} there"])[0]
    assert not {trained.cls, trained.sep, trained.mask, trained.pad} & set(found.tolist())
    assert trained.mask in trained.encode(f"They write {specials} there").ids


def test_max_length_does_not_affect_later_calls(minilm: Path) -> None:
    tokenizer = Tokenizer.load(minilm)
    text = "word " * 50
    whole = tokenizer.encode(text)
    cut = tokenizer.encode(text, max_length=10, truncate="longest")
    assert (len(cut), cut.truncated, len(whole), whole.truncated) == (10, True, 52, False)
    assert len(tokenizer.encode(text)) == 52
    assert tokenizer.core.truncation is None
    assert tokenizer.core.padding is None


def test_encode_rejects_long_text_and_suggests_options(minilm: Path) -> None:
    tokenizer = Tokenizer.load(minilm)
    with pytest.raises(DataError, match=r"602 tokens, but the limit is 512.*truncate.*windows"):
        tokenizer.encode("word " * 600)
    with pytest.raises(DataError, match="text 1: 602 tokens"):
        tokenizer.encode_batch(["short", "word " * 600])
    with pytest.raises(DataError, match="max_length must be at least 3"):
        tokenizer.encode("a", "b", max_length=2, truncate="longest")
    with pytest.raises(DataError, match="leaves none"):
        tokenizer.encode("a", "b " * 30, max_length=10, truncate="first")
    with pytest.raises(DataError, match="requires a pair"):
        tokenizer.encode("a", truncate="second")


@given(
    length=st.integers(0, 200),
    limit=st.integers(5, 40),
    overlap=st.integers(0, 30),
    pair=st.booleans(),
)
def test_windows_contain_each_token_and_overlap(
    minilm: Path, length: int, limit: int, overlap: int, pair: bool
) -> None:
    tokenizer = _loaded(minilm)
    text = " ".join(f"{i}" for i in range(length))
    question, document = ("who ?", text) if pair else (text, None)
    slide = "second" if pair else "first"
    which = 1 if pair else 0
    capacity = limit - (5 if pair else 2)
    if capacity <= overlap:
        with pytest.raises(DataError, match="windows are too short"):
            tokenizer.windows(question, document, max_length=limit, overlap=overlap, slide=slide)
        return
    whole = tokenizer.encode(question, document, max_length=10**6)
    found = tokenizer.windows(question, document, max_length=limit, overlap=overlap, slide=slide)
    expected = [tuple(o) for o, s in zip(whole.offsets, whole.sequence, strict=True) if s == which]
    seen: list[tuple[int, int]] = []
    for n, window in enumerate(found):
        assert len(window) <= limit
        own = [tuple(o) for o, s in zip(window.offsets, window.sequence, strict=True) if s == which]
        shared = overlap if n else 0
        assert own[:shared] == seen[len(seen) - shared :]
        assert len(own) > shared or not expected
        seen += own[shared:]
        assert window.sequence.count(1 - which) == whole.sequence.count(1 - which)
        assert not window.truncated
    assert seen == expected


_LOADED: dict[Path, Tokenizer] = {}


def _loaded(path: Path) -> Tokenizer:
    if path not in _LOADED:
        _LOADED[path] = Tokenizer.load(path)
    return _LOADED[path]


def test_windows_rejects_impossible_settings(minilm: Path) -> None:
    tokenizer = _loaded(minilm)
    with pytest.raises(DataError, match="overlap must be at least 0 tokens, got -1"):
        tokenizer.windows("a", max_length=10, overlap=-1)
    with pytest.raises(DataError, match="requires a pair"):
        tokenizer.windows("a", max_length=10, overlap=1, slide="second")


@pytest.mark.parametrize("text", ["a \ud800 b", ["fine", "\udfff"]])
def test_lone_surrogate_reports_its_position(minilm: Path, text: str | list[str]) -> None:
    tokenizer = _loaded(minilm)
    with pytest.raises(DataError, match=r"text 1, character \d: lone surrogate"):
        tokenizer.encode_batch([text[:1], text])
    if isinstance(text, str):
        with pytest.raises(DataError, match="text 0, character 2"):
            tokenizer.ids([text])


def test_encode_rejects_invalid_input(minilm: Path) -> None:
    tokenizer = _loaded(minilm)
    with pytest.raises(DataError, match="text 0: expected a string, got NoneType"):
        tokenizer.encode_batch([None, "a"])
    with pytest.raises(ConfigError, match="truncate: no such value 'only_first'; did you mean 'fi"):
        tokenizer.encode("a b", "c", max_length=4, truncate="only_first")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="slide: no such value 'pair'; known: 'first', 'second'"):
        tokenizer.windows("a", "b", max_length=9, overlap=1, slide="pair")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="text 1: expected a string, got float"):
        tokenizer.encode_batch(["a", float("nan")])  # type: ignore[list-item]
    with pytest.raises(DataError, match="text 1: expected a string, got list"):
        tokenizer.encode_batch(["a", ["b"]])
    with pytest.raises(
        DataError, match="text 1: expected a sequence of words, like the first text, got str"
    ):
        tokenizer.encode_batch([["a"], "b"])
    with pytest.raises(DataError, match="expected a sequence of texts, got a string"):
        tokenizer.encode_batch("a text")
    with pytest.raises(DataError, match="2 texts but 1 pairs"):
        tokenizer.encode_batch(["a", "b"], ["c"])


def test_case_is_inferred_from_vocabulary(vocab: Path) -> None:
    assert Tokenizer.load(vocab).encode("THE").ids.tolist() == [2, 5, 3]
    vocab.write_text("\n".join([*VOCABULARY, "The"]) + "\n", encoding="utf-8")
    cased = Tokenizer.load(vocab)
    assert cased.pieces(cased.encode("The the THE").ids[1:-1]) == ["The", "the", "[UNK]"]


def test_tokenizer_config_overrides_inferred_case(vocab: Path) -> None:
    config = {"do_lower_case": False, "model_max_length": 1e30}
    (vocab.parent / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    tokenizer = Tokenizer.load(vocab.parent)
    assert tokenizer.encode("THE").ids.tolist() == [2, 1, 3]
    assert tokenizer.max_length is None


def test_added_tokens_json_extends_the_vocabulary(vocab: Path) -> None:
    added = vocab.parent / "added_tokens.json"
    added.write_text('{"zebra": 12, "yak": 11}', encoding="utf-8")
    tokenizer = Tokenizer.load(vocab.parent)
    assert tokenizer.pieces([11, 12]) == ["yak", "zebra"]
    assert tokenizer.vocab_size == 13
    added.write_text('{"zebra": 20}', encoding="utf-8")
    with pytest.raises(TokenizerError, match=r"added_tokens.json: 'zebra' has id 20"):
        Tokenizer.load(vocab.parent)


def test_load_ignores_windows_line_ends(vocab: Path, tmp_path: Path) -> None:
    other = tmp_path / "vocab.txt"
    other.write_bytes(vocab.read_bytes().replace(b"\n", b"\r\n"))
    assert Tokenizer.load(other).fingerprint == Tokenizer.load(vocab).fingerprint


def test_save_and_load_give_the_same_tokenizer(trained: Tokenizer, tmp_path: Path) -> None:
    trained.save(tmp_path / "new" / "folder")
    again = Tokenizer.load(tmp_path / "new" / "folder")
    assert again.fingerprint == trained.fingerprint
    assert again.max_length == trained.max_length
    assert again.special_ids == trained.special_ids
    names = {p.name for p in (tmp_path / "new" / "folder").iterdir()}
    assert names - {"vocab.txt"} == {"tokenizer.json", "tokenizer_config.json"}
    again.save(tmp_path / "third")
    for name in names:
        first = (tmp_path / "new" / "folder" / name).read_bytes()
        assert (tmp_path / "third" / name).read_bytes() == first


def test_fingerprint_depends_on_vocabulary_not_file(minilm: Path, tmp_path: Path) -> None:
    whole = Tokenizer.load(minilm)
    assert Tokenizer.load(minilm / "vocab.txt").fingerprint == whole.fingerprint
    assert Tokenizer.load(minilm / "tokenizer.json").fingerprint == whole.fingerprint
    (tmp_path / "vocab.txt").write_bytes((minilm / "vocab.txt").read_bytes())
    for other in ({"do_lower_case": False}, {"strip_accents": False}, {"cls_token": "[MASK]"}):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(other), encoding="utf-8")
        assert Tokenizer.load(tmp_path).fingerprint != whole.fingerprint
    text = (minilm / "vocab.txt").read_text(encoding="utf-8")
    (tmp_path / "vocab.txt").write_text(text.replace("\nthe\n", "\nthe-other\n"), encoding="utf-8")
    assert Tokenizer.load(tmp_path / "vocab.txt").fingerprint != whole.fingerprint


def test_starts_word_marks_first_tokens(trained: Tokenizer) -> None:
    text = "interpretable documentation of unhyphenated things"
    found = trained.encode(text)
    starts = trained.starts_word[found.ids]
    assert starts.shape == found.ids.shape
    assert starts[0]
    assert starts[-1]
    begins = [i for i, (a, _) in enumerate(found.offsets) if a and text[a - 1] == " "]
    inside = [i for i in range(2, len(found) - 1) if i not in begins]
    assert starts[begins].all()
    assert not starts[inside].any()


def test_decode_restores_text(trained: Tokenizer) -> None:
    found = trained.encode("the value of the object")
    assert trained.decode(found.ids).strip() == "the value of the object"
    assert len(trained.pieces(found.ids)) == len(found)
    for wrong in (-1, trained.vocab_size):
        with pytest.raises(DataError, match=f"id {wrong} is not in the vocabulary"):
            trained.pieces([wrong])


@pytest.mark.parametrize("lost", ["[PAD]", "[MASK]"])
def test_missing_special_token_raises_only_when_used(vocab: Path, lost: str) -> None:
    vocab.write_text("\n".join(p for p in VOCABULARY if p != lost) + "\n", encoding="utf-8")
    role = lost.strip("[]").lower()
    tokenizer = Tokenizer.load(vocab)
    assert tokenizer.encode("cafe").ids[0] == tokenizer.cls
    tokenizer.need("unk", "cls", "sep")
    for missed in (lambda: getattr(tokenizer, role), lambda: tokenizer.need("unk", role)):
        with pytest.raises(TokenizerError, match=f"vocab.txt: the vocabulary has no {role} token"):
            missed()


@pytest.mark.parametrize("lost", ["[UNK]", "[CLS]", "[SEP]"])
def test_load_rejects_vocab_without_required_tokens(vocab: Path, lost: str) -> None:
    vocab.write_text("\n".join(p for p in VOCABULARY if p != lost) + "\n", encoding="utf-8")
    role = lost.strip("[]").lower()
    with pytest.raises(TokenizerError, match=f"vocab.txt: the vocabulary has no {role} token"):
        Tokenizer.load(vocab)


def test_load_rejects_configured_token_outside_vocabulary(vocab: Path) -> None:
    settings = {"pad_token": "<nowhere>"}
    vocab.with_name("tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    with pytest.raises(TokenizerError, match=r"has no pad token \(<nowhere>\)"):
        Tokenizer.load(vocab.parent)


def test_load_rejects_duplicate_tokens(vocab: Path) -> None:
    vocab.write_text("\n".join([*VOCABULARY, "cafe"]) + "\n", encoding="utf-8")
    with pytest.raises(TokenizerError, match=r"vocab.txt:12: duplicate of line 7: 'cafe'"):
        Tokenizer.load(vocab)


def test_load_rejects_non_tokenizer_files(tmp_path: Path) -> None:
    def error_of(path: Path) -> str:
        with pytest.raises(TokenizerError) as error:
            Tokenizer.load(path)
        return str(error.value)

    assert "not found" in error_of(tmp_path / "nowhere")
    assert "no tokenizer.json or vocab.txt" in error_of(tmp_path)
    for name in ("spiece.model", "pytorch_model.bin"):
        (tmp_path / name).write_bytes(b"\x80\x02")
        assert f"{name}: unsupported tokenizer file" in error_of(tmp_path / name)
    assert "spiece.model: unsupported tokenizer file" in error_of(tmp_path)
    file = tmp_path / "tokenizer.json"
    for content in (b'{"version": ', b"[]", b"{}", b"null", b""):
        file.write_bytes(content)
        assert "tokenizer.json: invalid tokenizer" in error_of(tmp_path)
    file.write_bytes(b'{"a": "\xff"}')
    assert "tokenizer.json: not UTF-8 text (byte 7)" in error_of(tmp_path)
    config = tmp_path / "tokenizer_config.json"
    config.write_text('{"do_lower_case": ', encoding="utf-8")
    assert "tokenizer_config.json: invalid JSON" in error_of(tmp_path)
    config.write_text("[1]", encoding="utf-8")
    assert "tokenizer_config.json: not a JSON object" in error_of(tmp_path)
    config.write_text('{"model_max_length": "long"}', encoding="utf-8")
    assert "model_max_length must be a number, got 'long'" in error_of(tmp_path)


def test_load_rejects_setting_of_wrong_type(vocab: Path) -> None:
    config = vocab.parent / "tokenizer_config.json"
    config.write_text('{"do_lower_case": "yes"}', encoding="utf-8")
    with pytest.raises(
        TokenizerError,
        match=r"tokenizer_config.json: do_lower_case must be true or false, got 'yes'",
    ):
        Tokenizer.load(vocab.parent)


def test_load_ignores_code_in_model_directory(vocab: Path, tmp_path: Path) -> None:
    config = {"auto_map": {"AutoTokenizer": ["evil.Evil", None]}, "tokenizer_file": "/etc/passwd"}
    (vocab.parent / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    (vocab.parent / "evil.py").write_text("raise SystemExit('executed')", encoding="utf-8")
    Tokenizer.load(vocab.parent).save(tmp_path / "out")
    saved = (tmp_path / "out" / "tokenizer_config.json").read_text(encoding="utf-8")
    assert "auto_map" not in saved
    assert "passwd" not in saved


def test_tokenizers_do_not_import_torch() -> None:
    code = "import sys, bertkit.text.vocabulary_training; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_ids_ignores_special_token_after_unigram_vocabulary() -> None:
    """A special token after the Unigram vocabulary is not part of the lattice."""
    core = train(["the cat sat on the mat " * 20], kind="unigram", size=40).core
    core = tokenizers.Tokenizer.from_str(core.to_str())
    core.add_special_tokens(["<e1>"])
    tokenizer = Tokenizer(core, {})
    assert core.token_to_id("<e1>") not in tokenizer.ids(["the <e1> cat"])[0]
