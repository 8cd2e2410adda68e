"""Examples are forms that the pages answer."""

from __future__ import annotations

import re

import pytest

from bertkit.extensions.serving.examples import LOOKS, MASKED, WORDS, looks
from bertkit.view.figures import Example
from bertkit.view.page import FILES


def test_masked_words_are_asked_of_a_model_that_fills_them() -> None:
    assert looks(["a", "b"], []) == LOOKS
    assert looks(["a", "b"], ["b", "a"]) == (*LOOKS, *MASKED)
    for models, able, named in ((["a", "b"], ["a"], "a"), (["a", "b", "c"], ["c", "b"], "b")):
        asked = [one.values.get("model") for one in looks(models, able)]
        assert asked == [None] * len(LOOKS) + [named] * len(MASKED)


@pytest.mark.parametrize("example", WORDS, ids=lambda one: one.text)
def test_a_word_stands_once_in_each_of_its_texts(example: Example) -> None:
    word, texts = example.values["word"], example.values["texts"].splitlines()
    assert len(set(texts)) == len(texts) >= 4
    for text in texts:
        assert re.findall(r"\w+", text.lower()).count(word) == 1


def test_what_is_to_be_seen_is_a_part_of_the_page() -> None:
    page = (FILES / "explain.html").read_text(encoding="utf-8")
    for example in (*LOOKS, *MASKED):
        assert f'<section id="{example.part}"' in page
        assert {*example.values} <= {"text", "pair"}
