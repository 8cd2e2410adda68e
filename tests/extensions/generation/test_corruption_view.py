"""What is shown of a damaged text is what pretraining would read of it."""

from __future__ import annotations

from pathlib import Path

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
DAMAGES: list[CorruptionType] = ["spans", "infill", "mass", "prefix"]


@pytest.fixture(scope="module")
def vocabularies(english: list[str]) -> dict[CorruptionType, Tokenizer]:
    t5 = train([TEXT, *english[:5]], kind="bpe", size=500, use="spans")
    bart = train([TEXT, *english[:5]], kind="bpe", size=500, use="encode")
    return {"spans": t5, "infill": bart, "mass": bart, "prefix": t5}


@pytest.mark.parametrize("damage", DAMAGES)
def test_it_is_the_sample_of_pretraining(
    damage: CorruptionType, vocabularies: dict[CorruptionType, Tokenizer], tmp_path: Path
) -> None:
    tokenizer = vocabularies[damage]
    (tmp_path / "a.txt").write_text(TEXT, encoding="utf-8")
    folder = prepare([tmp_path / "a.txt"], tokenizer=tokenizer, out=tmp_path / "c", processes=1)
    corpus = Corpus.open(folder.folder)
    sources = set()
    for seed in range(4):
        samples = Corrupted(
            corpus, tokenizer, damage, SETTINGS[damage], start=7, length=200, seed=seed
        )
        pair = samples.sample(0, 0)
        shown = corrupt(tokenizer, TEXT, damage, seed)
        before = len(tokenizer.encode("").ids) - 1
        assert [piece for piece, _ in shown.source] == spelled(tokenizer, pair.source[before:-1])
        assert [piece for piece, _ in shown.target] == spelled(tokenizer, pair.labels[:-1])
        sources.add(tuple(shown.source))
    assert len(sources) == 4  # the control: another seed takes others


def check(shown: CorruptedText, damage: CorruptionType) -> None:
    gone = [(piece, span) for piece, span in shown.text if span is not None]
    left = [piece for piece, span in shown.source if span is None]
    kept = [piece for piece, span in shown.text if span is None]
    assert left == kept if damage != "infill" else sorted(left) == sorted(kept)
    marked = [(piece, span) for piece, span in shown.target if span is not None]
    if damage == "infill":
        assert marked == gone
        assert shown.target == shown.text
    elif damage == "spans":  # behind its sentinel stands each span
        sentinels = [one for one in shown.source if one[1] is not None]
        assert [one for one in marked if one not in sentinels] == gone
        assert [one for one in marked if one in sentinels] == sentinels
    else:
        assert marked == gone == shown.target


@settings(max_examples=60, deadline=None)
@given(
    text=st.text(st.sampled_from("abc .!?\n"), min_size=20, max_size=200),
    damage=st.sampled_from(DAMAGES),
    seed=st.integers(0, 99),
)
def test_every_token_that_goes_has_the_number_of_its_span(
    vocabularies: dict[CorruptionType, Tokenizer], text: str, damage: CorruptionType, seed: int
) -> None:
    try:
        shown = corrupt(vocabularies[damage], text, damage, seed)
    except DataError as error:
        assert "at least two tokens" in str(error)  # noqa: PT017
        return
    check(shown, damage)
    wrong = _taken(shown.text, [span for _, span in shown.text].index(None))
    with pytest.raises(AssertionError):  # the control: one token more in a span
        check(shown._replace(text=wrong), damage)


def _taken(text: list[tuple[str, int | None]], place: int) -> list[tuple[str, int | None]]:
    return [(piece, 1 if at == place else span) for at, (piece, span) in enumerate(text)]


def test_what_cannot_be_damaged_is_said(vocabularies: dict[CorruptionType, Tokenizer]) -> None:
    with pytest.raises(TokenizerError, match="no sentinel token <extra_id_0>"):
        corrupt(tiny_tokenizer("abc"), "a b c", "spans", 0)
    with pytest.raises(TokenizerError, match="mask"):
        corrupt(vocabularies["spans"], "a b c", "mass", 0)
    with pytest.raises(DataError, match="at least two tokens"):
        corrupt(tiny_tokenizer("abc"), "a", "prefix", 0)
    with pytest.raises(DataError, match=rf"600 tokens, but at most {MAX_TOKENS} fit"):
        corrupt(tiny_tokenizer("abc"), "a b " * 300, "prefix", 0)


def test_spans_are_colored_and_numbered() -> None:
    one = CorruptedText([("a", None), ("<b", 1), ("c", 1)], [("a", None), ("<x>", 1)], [("<x>", 1)])
    html = html_of(*corruption_figures(one))
    assert '<mark class="span1">&lt;b c <span class="small">1</span></mark>' in html
    assert '<mark class="span1">&lt;x&gt; <span class="small">1</span></mark>' in html


def test_tokens_are_read_as_text() -> None:
    byte = Spans([("The", None), ("▁c", None), ("at", None), ("▁sat", 1), ("<m>", None)])
    assert list(byte.groups) == [("The cat", None), ("sat", 1), ("<m>", None)]
    word = Spans([("the", None), ("cat", 2), ("##s", 2), ("sat", None)])
    assert list(word.groups) == [("the", None), ("cats", 2), ("sat", None)]
