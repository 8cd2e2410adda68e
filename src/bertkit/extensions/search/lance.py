"""Stores in a directory, which LanceDB reads and writes within this process."""

from __future__ import annotations

import contextlib
import fcntl
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Self

import lancedb
import msgspec
import numpy as np
import pyarrow as pa
from lancedb.index import FTS
from lancedb.query import MatchQuery
from numpy.typing import NDArray

from bertkit.errors import SearchError
from bertkit.extensions.search.keywords import passage_keywords, query_keywords
from bertkit.extensions.search.store import (
    SHOWN,
    Condition,
    Hit,
    Passage,
    Spec,
    Store,
    hit,
    read_spec,
    source_suffix,
)
from bertkit.storage import read_bytes, sweep, write_json

SPEC, TABLE, FOUND = "bertkit.json", "passages", "found"
"""Name of the file that contains the spec, name of the table, and tag of the table version that
searches use.

Each write creates a new version of the table. The tag moves to the newest version only when a run
completes. A run that is killed therefore does not change search results, and the next run resumes
it."""

KEYWORDS_COLUMN = "words"
"""Column that contains the keywords of a passage, separated by spaces."""

PLAIN = FTS(
    base_tokenizer="whitespace",
    max_token_length=None,
    lower_case=False,
    stem=False,
    remove_stop_words=False,
    ascii_folding=False,
)
"""Settings of the full-text index, which keeps the keywords unchanged."""

COLUMNS = {"passage": "number"}
"""Names of columns, for those fields in `STORED` whose column has a different name."""

LOCK_FILE = ".writing"
"""File that a run locks while it writes to the store."""

WEEK, KEEP = timedelta(days=7), timedelta(days=365_000)
"""How long old versions of the table are kept, and a duration so long that all versions are
kept."""

MAX_CACHED_BYTES = 1 << 29
"""Maximum size in bytes of the embeddings to cache in memory. If they are larger, searches read
from disk."""


class LanceStore(Store):
    """A store in a directory, which contains the spec and a LanceDB table of passages."""

    def __init__(
        self, location: str, spec: Spec, table: Any, *, lock: IO[bytes] | None = None
    ) -> None:
        self.location, self.spec, self.table, self.lock = location, spec, table, lock
        if lock is not None:
            weakref.finalize(self, lock.close)
        self.columns = {name: f"field{i}" for i, name in enumerate(spec.fields)}
        self.shown = [*SHOWN, *self.columns.values()]

    @classmethod
    def open(cls, location: str, create: Spec | None) -> Self:
        folder = Path(location)
        if folder.exists() and not folder.is_dir():
            raise SearchError(f"{location}: expected a directory, got a file; choose another path")
        if not (folder / SPEC).exists():
            if create is None:
                raise SearchError(f"{location}: not a store; create one with `bertkit index`")
            # Remove temporary files that a run left if it was killed before it wrote the spec.
            sweep(folder)
            if folder.exists() and any(folder.iterdir()):
                raise SearchError(
                    f"{location}: the directory is not a store, but contains files; choose "
                    "another path"
                )
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / SPEC, msgspec.to_builtins(create))
        with contextlib.ExitStack() as until_open:
            lock = None if create is None else until_open.enter_context(_locked(folder))
            spec, table = _open_table(location, folder, create)
            until_open.pop_all()
        return cls(location, spec, table, lock=lock)

    def close(self) -> None:
        if self.lock is not None:
            self.lock.close()

    def digests(self, ids: Sequence[str]) -> dict[str, str]:
        with readable(self.location):
            query = self.table.search().where(f"number = 0 AND {_has_id(ids)}")
            rows = query.select(["id", "digest"]).limit(len(ids)).to_arrow().to_pylist()
        return {row["id"]: row["digest"] for row in rows}

    def replace(self, passages: Sequence[Passage], vectors: NDArray[np.float32]) -> None:
        columns = {
            name: pa.array([getattr(p, name) for p in passages], kind)
            for name, kind in _COLUMNS.items()
        }
        for name, column in self.columns.items():
            kind = pa.float64() if self.spec.fields[name] == "number" else pa.string()
            columns[column] = pa.array([p.fields[name] for p in passages], kind)
        flat = pa.array(np.ascontiguousarray(vectors, dtype=np.float32).ravel())
        words = (" ".join(passage_keywords(p.text)) for p in passages)
        columns[KEYWORDS_COLUMN] = pa.array(list(words), pa.string())
        columns["vector"] = pa.FixedSizeListArray.from_arrays(flat, self.spec.dimension)
        ids = list(dict.fromkeys(p.id for p in passages))
        # Use a single write, so that no version contains both old and new passages of a document.
        with readable(self.location):
            (
                self.table.merge_insert(["id", "number"])
                .when_matched_update_all()
                .when_not_matched_insert_all()
                .when_not_matched_by_source_delete(_has_id(ids))
                .execute(pa.table(columns, schema=_schema(self.spec)))
            )

    def sources(self) -> dict[str, str]:
        with readable(self.location):
            rows = self.table.search().where("number = 0").select(["id", "source"])
            first = rows.limit(max(1, self.table.count_rows())).to_arrow()
        return dict(zip(first["id"].to_pylist(), first["source"].to_pylist(), strict=True))

    def move(self, sources: Mapping[str, str]) -> None:
        with readable(self.location):
            query = self.table.search().where(_has_id(list(sources)))
            rows = query.limit(max(1, self.table.count_rows())).to_arrow()
            new = [sources[id] for id in rows["id"].to_pylist()]
            for name, values in (("source", new), ("suffix", list(map(source_suffix, new)))):
                column = pa.array(values, pa.string())
                rows = rows.set_column(rows.schema.get_field_index(name), name, column)
            self.table.merge_insert(["id", "number"]).when_matched_update_all().execute(rows)

    def remove(self, ids: Sequence[str]) -> None:
        with readable(self.location):
            self.table.delete(_has_id(ids))

    def finish(self) -> None:
        with readable(self.location):
            if not self.table.list_indices():
                self.table.create_index(KEYWORDS_COLUMN, config=PLAIN)
            # `optimize` also updates the full-text index. Delete old versions only after the tag
            # has moved, because LanceDB does not delete a tagged version.
            self.table.optimize(cleanup_older_than=KEEP)
            self._tag()
            self.table.optimize(cleanup_older_than=WEEK)
            self._tag()

    def _tag(self) -> None:
        tags = self.table.tags
        (tags.update if FOUND in tags.list() else tags.create)(FOUND, self.table.version)

    def by_vector(
        self, vector: NDArray[np.float32], count: int, filters: Sequence[Condition] = ()
    ) -> list[Hit]:
        return self._retry(lambda: self._by_vector(vector, count, filters))

    def _by_vector(
        self, vector: NDArray[np.float32], count: int, filters: Sequence[Condition]
    ) -> list[Hit]:
        cached = self._cached
        if cached is not None and not filters:
            return self._nearest(*cached, vector, count)
        with readable(self.location):
            query = self.table.search(vector, query_type="vector").distance_type("dot")
        rows = self._rows(query, "_distance", count, filters)
        # LanceDB defines the distance "dot" as 1 minus the dot product.
        return [self._hit(row, 1.0 - row["_distance"]) for row in rows]

    @cached_property
    def _cached(self) -> tuple[NDArray[np.int64], NDArray[np.float32]] | None:
        """Row ids (P,) and embeddings (P, D) of all passages.

        The value is None if the store is empty or open for writing, or if the embeddings exceed
        `MAX_CACHED_BYTES`.
        """
        passages, dimension = len(self), self.spec.dimension
        if self.lock is not None or not 0 < passages * dimension * 4 <= MAX_CACHED_BYTES:
            return None
        with readable(self.location):
            rows = self.table.search().with_row_id(True).select(["vector"]).limit(passages)
            arrow = rows.to_arrow()
            flat = arrow["vector"].combine_chunks().flatten().to_numpy()
        # Copy the array, because torch warns about arrays that are not writable.
        return arrow["_rowid"].to_numpy(), flat.reshape(-1, dimension).copy()

    def _nearest(
        self,
        ids: NDArray[np.int64],
        vectors: NDArray[np.float32],
        vector: NDArray[np.float32],
        count: int,
    ) -> list[Hit]:
        scores = _dot_products(vectors, vector)
        best = np.argsort(-scores, kind="stable")[:count]
        with readable(self.location):
            query = self.table.take_row_ids(ids[best].tolist()).with_row_id()
            rows = query.select(self.shown).to_arrow().to_pylist()
        by_id = {row["_rowid"]: row for row in rows}
        return [self._hit(by_id[int(ids[index])], float(scores[index])) for index in best]

    def by_words(self, query: str, count: int, filters: Sequence[Condition] = ()) -> list[Hit]:
        words = " ".join(query_keywords(query))
        if not words:
            return []
        # mypy does not know the default values of the pydantic fields of `MatchQuery`.
        match = MatchQuery(words, KEYWORDS_COLUMN)  # type: ignore[call-arg]

        def search() -> list[Hit]:
            matches = self.table.search(match, query_type="fts")
            rows = self._rows(matches, "_score", count, filters)
            return [self._hit(row, row["_score"]) for row in rows]

        return self._retry(search)

    def _retry(self, search: Callable[[], list[Hit]]) -> list[Hit]:
        """Run a search. If it fails, open the version that is tagged now, and run the search again.

        A search can fail because an index run deletes the files of versions older than `WEEK`.
        """
        try:
            return search()
        except SearchError:
            if self.lock is not None:
                raise
            with readable(self.location):
                if self.table.tags.get_version(FOUND) == self.table.version:
                    raise
                self.table.checkout(FOUND)
            self.__dict__.pop("_cached", None)
            return search()

    def _rows(
        self, query: Any, score: str, count: int, filters: Sequence[Condition]
    ) -> list[dict[str, Any]]:
        if filters:
            query = query.where(" AND ".join(map(self._sql, filters)), prefilter=True)
        with readable(self.location):
            arrow = query.limit(count).select([*self.shown, score]).to_arrow()
            rows: list[dict[str, Any]] = arrow.to_pylist()
        return rows

    def _hit(self, row: dict[str, Any], score: float) -> Hit:
        fields = {name: row[column] for name, column in self.columns.items()}
        return hit(row, float(score), fields)

    def _sql(self, condition: Condition) -> str:
        value = condition.value
        right = _quoted(value) if isinstance(value, str) else repr(value)
        column = self.columns.get(condition.field) or COLUMNS.get(condition.field, condition.field)
        # LanceDB does not compare integers with floating-point numbers.
        left = f"CAST(`{column}` AS DOUBLE)" if isinstance(value, float) else f"`{column}`"
        return f"{left} {condition.operator} {right}"

    def __len__(self) -> int:
        return int(self.table.count_rows())


def _open_table(location: str, folder: Path, create: Spec | None) -> tuple[Spec, Any]:
    """Open the spec and table of a store: for searching or, if `create` is given, for writing.

    Searches use the version that the last completed run wrote. If no run was ever completed and the
    spec of the store differs from `create`, the table is dropped, because no search uses it.
    """
    with readable(location):
        database = lancedb.connect(folder)
        exists = TABLE in database.list_tables().tables
        table: Any = database.open_table(TABLE) if exists else None
        finished = table is not None and FOUND in table.tags.list()
    content = read_bytes(folder / SPEC, SearchError)
    spec = read_spec(location, content, create if finished else None)
    with readable(location):
        schema = table.schema if finished else _schema(spec)
    vector = schema.field("vector").type if "vector" in schema.names else None
    if finished and vector != pa.list_(pa.float32(), spec.dimension):
        raise SearchError(
            f"{location}: expected embeddings of dimension {spec.dimension}, got the type "
            f"{vector}; index again into a new store"
        )
    if create is None and not finished:
        raise SearchError(
            f"{location}: the first `bertkit index` did not finish; run the same command again "
            "with --model to resume it"
        )
    with readable(location):
        if create is None:
            table.checkout(FOUND)
            return spec, table
        if table is not None and spec != create and not finished:
            database.drop_table(TABLE)
            table = None
        if table is None:
            write_json(folder / SPEC, msgspec.to_builtins(create))
            spec, table = create, database.create_table(TABLE, schema=_schema(create))
        # Another process may have written to the table since it was opened.
        table.checkout_latest()
    return spec, table


def _locked(folder: Path) -> IO[bytes]:
    """Lock a store for writing, and return the lock file.

    Raises:
        SearchError: If another process is writing to the store.
    """
    with readable(str(folder)):
        if (folder / LOCK_FILE).is_fifo():
            raise OSError(f"{LOCK_FILE} is a pipe")
        file = (folder / LOCK_FILE).open("wb")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise SearchError(
            f"{folder}: another `bertkit index` is writing to the store; wait until it finishes"
        ) from None
    except OSError:
        # The file system does not support locks.
        pass
    return file


_COLUMNS = {
    "id": pa.string(),
    "number": pa.int32(),
    "text": pa.string(),
    "start": pa.int64(),
    "end": pa.int64(),
    "source": pa.string(),
    "digest": pa.string(),
    "heading": pa.string(),
    "suffix": pa.string(),
    "modified": pa.float64(),
}


def _schema(spec: Spec) -> pa.Schema:
    kinds = {"number": pa.float64(), "text": pa.string()}
    fields = [(f"field{i}", kinds[kind]) for i, kind in enumerate(spec.fields.values())]
    vector = ("vector", pa.list_(pa.float32(), spec.dimension))
    return pa.schema([*_COLUMNS.items(), *fields, (KEYWORDS_COLUMN, pa.string()), vector])


def _dot_products(vectors: NDArray[np.float32], vector: NDArray[np.float32]) -> NDArray[np.float32]:
    """Compute the dot product of each embedding and the query's, using torch if it is imported.

    NumPy would start additional threads, which slow down the model.

    Shapes:
        vectors: (P, D); vector: (D,); returns (P,).
    """
    if sys.modules.get("torch") is None:
        return vectors @ vector
    import torch

    result: NDArray[np.float32] = (torch.from_numpy(vectors) @ torch.from_numpy(vector)).numpy()
    return result


def _has_id(ids: Sequence[str]) -> str:
    return f"id IN ({', '.join(map(_quoted, ids))})"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


@contextlib.contextmanager
def readable(location: str) -> Iterator[None]:
    """Convert errors that LanceDB raises, for example if a directory is damaged, to SearchError."""
    try:
        yield
    except Exception as error:
        known = isinstance(error, (OSError, RuntimeError, ValueError, pa.ArrowException))
        # Compare the name, because the class RustPanic cannot be imported.
        if not known and type(error).__name__ != "RustPanic":
            raise
        message = " ".join(str(error).split())[:200]
        raise SearchError(
            f"{location}: cannot read or write the store ({message}); if the store is damaged, "
            "index again into a new store"
        ) from None
