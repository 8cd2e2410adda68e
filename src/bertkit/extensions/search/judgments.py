"""Queries, and which documents answer them, for scoring a search."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from bertkit.data.document_readers import json_object, numbered
from bertkit.data.paths import suffix
from bertkit.errors import DataError, did_you_mean


def read_queries(path: Path) -> dict[str, str]:
    """Read query ids and texts from .jsonl rows {id or _id, text} or .tsv lines of id and text.

    Raises: DataError naming file and line.
    """
    path = Path(path)
    kind = suffix(path)
    if kind not in (".jsonl", ".tsv") and path.exists():
        raise DataError(f"{path}: queries are read from .jsonl and .tsv files, also .gz")
    queries: dict[str, str] = {}
    for line, raw in numbered(path):
        where = f"{path}:{line}"
        if kind == ".jsonl":
            row = json_object(raw.encode(), where)
            name = next((key for key in ("id", "_id") if key in row), "id")
            for key in (name, "text"):
                if key not in row:
                    raise DataError(f"{where}: no field {key!r}; {did_you_mean(key, row)}")
                if isinstance(row[key], float) and row[key].is_integer():
                    row[key] = int(row[key])  # as pandas writes a column that lacks a number
                if not isinstance(row[key], str | int) or isinstance(row[key], bool):
                    kind = type(row[key]).__name__
                    raise DataError(f"{where}: the field {key!r} holds a {kind}, and no text")
            number, text = str(row[name]), str(row["text"])
        else:
            number, tab, text = raw.partition("\t")
            if not tab:
                raise DataError(f"{where}: one column; write the query's id, a tab, and its text")
        if not text.strip():
            raise DataError(f"{where}: the query is empty; remove the line")
        number = number.strip()
        if number in queries:
            raise DataError(f"{where}: a second query with the id {number!r}; remove one")
        queries[number] = text.strip()
    return queries


COLUMNS = {
    "query": frozenset({"query", "query-id", "query_id", "qid", "topic"}),
    "document": frozenset(
        {"document", "corpus-id", "corpus_id", "doc", "doc-id", "doc_id", "docid", "docno", "pid"}
    ),
    "grade": frozenset({"grade", "score", "relevance", "rel", "label", "judgment"}),
}
"""Names of the columns of judgments, in small letters."""


def read_judgments(path: Path) -> dict[str, dict[str, int]]:
    """Read the grades of the judged documents of each query; grade 0 means not relevant.

    Lines contain query, document and grade, or query, 0, document and grade (TREC qrels), separated
    by white space. A header may name the columns in another order (BEIR's .tsv).
    Raises: DataError naming file and line, also for other columns.
    """
    rows = [(n, raw.split("\t") if "\t" in raw else raw.split()) for n, raw in numbered(Path(path))]
    rows = [(line, [cell.strip() for cell in cells]) for line, cells in rows]
    line, first = rows[0]
    places = (0, -2, -1)  # of query, document and grade, with TREC's 0 or without
    if not _is_number(first[-1]):
        places, rows = _named(first, f"{path}:{line}"), rows[1:]
    judgments: dict[str, dict[str, int]] = {}
    for line, cells in rows:
        if len(cells) != len(first) or len(cells) not in (3, 4):
            raise DataError(
                f"{path}:{line}: {len(cells)} columns; write query, document and grade, or "
                "TREC's query, 0, document and grade"
            )
        if len(cells) == 4 and cells[1] != rows[0][1][1]:
            raise DataError(
                f"{path}:{line}: {cells[1]!r} in the second of four columns, which is the same in "
                "all lines of TREC's qrels; write query, 0, document and grade"
            )
        query, document, grade = (cells[place] for place in places)
        if not _is_number(grade) or not float(grade).is_integer():
            raise DataError(f"{path}:{line}: the grade {grade!r} is no whole number")
        judgments.setdefault(query, {})[document] = int(float(grade))
    return judgments


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False


def _named(header: Sequence[str], where: str) -> tuple[int, int, int]:
    """Where a first line says that query, document and grade are."""
    small = [name.lower() for name in header]
    places = {
        role: [place for place, name in enumerate(small) if name in names]
        for role, names in COLUMNS.items()
    }
    match list(places.values()):
        case [[query], [document], [grade]]:
            return query, document, grade
    raise DataError(
        f"{where}: columns {', '.join(header)}: cannot tell which are the query, the document and "
        "the grade; call them so"
    )


def judged(
    queries: Mapping[str, str], judgments: Mapping[str, Mapping[str, int]], path: Path
) -> dict[str, Mapping[str, int]]:
    """The judgments of these queries that have a document which answers them.

    Raises: DataError when no query has any.
    """
    kept = {
        query: judgments[query]
        for query in queries
        if any(grade > 0 for grade in judgments.get(query, {}).values())
    }
    if not kept:
        raise DataError(f"{path}: no query of these has a document that answers it; check the ids")
    return kept
