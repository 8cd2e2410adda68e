"""A store in a folder on disk: LanceDB, in this process."""

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
"""The file of the spec, the table, and the tag of the version that searches see.

Each write makes a version of the table; the tag moves when a run has ended well, so that one which
was killed changes nothing that is found, and the next goes on from what it wrote."""

KEYWORDS_COLUMN = "words"
"""Column of a passage's keywords, separated by spaces."""

PLAIN = FTS(
    base_tokenizer="whitespace",
    lower_case=False,
    stem=False,
    remove_stop_words=False,
    ascii_folding=False,
)
"""Index of the keywords, unchanged."""

COLUMNS = {"passage": "number"}
"""Columns of fields that have another name."""

LOCK_FILE = ".writing"
"""A file that a run holds while it writes."""

WEEK, KEEP = timedelta(days=7), timedelta(days=365_000)
"""For how long versions stay that searches no longer see, and all of them."""

MAX_CACHED_BYTES = 1 << 29
"""Bytes of vectors that are kept to be searched in memory; more stay on disk, and are read for
each query."""


class LanceStore(Store):
    """A folder with a LanceDB table and what it was made with."""

    def __init__(
        self, place: str, spec: Spec, table: Any, *, lock: IO[bytes] | None = None
    ) -> None:
        self.place, self.spec, self.table, self.lock = place, spec, table, lock
        if lock is not None:
            weakref.finalize(self, lock.close)
        self.columns = {name: f"field{i}" for i, name in enumerate(spec.fields)}
        self.shown = [*SHOWN, *self.columns.values()]

    @classmethod
    def open(cls, place: str, create: Spec | None) -> Self:
        folder = Path(place)
        if folder.exists() and not folder.is_dir():
            raise SearchError(f"{place}: a file; a store is a folder, so choose another place")
        if not (folder / SPEC).exists():
            if create is None:
                raise SearchError(f"{place}: no store of passages; make one with `bertkit index`")
            sweep(folder)  # of a run that was killed before it had begun
            if folder.exists() and any(folder.iterdir()):
                raise SearchError(
                    f"{place}: a folder with other things in it; choose another place"
                )
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / SPEC, msgspec.to_builtins(create))
        with contextlib.ExitStack() as until_open:
            lock = None if create is None else until_open.enter_context(_locked(folder))
            spec, table = _opened(place, folder, create)
            until_open.pop_all()
        return cls(place, spec, table, lock=lock)

    def close(self) -> None:
        if self.lock is not None:
            self.lock.close()

    def digests(self, ids: Sequence[str]) -> dict[str, str]:
        with readable(self.place):
            query = self.table.search().where(f"number = 0 AND {_among(ids)}")
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
        with readable(self.place):  # in one version: what is new, and without what is old
            (
                self.table.merge_insert(["id", "number"])
                .when_matched_update_all()
                .when_not_matched_insert_all()
                .when_not_matched_by_source_delete(_among(ids))
                .execute(pa.table(columns, schema=_schema(self.spec)))
            )

    def sources(self) -> dict[str, str]:
        with readable(self.place):
            rows = self.table.search().where("number = 0").select(["id", "source"])
            first = rows.limit(max(1, self.table.count_rows())).to_arrow()
        return dict(zip(first["id"].to_pylist(), first["source"].to_pylist(), strict=True))

    def move(self, sources: Mapping[str, str]) -> None:
        with readable(self.place):
            held = self.table.search().where(_among(list(sources)))
            rows = held.limit(max(1, self.table.count_rows())).to_arrow()
            now = [sources[id] for id in rows["id"].to_pylist()]
            for name, values in (("source", now), ("suffix", list(map(source_suffix, now)))):
                column = pa.array(values, pa.string())
                rows = rows.set_column(rows.schema.get_field_index(name), name, column)
            self.table.merge_insert(["id", "number"]).when_matched_update_all().execute(rows)

    def remove(self, ids: Sequence[str]) -> None:
        with readable(self.place):
            self.table.delete(_among(ids))

    def finish(self) -> None:
        with readable(self.place):
            if not self.table.list_indices():
                self.table.create_index(KEYWORDS_COLUMN, config=PLAIN)
            # The words' index, too. Only then versions of a week ago go: none of them has the tag,
            # which LanceDB would not take out.
            self.table.optimize(cleanup_older_than=KEEP)
            self._tag()
            self.table.optimize(cleanup_older_than=WEEK)
            self._tag()

    def _tag(self) -> None:
        tags = self.table.tags
        (tags.update if FOUND in tags.list() else tags.create)(FOUND, self.table.version)

    def by_vector(
        self, vector: NDArray[np.float32], count: int, where: Sequence[Condition] = ()
    ) -> list[Hit]:
        return self._again(lambda: self._by_vector(vector, count, where))

    def _by_vector(
        self, vector: NDArray[np.float32], count: int, where: Sequence[Condition]
    ) -> list[Hit]:
        kept = self._kept
        if kept is not None and not where:
            return self._nearest(*kept, vector, count)
        with readable(self.place):
            query = self.table.search(vector, query_type="vector").distance_type("dot")
        rows = self._rows(query, "_distance", count, where)
        return [self._hit(row, 1.0 - row["_distance"]) for row in rows]  # as "dot" is defined

    @cached_property
    def _kept(self) -> tuple[NDArray[np.int64], NDArray[np.float32]] | None:
        """Row ids and vectors (P, D) of all passages, where they stay the same and memory holds
        them.
        """
        passages, dimension = len(self), self.spec.dimension
        if self.lock is not None or not 0 < passages * dimension * 4 <= MAX_CACHED_BYTES:
            return None
        with readable(self.place):
            rows = self.table.search().with_row_id(True).select(["vector"]).limit(passages)
            arrow = rows.to_arrow()
            flat = arrow["vector"].combine_chunks().flatten().to_numpy()
        return arrow["_rowid"].to_numpy(), flat.reshape(-1, dimension).copy()  # torch wants its own

    def _nearest(
        self,
        ids: NDArray[np.int64],
        vectors: NDArray[np.float32],
        vector: NDArray[np.float32],
        count: int,
    ) -> list[Hit]:
        scores = _products(vectors, vector)
        best = np.argsort(-scores, kind="stable")[:count]
        with readable(self.place):
            taken = self.table.take_row_ids(ids[best].tolist()).with_row_id()
            rows = taken.select(self.shown).to_arrow().to_pylist()
        by_id = {row["_rowid"]: row for row in rows}
        return [self._hit(by_id[int(ids[place])], float(scores[place])) for place in best]

    def by_words(self, query: str, count: int, where: Sequence[Condition] = ()) -> list[Hit]:
        words = " ".join(query_keywords(query))
        if not words:
            return []
        match = MatchQuery(words, KEYWORDS_COLUMN)  # type: ignore[call-arg]  # its defaults are pydantic's

        def found() -> list[Hit]:
            search = self.table.search(match, query_type="fts")
            rows = self._rows(search, "_score", count, where)
            return [self._hit(row, row["_score"]) for row in rows]

        return self._again(found)

    def _again(self, ask: Callable[[], list[Hit]]) -> list[Hit]:
        """Once more in the version that has the tag now, where the files of the one that was opened
        are gone: a week later a run takes them out.
        """
        try:
            return ask()
        except SearchError:
            if self.lock is not None:
                raise
            with readable(self.place):
                if self.table.tags.get_version(FOUND) == self.table.version:
                    raise
                self.table.checkout(FOUND)
            self.__dict__.pop("_kept", None)
            return ask()

    def _rows(
        self, query: Any, score: str, count: int, where: Sequence[Condition]
    ) -> list[dict[str, Any]]:
        if where:
            query = query.where(" AND ".join(map(self._sql, where)), prefilter=True)
        with readable(self.place):
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
        # LanceDB compares no integers with other numbers.
        left = f"CAST(`{column}` AS DOUBLE)" if isinstance(value, float) else f"`{column}`"
        return f"{left} {condition.operator} {right}"

    def __len__(self) -> int:
        return int(self.table.count_rows())


def _opened(place: str, folder: Path, create: Spec | None) -> tuple[Spec, Any]:
    """What a store is made with, and its table: to be read as it was finished last, or to be
    written to. With other settings one that was never finished begins anew, for nothing of it is
    found.
    """
    with readable(place):
        database = lancedb.connect(folder)
        there = TABLE in database.list_tables().tables
        table: Any = database.open_table(TABLE) if there else None
        finished = table is not None and FOUND in table.tags.list()
    content = read_bytes(folder / SPEC, SearchError)
    spec = read_spec(place, content, create if finished else None)
    with readable(place):
        schema = table.schema if finished else _schema(spec)
    vector = schema.field("vector").type if "vector" in schema.names else None
    if finished and vector != pa.list_(pa.float32(), spec.dimension):
        raise SearchError(
            f"{place}: the table has no vectors of {spec.dimension} values ({vector}); index again "
            "into a new place"
        )
    if create is None and not finished:
        raise SearchError(
            f"{place}: its first documents were never finished; run `bertkit index` again "
            "with --model, which goes on where it stopped"
        )
    with readable(place):
        if create is None:
            table.checkout(FOUND)
            return spec, table
        if table is not None and spec != create and not finished:
            database.drop_table(TABLE)
            table = None
        if table is None:
            write_json(folder / SPEC, msgspec.to_builtins(create))
            spec, table = create, database.create_table(TABLE, schema=_schema(create))
        table.checkout_latest()  # what others wrote until now
    return spec, table


def _locked(folder: Path) -> IO[bytes]:
    """Raises: SearchError where another run writes here: each would miss what the other adds."""
    with readable(str(folder)):
        if (folder / LOCK_FILE).is_fifo():
            raise OSError(f"{LOCK_FILE} is a pipe")
        file = (folder / LOCK_FILE).open("wb")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise SearchError(
            f"{folder}: another `bertkit index` writes here; wait until it has ended"
        ) from None
    except OSError:  # a file system that has no locks
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


def _products(vectors: NDArray[np.float32], vector: NDArray[np.float32]) -> NDArray[np.float32]:
    """Compute the products of a matrix and a vector, by torch if it is imported.

    Threads of numpy would delay those of the model.

    Shapes:
        vectors: (P, D); vector: (D,); returns (P,).
    """
    if sys.modules.get("torch") is None:
        return vectors @ vector
    import torch

    products: NDArray[np.float32] = (torch.from_numpy(vectors) @ torch.from_numpy(vector)).numpy()
    return products


def _among(ids: Sequence[str]) -> str:
    return f"id IN ({', '.join(map(_quoted, ids))})"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


@contextlib.contextmanager
def readable(place: str) -> Iterator[None]:
    """Raise a SearchError for what LanceDB raises for a damaged or unwritable directory."""
    try:
        yield
    except Exception as error:
        known = isinstance(error, (OSError, RuntimeError, ValueError, pa.ArrowException))
        if not known and type(error).__name__ != "RustPanic":  # a class that cannot be imported
            raise
        message = " ".join(str(error).split())[:200]
        raise SearchError(
            f"{place}: the store is damaged, or cannot be read or written ({message}); if it is "
            "damaged, index again into a new place"
        ) from None
