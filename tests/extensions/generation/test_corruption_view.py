"""The displayed corruption of a text, compared with pretraining samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.factories import tiny_tokenizer
from tests.view.conftest import html_of

from bertkit.data.corpus import Corpus
from bertkit.errors import DataError, TokenizerError
from bertkit.extensions.generation.corruption import Corrupted, CorruptionType
from bertkit.extensions.generation.corruption_view import (
    MAX_TOKENS,
    SETTINGS,
    CorruptedText,
    corrupt,
    corruption_figures,
)
from bertkit.recipes.prepare import prepare
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.vocabulary_training import train
from bertkit.view.figures import Spans
from bertkit.view.token_text import spelled

TEXT = "The cat sat on the mat. It slept all day! Two dogs ran over the hill, and it rained."
CORRUPTIONS: list[CorruptionType] = ["spans", "infill", "mass", "prefix"]


@pytest.fixture(scope="module")
def vocabularies(english: list[str]) -> dict[CorruptionType, Tokenizer]:
    t5 = train([TEXT, *english[:5]], kind="bpe", size=500, use="spans")
    bart = train([TEXT, *english[:5]], kind="bpe", size=500, use="encode")
    return {"spans": t5, "infill": bart, "mass": bart, "prefix": t5}


@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_corrupt_matches_pretraining_samples(
    corruption: CorruptionType, vocabularies: dict[CorruptionType, Tokenizer], tmp_path: Path
) -> None:
    tokenizer = vocabularies[corruption]
    (tmp_path / "a.txt").write_text(TEXT, encoding="utf-8")
    folder = prepare([tmp_path / "a.txt"], tokenizer=tokenizer, out=tmp_path / "c", processes=1)
    corpus = Corpus.open(folder.folder)
    sources = set()
    for seed in range(4):
        options: dict[str, Any] = {"start": 7, "length": 200, "seed": seed}
        samples = Corrupted(corpus, tokenizer, corruption, SETTINGS[corruption], **options)
        pair = samples.sample(0, 0)
        shown = corrupt(tokenizer, TEXT, corruption, seed)
        before = len(tokenizer.encode("").ids) - 1
        assert [token for token, _ in shown.source] == spelled(tokenizer, pair.source[before:-1])
        assert [token for token, _ in shown.target] == spelled(tokenizer, pair.labels[:-1])
        sources.add(tuple(shown.source))
    assert len(sources) == 4  # control: seeds give different samples


def check(shown: CorruptedText, corruption: CorruptionType) -> None:
    removed = [(token, span) for token, span in shown.text if span is not None]
    source_rest = [token for token, span in shown.source if span is None]
    text_rest = [token for token, span in shown.text if span is None]
    in_order = sorted if corruption == "infill" else list
    assert in_order(source_rest) == in_order(text_rest)
    marked = [(token, span) for token, span in shown.target if span is not None]
    if corruption == "infill":
        assert marked == removed
        assert shown.target == shown.text
    elif corruption == "spans":  # each span follows its sentinel
        sentinels = [item for item in shown.source if item[1] is not None]
        assert [item for item in marked if item not in sentinels] == removed
        assert [item for item in marked if item in sentinels] == sentinels
    else:
        assert marked == removed == shown.target


@settings(max_examples=60, deadline=None)
@given(
    text=st.text(st.sampled_from("abc .!?\n"), min_size=20, max_size=200),
    corruption=st.sampled_from(CORRUPTIONS),
    seed=st.integers(0, 99),
)
def test_removed_tokens_have_the_number_of_their_span(
    vocabularies: dict[CorruptionType, Tokenizer], text: str, corruption: CorruptionType, seed: int
) -> None:
    try:
        shown = corrupt(vocabularies[corruption], text, corruption, seed)
    except DataError as error:
        assert "at least two tokens" in str(error)  # noqa: PT017
        return
    check(shown, corruption)
    wrong = _add_to_span(shown.text, [span for _, span in shown.text].index(None))
    with pytest.raises(AssertionError):  # control: one more token in a span
        check(shown._replace(text=wrong), corruption)


def _add_to_span(text: list[tuple[str, int | None]], index: int) -> list[tuple[str, int | None]]:
    return [(token, 1 if i == index else span) for i, (token, span) in enumerate(text)]


def test_corrupt_rejects_unsupported_text_or_tokenizer(
    vocabularies: dict[CorruptionType, Tokenizer],
) -> None:
    with pytest.raises(TokenizerError, match="no sentinel token <extra_id_0>"):
        corrupt(tiny_tokenizer("abc"), "a b c", "spans", 0)
    with pytest.raises(TokenizerError, match="mask"):
        corrupt(vocabularies["spans"], "a b c", "mass", 0)
    with pytest.raises(DataError, match="at least two tokens"):
        corrupt(tiny_tokenizer("abc"), "a", "prefix", 0)
    with pytest.raises(DataError, match=rf"600 tokens; use a text of at most {MAX_TOKENS}"):
        corrupt(tiny_tokenizer("abc"), "a b " * 300, "prefix", 0)


def test_spans_are_colored_and_numbered() -> None:
    source, target = [("a", None), ("<x>", 1)], [("<x>", 1)]
    text = CorruptedText([("a", None), ("<b", 1), ("c", 1)], source, target)
    html = html_of(*corruption_figures(text))
    assert '<mark class="span1">&lt;b c <span class="small">1</span></mark>' in html
    assert '<mark class="span1">&lt;x&gt; <span class="small">1</span></mark>' in html


def test_spans_join_tokens_to_words() -> None:
    byte = Spans([("The", None), ("▁c", None), ("at", None), ("▁sat", 1), ("<m>", None)])
    assert list(byte.groups) == [("The cat", None), ("sat", 1), ("<m>", None)]
    word = Spans([("the", None), ("cat", 2), ("##s", 2), ("sat", None)])
    assert list(word.groups) == [("the", None), ("cats", 2), ("sat", None)]
