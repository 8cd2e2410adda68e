"""Passages: they cover a document, begin at its headings, and know what they stand below."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from tests.factories import tiny_tokenizer

from bertkit.extensions.search.document_formats import Extracted, markdown
from bertkit.extensions.search.documents import Document
from bertkit.extensions.search.passages import Section, split

LETTERS = tiny_tokenizer("abcdefghijklmnopqrstuvwxyz#.")


def parts(extracted: Extracted, room: int) -> list[tuple[str, Section]]:
    document = Document("d", extracted.text, "d", {}, extracted.headings, extracted.pages)
    (own,) = split([document], LETTERS, room)
    return [(extracted.text[part.start : part.end], part) for part in own]


def texts(extracted: Extracted, room: int) -> list[str]:
    return [text.strip() for text, _ in parts(extracted, room)]


def test_what_fits_is_whole() -> None:
    assert texts(Extracted("a b c\n\nd e"), 5) == ["a b c\n\nd e"]
    assert texts(Extracted("a b c\n\nd e"), 4) == ["a b c", "d e"]


def test_as_many_paragraphs_as_there_is_room_for() -> None:
    assert texts(Extracted("a b\n\nc\n\nd e f\n\ng"), 4) == ["a b\n\nc", "d e f\n\ng"]


def test_a_long_paragraph_is_cut_at_sentences() -> None:
    assert texts(Extracted("a b c . d e . f g h i j k l m"), 7) == [
        "a b c . d e .",
        "f g h i j k l m",
    ]


MARKDOWN = "# a\n\n## b\n\nc d\n\ne f g h\n\n## i\nj"


def test_headings_begin_passages_and_are_kept() -> None:
    found = parts(markdown(MARKDOWN), 7)
    assert [(text.strip(), part.heading, part.context) for text, part in found] == [
        ("# a\n\n## b\n\nc d", "a > b", ""),
        ("e f g h", "a > b", ""),
        ("## i\nj", "a > i", ""),
    ]
    # with more room the model is told what stands above
    found = parts(markdown(MARKDOWN.replace("e f g h", " ".join("efgh" * 15))), 60)
    assert [part.context for _, part in found] == ["", "a > b", "a"]


def test_a_heading_never_stands_alone() -> None:
    found = parts(markdown("# a b\n\nc d e f . g h i"), 8)
    assert [text.strip() for text, _ in found] == ["# a b\n\nc d e f .", "g h i"]
    assert texts(markdown("# a\n\nb\n\n# c"), 8) == ["# a\n\nb", "# c"]


def test_pages_are_told() -> None:
    extracted = Extracted("a b\n\nc d\n\ne f", (), (0, 5, 5, 10))
    assert [part.heading for _, part in parts(extracted, 2)] == ["page 1", "page 3", "page 4"]


def test_part_ends_at_page_break() -> None:
    extracted = Extracted("a b\n\nc d\n\ne f", (), (0, 5, 5, 10))
    found = [(text.strip(), part.heading) for text, part in parts(extracted, 30)]
    assert found == [("a b", "page 1"), ("c d", "page 3"), ("e f", "page 4")]


def test_section_over_a_page_break_has_both_pages() -> None:
    text = "# a\n\nb c\n\nd e\n\n# f\n\ng h"
    headings = markdown(text).headings
    for page in (text.index("d"), text.index("g")):  # within the text, and after a heading
        found = parts(Extracted(text, headings, (0, page)), 30)
        assert "".join(own for own, _ in found) == text
        for own, part in found:
            number = 1 if part.start < page else 2
            assert part.end <= page or number == 2
            assert part.heading == f"{'f' if 'f' in own or 'g' in own else 'a'} > page {number}"


WORDS = st.sampled_from(["a", "b .", "c\n", "\n\n", "# d\n", "## e\n\n", "\n---\n", " "])


@given(st.lists(WORDS, max_size=60), st.integers(5, 40))
def test_parts_lie_beside_each_other(words: Sequence[str], room: int) -> None:
    extracted = markdown(" ".join(words))
    own = parts(extracted, room)
    assert "".join(text for text, _ in own) == extracted.text
    assert all(text for text, _ in own)
