"""Queries, and which documents answer them, for scoring a search."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bertkit.data.readers import json_object, numbered, suffix
from bertkit.errors import DataError, did_you_mean


def read_queries(path: Path) -> dict[str, str]:
    """Query ids and texts, from .jsonl rows {id or _id, text} or .tsv lines of id and text.

    Raises: DataError naming file and line.
    """
    path = Path(path)
    kind = suffix(path)
    if kind not in (".jsonl", ".tsv") and path.exists():
        raise DataError(f"{path}: queries are read from .jsonl and .tsv files, also .gz")
    found: dict[str, str] = {}
    for line, raw in numbered(path):
        where = f"{path}:{line}"
        if kind == ".jsonl":
            row = json_object(raw.encode(), where)
            name = next((key for key in ("id", "_id") if key in row), "id")
            for key in (name, "text"):
                if key not in row:
                    raise DataError(f"{where}: no field {key!r}; {did_you_mean(key, row)}")
            number, text = str(row[name]), str(row["text"])
        else:
            number, tab, text = raw.partition("\t")
            if not tab:
                raise DataError(f"{where}: one column; write the query's id, a tab, and its text")
        if not text.strip():
            raise DataError(f"{where}: the query is empty; remove the line")
        if number in found:
            raise DataError(f"{where}: a second query with the id {number!r}; remove one")
        found[number] = text.strip()
    return found


def read_judgments(path: Path) -> dict[str, dict[str, int]]:
    """For each query its judged documents and their grades, 0 for those that do not answer it.

    Lines of query, document and grade (BEIR's .tsv, with a header or without), or of query, 0,
    document and grade (TREC's qrels), in columns between white space.
    Raises: DataError naming file and line.
    """
    found: dict[str, dict[str, int]] = {}
    for line, raw in numbered(Path(path)):
        cells = raw.split("\t") if "\t" in raw else raw.split()
        if line == 1 and not cells[-1].strip().lstrip("-").isdigit():
            continue  # the names of the columns
        match cells:
            case [query, document, grade] | [query, _, document, grade]:
                pass
            case _:
                raise DataError(
                    f"{path}:{line}: {len(cells)} columns; write query, document and grade, or "
                    "TREC's query, 0, document and grade"
                )
        try:
            found.setdefault(query.strip(), {})[document.strip()] = int(grade)
        except ValueError:
            raise DataError(f"{path}:{line}: the grade {grade!r} is no whole number") from None
    return found


def judged(
    queries: Mapping[str, str], judgments: Mapping[str, Mapping[str, int]], path: Path
) -> dict[str, Mapping[str, int]]:
    """The judgments of these queries that have a document which answers them.

    Raises: DataError when no query has any.
    """
    found = {
        query: judgments[query]
        for query in queries
        if any(grade > 0 for grade in judgments.get(query, {}).values())
    }
    if not found:
        raise DataError(f"{path}: no query of these has a document that answers it; check the ids")
    return found
