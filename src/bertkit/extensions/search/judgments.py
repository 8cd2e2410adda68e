"""Reading of queries and relevance judgments (qrels), to evaluate a search."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from bertkit.data.document_readers import json_object, numbered
from bertkit.data.paths import suffix
from bertkit.errors import DataError, did_you_mean


def read_queries(path: Path) -> dict[str, str]:
    """Read queries from the rows of a .jsonl file (id or _id, text) or of a .tsv file (id, text).

    Args:
        path: The file.

    Returns:
        The text of each query, by id.

    Raises:
        DataError: If the file is invalid. The message contains the file and line.
    """
    path = Path(path)
    kind = suffix(path)
    if kind not in (".jsonl", ".tsv") and path.exists():
        raise DataError(f"{path}: unsupported file type; use .jsonl or .tsv, or these with .gz")
    queries: dict[str, str] = {}
    for line, raw in numbered(path):
        source = f"{path}:{line}"
        if kind == ".jsonl":
            row = json_object(raw.encode(), source)
            name = next((key for key in ("id", "_id") if key in row), "id")
            for key in (name, "text"):
                if key not in row:
                    raise DataError(f"{source}: field {key!r} not found; {did_you_mean(key, row)}")
                # If some values of a column are missing, pandas writes its integers as floats.
                if isinstance(row[key], float) and row[key].is_integer():
                    row[key] = int(row[key])
                if not isinstance(row[key], str | int) or isinstance(row[key], bool):
                    kind = type(row[key]).__name__
                    raise DataError(f"{source}: field {key!r} must be a string, got {kind}")
            id, text = str(row[name]), str(row["text"])
        else:
            id, tab, text = raw.partition("\t")
            if not tab:
                raise DataError(f"{source}: expected a query id, a tab and a text, got no tab")
        if not text.strip():
            raise DataError(f"{source}: the query is empty; remove the line")
        id = id.strip()
        if id in queries:
            raise DataError(f"{source}: the query id {id!r} already exists; use each query id once")
        queries[id] = text.strip()
    return queries


COLUMNS = {
    "query": frozenset({"query", "query-id", "query_id", "qid", "topic"}),
    "document": frozenset(
        {"document", "corpus-id", "corpus_id", "doc", "doc-id", "doc_id", "docid", "docno", "pid"}
    ),
    "grade": frozenset({"grade", "score", "relevance", "rel", "label", "judgment"}),
}
"""Column names that are recognized in the header of a file of judgments, in lower case."""


def read_judgments(path: Path) -> dict[str, dict[str, int]]:
    """Read relevance judgments (qrels).

    Each line contains the query id, document id and grade, or the query id, 0, document id and
    grade (TREC qrels), separated by white space. If the file has a header, as in BEIR's .tsv files,
    the columns can be in another order.

    Args:
        path: The file.

    Returns:
        For each query id, the grade of each judged document, by document id. Grade 0 means not
        relevant.

    Raises:
        DataError: If the file is invalid. The message contains the file and line.
    """
    rows = [(n, raw.split("\t") if "\t" in raw else raw.split()) for n, raw in numbered(Path(path))]
    rows = [(line, [cell.strip() for cell in cells]) for line, cells in rows]
    line, first = rows[0]
    # Indices of the columns query, document and grade. They are valid for both three and four
    # columns.
    columns = (0, -2, -1)
    if not _is_number(first[-1]):
        columns, rows = _parse_header(first, f"{path}:{line}"), rows[1:]
    judgments: dict[str, dict[str, int]] = {}
    for line, cells in rows:
        if len(cells) != len(first) or len(cells) not in (3, 4):
            raise DataError(
                f"{path}:{line}: expected query, document and grade, or query, 0, document and "
                f"grade (TREC), got {len(cells)} columns"
            )
        if len(cells) == 4 and cells[1] != rows[0][1][1]:
            raise DataError(
                f"{path}:{line}: in a file with four columns, the second must be the same in all "
                f"lines, got {cells[1]!r}; use query, 0, document and grade"
            )
        query, document, grade = (cells[column] for column in columns)
        if not _is_number(grade) or not float(grade).is_integer():
            raise DataError(f"{path}:{line}: the grade must be an integer, got {grade!r}")
        judgments.setdefault(query, {})[document] = int(float(grade))
    return judgments


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False


def _parse_header(header: Sequence[str], source: str) -> tuple[int, int, int]:
    """Return the indices of the columns query, document and grade."""
    lower = [name.lower() for name in header]
    indices = {
        role: [index for index, name in enumerate(lower) if name in names]
        for role, names in COLUMNS.items()
    }
    match list(indices.values()):
        case [[query], [document], [grade]]:
            return query, document, grade
    raise DataError(
        f"{source}: cannot find the columns query, document and grade in {', '.join(header)}; "
        "rename the columns"
    )


def select_judged(
    queries: Mapping[str, str], judgments: Mapping[str, Mapping[str, int]], path: Path
) -> dict[str, Mapping[str, int]]:
    """Return the judgments for the queries that have at least one relevant document.

    Args:
        queries: The text of each query, by id.
        judgments: For each query id, the grade of each judged document, by document id.
        path: File that contains the judgments, for messages.

    Raises:
        DataError: If no query has a relevant document.
    """
    selected = {
        query: judgments[query]
        for query in queries
        if any(grade > 0 for grade in judgments.get(query, {}).values())
    }
    if not selected:
        raise DataError(f"{path}: no query has a relevant document; check the query ids")
    return selected
