"""Vocabulary training: deterministic, complete, and bounded in memory."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import normalizers, pre_tokenizers

from bertkit.errors import ConfigError, DataError, TokenizerError
from bertkit.text import vocabulary_training as module
from bertkit.text.vocabulary_training import SPECIALS, count_words, train

KINDS = ["wordpiece", "bpe", "unigram"]
BERT = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_precede_vocabulary_of_requested_size(kind: Any, english: list[str]) -> None:
    tokenizer = train(english[:30], kind=kind, size=800)
    assert tokenizer.pieces(range(5)) == [*SPECIALS[kind].values()]
    assert tokenizer.special_ids == set(range(5))
    assert tokenizer.vocab_size == 800
    assert tokenizer.max_length == 512


def test_word_vocabulary_is_sorted_by_frequency() -> None:
    text = "b a b A c, a b 他们 <S>"
    tokenizer = train([text], kind="words", size=7, min_frequency=1)
    assert tokenizer.pieces(range(7)) == ["<S>", "</S>", "<UNK>", "b", "a", ",", "<"]
    (ids,) = tokenizer.ids(["b, d A a"])
    assert ids.tolist() == [3, 5, 2, 2, 4]
    often = train([text], kind="words", size=50, min_frequency=2)
    assert often.vocab_size == 5


def test_generative_vocabulary_has_only_eos_token(english: list[str]) -> None:
    tokenizer = train(english[:30], kind="bpe", size=400, use="write")
    assert (tokenizer.eos, tokenizer.pieces([0])) == (0, ["<|endoftext|>"])
    text = "Each class has a name. \n\tÜber 🙂"
    ids = tokenizer.encode(text).ids
    assert tokenizer.eos not in ids
    assert tokenizer.decode(ids) == text
    with pytest.raises(TokenizerError, match="has no pad token"):
        _ = tokenizer.pad
    with pytest.raises(ConfigError, match=r"is not supported by kind = .*; use bpe"):
        train(english[:3], kind="unigram", size=400, use="write")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"kind": "wordpeice"}, "kind: no such value 'wordpeice'; did you mean 'wordpiece'"),
        ({"kind": "bpe", "use": "wirte"}, "use: no such value 'wirte'; did you mean 'write'"),
        ({"kind": "unigram", "use": "translate"}, "use `train_vocabulary`"),
    ],
)
def test_train_rejects_unknown_kind_and_use(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        train(["a few words"], size=400, **wrong)


def test_wordpiece_special_tokens_have_bert_ids() -> None:
    tokenizer = train(["a few words, a few words"], kind="wordpiece", size=60)
    assert (tokenizer.pad, tokenizer.unk, tokenizer.cls, tokenizer.sep, tokenizer.mask) == (
        0,
        1,
        2,
        3,
        4,
    )


PROGRAM = """
import sys
from pydoc_data import topics
from bertkit.text.vocabulary_training import train
texts = [text for _, text in sorted(topics.topics.items())][:40]
for kind in sys.argv[1:]:
    print(train(texts, kind=kind, size=1500).fingerprint)
"""


def test_training_is_deterministic_across_processes() -> None:
    """Each run is a separate process, because the trainer's hash maps differ between processes."""
    run = [sys.executable, "-c", PROGRAM, *KINDS]
    found = [subprocess.run(run, check=True, capture_output=True).stdout for _ in range(3)]
    assert found[0] == found[1] == found[2]
    assert len(set(found[0].split())) == len(KINDS)


def test_frequent_words_become_tokens() -> None:
    text = "gold silver gold copper gold silver " * 20 + "tin"
    tokenizer = train([text], kind="wordpiece", size=100)
    vocabulary = set(tokenizer.pieces(range(tokenizer.vocab_size)))
    assert {"gold", "silver", "copper"} <= vocabulary
    # The word occurs once, below min_frequency.
    assert "tin" not in vocabulary


@pytest.mark.parametrize(("kind", "known"), [("wordpiece", False), ("bpe", True)])
def test_only_byte_level_vocabulary_covers_all_characters(
    kind: Any, known: bool, english: list[str]
) -> None:
    tokenizer = train(english[:10], kind=kind, size=500)
    assert (tokenizer.unk not in tokenizer.encode("東京 😀").ids) == known


def test_lowercase_and_strip_accents_follow_settings(english: list[str]) -> None:
    texts = [*english[:10], "Café Über naïve " * 50]

    def tokens(**settings: Any) -> str:
        tokenizer = train(texts, kind="wordpiece", size=600, **settings)
        return tokenizer.decode(tokenizer.encode("Café").ids)

    assert tokens() == "cafe"
    assert tokens(lowercase=False) == "Café"
    assert tokens(strip_accents=False) == "café"
    assert tokens(lowercase=False, strip_accents=True) == "Cafe"


def test_chinese_characters_are_separate_by_default() -> None:
    texts = ["東京都東京都 東京都"] * 30
    separate = train(texts, kind="wordpiece", size=60)
    joined = train(texts, kind="wordpiece", size=60, chinese_chars=False)
    assert len(separate.encode("東京都")) == 5
    assert len(joined.encode("東京都")) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_train_reports_minimum_size(kind: Any, english: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"size must be at least \d+ .*got 6") as error:
        train(english[:10], kind=kind, size=6)
    with pytest.raises(ConfigError, match=r"at least \d+") as error:
        train(english[:10], kind=kind, size=30)
    minimum = int(str(error.value).split("at least ")[1].split(" ")[0])
    with pytest.raises(ConfigError):
        train(english[:10], kind=kind, size=minimum - 1)
    assert train(english[:10], kind=kind, size=minimum).vocab_size >= minimum


def test_train_rejects_invalid_settings() -> None:
    with pytest.raises(ConfigError, match="did you mean 'wordpiece'"):
        train(["a"], kind="word-piece", size=100)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"character_coverage must be above 0 .*, got 0"):
        train(["a"], kind="bpe", size=300, character_coverage=0)


@pytest.mark.parametrize("texts", [[], [""], ["  \n ", "\x00"]])
def test_train_rejects_texts_without_words(texts: list[str]) -> None:
    with pytest.raises(DataError, match="the texts contain no words"):
        train(texts, kind="wordpiece", size=100)


@pytest.mark.parametrize("kind", KINDS)
def test_train_rejects_lone_surrogates(kind: Any) -> None:
    with pytest.raises(DataError, match="lone surrogate in"):
        train(["fine", "not \ud800 fine"], kind=kind, size=300)


@pytest.mark.parametrize("whole", [False, True])
def test_count_words_matches_single_pass(
    whole: bool, english: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks, slices, and flushes do not change the counts of a single pass over each document."""
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False) if whole else BERT[1]
    normalizer = None if whole else BERT[0]
    texts = [text + "\n\n   end " for text in english[:20]]
    expected: Counter[str] = Counter()
    for text in texts:
        plain = text if normalizer is None else normalizer.normalize_str(text)
        expected.update(word for word, _ in splitter.pre_tokenize_str(plain))
    monkeypatch.setattr(module, "SLICE_CHARACTERS", 1000)
    monkeypatch.setattr(module, "MAX_CHUNKS", 300)
    found = count_words(texts, normalizer, splitter, whole=whole)
    assert found == Counter(
        {w: n for w, n in expected.items() if len(w) <= module.MAX_WORD_CHARACTERS}
    )


def test_count_words_prunes_only_rare_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def texts() -> Iterator[str]:
        for i in range(20_000):
            yield f"gold gold silver x{i} y{i * 7919}"

    monkeypatch.setattr(module, "MAX_WORDS", 1000)
    monkeypatch.setattr(module, "MAX_CHUNKS", 500)
    found = count_words(texts(), *BERT, whole=False)
    assert len(found) <= 1000
    assert found["gold"] == 40_000
    assert found["silver"] == 20_000


def test_large_counts_are_scaled_for_training(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = Counter({"often": 9000, "some": 900, "rare": 9, "once": 1})
    monkeypatch.setattr(module, "MAX_TRAINED_WORDS", 1000)
    fed = Counter(" ".join(module._repeat(counts)).split())
    assert fed == {"often": 900, "some": 90, "rare": 1}
    monkeypatch.setattr(module, "MAX_TRAINED_WORDS", 10_000_000)
    assert Counter(" ".join(module._repeat(counts)).split()) == counts


LIMITED = """
import random, re
from pathlib import Path
from bertkit.text.vocabulary_training import train

def texts():
    draw = random.Random(0)
    for _ in range(500):
        yield " ".join(f"{draw.getrandbits(48):x}" for _ in range(2000)) + " real words" * 100

train(texts(), kind="wordpiece", size=2000)
print(int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]) / 2**10)
"""


@pytest.mark.slow
def test_million_distinct_words_use_under_one_gigabyte() -> None:
    if not Path("/proc/self/status").exists():
        pytest.skip("peak memory is read from /proc: ru_maxrss counts what the parent had, too")
    run = subprocess.run(
        [sys.executable, "-c", LIMITED], check=True, capture_output=True, text=True
    )
    assert float(run.stdout) < 1000
