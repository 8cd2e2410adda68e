"""The rules of `bertkit clean` match datatrove's filters on real texts."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.factories import tiny_tokenizer

from bertkit.data.document_readers import documents
from bertkit.data.sentences import split
from bertkit.extensions.cleaning.personal_data import IP, MAIL, mask
from bertkit.extensions.cleaning.quality import c4, gopher_quality, gopher_repetition, words_of
from bertkit.recipes.prepare import prepare

NAMES = {
    "gopher_short_doc": "short", "gopher_long_doc": "long",
    "gopher_below_avg_threshold": "short-words", "gopher_above_avg_threshold": "long-words",
    "gopher_too_many_hashes": "hashes", "gopher_too_many_ellipsis": "ellipses",
    "gopher_too_many_bullets": "bullets", "gopher_too_many_end_ellipsis": "ellipsis-lines",
    "gopher_below_alpha_threshold": "letters", "gopher_enough_stop_words": "stop-words",
    "dup_para_frac": "paragraphs", "dup_para_char_frac": "paragraph-characters",
    "dup_line_frac": "lines", "dup_line_char_frac": "line-characters",
    **{f"top_{n}_gram": f"top-{n}-gram" for n in (2, 3, 4)},
    **{f"duplicated_{n}_n_grams": f"duplicate-{n}-gram" for n in range(5, 11)},
    "lorem_ipsum": "lorem-ipsum", "curly_bracket": "curly-bracket",
    "too_few_sentences": "few-sentences",
}  # fmt: skip


@pytest.fixture(scope="module")
def datatrove_rules() -> Any:
    pytest.importorskip("datatrove")
    pytest.importorskip("spacy")
    from datatrove.data import Document
    from datatrove.pipeline.filters import (
        C4QualityFilter,
        GopherQualityFilter,
        GopherRepetitionFilter,
    )
    from datatrove.pipeline.formatters import PIIFormatter
    from datatrove.utils.text import split_into_sentences, split_into_words

    def rule_of(filter_: Any) -> Any:
        def rule(text: str) -> tuple[str, str | None]:
            document = Document(text=text, id="")
            answer = filter_.filter(document)
            return document.text, None if answer is True else NAMES[answer[1]]

        return rule

    return SimpleNamespace(
        quality=rule_of(GopherQualityFilter()),
        repetition=rule_of(GopherRepetitionFilter()),
        c4=rule_of(C4QualityFilter()),
        mask=PIIFormatter(email_replacement=MAIL, ip_replacement=IP).format,
        words=split_into_words,
        sentences=split_into_sentences,
    )


@pytest.fixture(scope="module")
def texts(data_folder: Path) -> list[str]:
    """Return reviews, some of which are changed so that they violate the rules."""
    reviews = [d.text.replace("<br />", "\n") for d in documents([data_folder / "prose_reviews"])]
    chance = random.Random(0)
    corrupted = [
        *(" ".join(text.split()[:60]) for text in reviews[:20]),
        *(f"{text}\n" * 3 for text in reviews[20:40]),
        *(" ".join([*text.split()[:40]] * 4) for text in reviews[40:60]),
        *("\n".join(f"- {line}" for line in text.split(". ")) for text in reviews[60:80]),
        *("...\n".join(text.split(". ")) for text in reviews[80:100]),
        *(text.replace(" ", " # ") for text in reviews[100:110]),
        *(" ".join(w if chance.random() < 0.7 else "12" for w in t.split()) for t in reviews[:20]),
        *(
            "\n".join((t, "This site uses cookies.", "{}."[i % 3 :]))
            for i, t in enumerate(reviews[:9])
        ),
        "\n\n".join(["Lorem ipsum dolor sit.", *reviews[:3]]),
    ]
    return [*reviews[200:500], *corrupted]


def test_decisions_on_datatrove_words_match(datatrove_rules: Any, texts: list[str]) -> None:
    seen: set[str | None] = set()
    for text in texts:
        words = datatrove_rules.words(text)
        quality, repetition = gopher_quality(text, words), gopher_repetition(text, words)
        assert quality == datatrove_rules.quality(text)[1]
        assert repetition == datatrove_rules.repetition(text)[1]
        assert c4(text, datatrove_rules.sentences) == datatrove_rules.c4(text)
        seen |= {quality, repetition, c4(text, datatrove_rules.sentences)[1]}
    assert len(seen) > 12, seen
    control = [
        gopher_quality(text, text.split()) == datatrove_rules.quality(text)[1] for text in texts
    ]
    assert not all(control)


def test_most_decisions_on_bertkit_words_match(datatrove_rules: Any, texts: list[str]) -> None:
    same = [
        (gopher_quality(text, words_of(text)) is None) == (datatrove_rules.quality(text)[1] is None)
        and (gopher_repetition(text, words_of(text)) is None)
        == (datatrove_rules.repetition(text)[1] is None)
        and (c4(text, split)[1] is None) == (datatrove_rules.c4(text)[1] is None)
        for text in texts
    ]
    assert sum(same) > 0.97 * len(same)


def test_masking_matches_datatrove(datatrove_rules: Any) -> None:
    text = (
        "Write to anna.b+c@mail.example.co.uk, <x_1@y.de> or root@[8.8.8.8]; not to a@b, @c.d or "
        "e @ f.g. Hosts: 8.8.8.8, 192.168.0.1, 10.0.0.1:80, (1.1.1.1), 008.8.8.8."
    )
    assert mask(text) == (datatrove_rules.mask(text), 3, 2)


def test_prepare_reads_datatrove_output(tmp_path: Path, english: list[str]) -> None:
    pytest.importorskip("datatrove")
    pytest.importorskip("pyarrow")
    from datatrove.data import Document
    from datatrove.pipeline.writers import JsonlWriter, ParquetWriter

    made = [Document(text=text, id=f"d{i}", metadata={"n": i}) for i, text in enumerate(english)]
    for kind, write in ((".jsonl.gz", JsonlWriter), (".parquet", ParquetWriter)):
        folder, writer = tmp_path / kind[1:], write(str(tmp_path / kind[1:]))
        with writer:
            for document in made[:20]:
                writer.write(document)
        assert all(file.name.endswith(kind) for file in folder.iterdir())
        out = tmp_path / f"corpus{kind}"
        corpus = prepare([folder], tokenizer=tiny_tokenizer("abc"), out=out, processes=1)
        assert corpus.documents == 20
        assert [d.text for d in documents([folder])] == english[:20]
