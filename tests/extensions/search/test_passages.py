"""Split of documents into passages at headings, paragraphs, sentences and pages."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from tests.factories import tiny_tokenizer

from bertkit.extensions.search.document_formats import Extracted, markdown
from bertkit.extensions.search.documents import Document
from bertkit.extensions.search.passages import Section, split

LETTERS = tiny_tokenizer("abcdefghijklmnopqrstuvwxyz#.")


def parts(extracted: Extracted, max_tokens: int) -> list[tuple[str, Section]]:
    document = Document("d", extracted.text, "d", {}, extracted.headings, extracted.pages)
    (parts_of_document,) = split([document], LETTERS, max_tokens)
    return [(extracted.text[part.start : part.end], part) for part in parts_of_document]


def texts(extracted: Extracted, max_tokens: int) -> list[str]:
    return [text.strip() for text, _ in parts(extracted, max_tokens)]


def test_split_keeps_short_document_in_one_part() -> None:
    assert texts(Extracted("a b c\n\nd e"), 5) == ["a b c\n\nd e"]
    assert texts(Extracted("a b c\n\nd e"), 4) == ["a b c", "d e"]


def test_split_fills_parts_with_paragraphs() -> None:
    assert texts(Extracted("a b\n\nc\n\nd e f\n\ng"), 4) == ["a b\n\nc", "d e f\n\ng"]


def test_split_divides_long_paragraph_at_sentences() -> None:
    assert texts(Extracted("a b c . d e . f g h i j k l m"), 7) == [
        "a b c . d e .",
        "f g h i j k l m",
    ]


MARKDOWN = "# a\n\n## b\n\nc d\n\ne f g h\n\n## i\nj"


def test_split_starts_parts_at_headings() -> None:
    passages = parts(markdown(MARKDOWN), 7)
    assert [(text.strip(), part.heading, part.context) for text, part in passages] == [
        ("# a\n\n## b\n\nc d", "a > b", ""),
        ("e f g h", "a > b", ""),
        ("## i\nj", "a > i", ""),
    ]
    # With a larger limit, the context of a passage contains the headings above it.
    passages = parts(markdown(MARKDOWN.replace("e f g h", " ".join("efgh" * 15))), 60)
    assert [part.context for _, part in passages] == ["", "a > b", "a"]


def test_split_keeps_heading_with_following_text() -> None:
    passages = parts(markdown("# a b\n\nc d e f . g h i"), 8)
    assert [text.strip() for text, _ in passages] == ["# a b\n\nc d e f .", "g h i"]
    assert texts(markdown("# a\n\nb\n\n# c"), 8) == ["# a\n\nb", "# c"]


def test_parts_have_page_numbers() -> None:
    extracted = Extracted("a b\n\nc d\n\ne f", (), (0, 5, 5, 10))
    assert [part.heading for _, part in parts(extracted, 2)] == ["page 1", "page 3", "page 4"]


def test_part_ends_at_page_break() -> None:
    extracted = Extracted("a b\n\nc d\n\ne f", (), (0, 5, 5, 10))
    passages = [(text.strip(), part.heading) for text, part in parts(extracted, 30)]
    assert passages == [("a b", "page 1"), ("c d", "page 3"), ("e f", "page 4")]


def test_section_across_page_break_has_both_pages() -> None:
    text = "# a\n\nb c\n\nd e\n\n# f\n\ng h"
    headings = markdown(text).headings
    # One page break is within the text, and one page break is after a heading.
    for page in (text.index("d"), text.index("g")):
        passages = parts(Extracted(text, headings, (0, page)), 30)
        assert "".join(part_text for part_text, _ in passages) == text
        for part_text, part in passages:
            number = 1 if part.start < page else 2
            assert part.end <= page or number == 2
            title = "f" if "f" in part_text or "g" in part_text else "a"
            assert part.heading == f"{title} > page {number}"


WORDS = st.sampled_from(["a", "b .", "c\n", "\n\n", "# d\n", "## e\n\n", "\n---\n", " "])


@given(st.lists(WORDS, max_size=60), st.integers(5, 40))
def test_parts_cover_document_without_overlap(words: Sequence[str], max_tokens: int) -> None:
    extracted = markdown(" ".join(words))
    passages = parts(extracted, max_tokens)
    assert "".join(text for text, _ in passages) == extracted.text
    assert all(text for text, _ in passages)
