"""Static word vectors (word2vec, GloVe): reading, writing, and the nearest words."""

from __future__ import annotations

import gzip
import math
import sys
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray
from tokenizers import normalizers, pre_tokenizers

from bertkit.errors import DataError
from bertkit.storage import check_file, open_gzip, writing

READ_BYTES = 1 << 22
"""Bytes read at a time."""

LONGEST_LINE = 1 << 26
"""Bytes one row may have."""

CACHED = 32
"""Longest chunk of text, in characters, whose words are remembered."""

_NORMALIZER = normalizers.BertNormalizer(lowercase=True)
_PRE_TOKENIZER = pre_tokenizers.BertPreTokenizer()


def tokens(text: str) -> list[str]:
    """The words and punctuation marks of a text, as uncased BERT splits it before WordPiece.

    Lower-cased and without accents. Source: BERT's BasicTokenizer.
    """
    # No rule looks across a space, so chunks are split alone, and the frequent ones once.
    words: list[str] = []
    for chunk in text.split(" "):
        words += _words(chunk) if len(chunk) > CACHED else _words_of_short(chunk)
    return words


def _words(chunk: str) -> tuple[str, ...]:
    normal = _NORMALIZER.normalize_str(chunk)
    return tuple(word for word, _ in _PRE_TOKENIZER.pre_tokenize_str(normal))


_words_of_short = lru_cache(maxsize=1 << 18)(_words)


@dataclass(frozen=True, eq=False)
class Vectors:
    """One vector for each word, whatever its context.

    Shapes: table (V, D). `repeated` counts the rows of the file that were left out because their
    word had stood before: published GloVe files hold some.
    """

    words: list[str]
    table: NDArray[np.float32]
    repeated: int = 0

    def __post_init__(self) -> None:
        if self.table.ndim != 2 or len(self.words) != len(self.table):
            raise ValueError(f"{len(self.words)} words, but a table of shape {self.table.shape}")

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        return self.row(word) is not None

    def __getitem__(self, word: str) -> NDArray[np.float32]:
        """The vector of a word, exactly this one or in lower case. Raises: KeyError."""
        row = self.row(word)
        if row is None:
            raise KeyError(word)
        vector: NDArray[np.float32] = self.table[row]
        return vector

    def row(self, word: str) -> int | None:
        """The row of a word: exactly this one, else in lower case, else None."""
        row = self._rows.get(word)
        return self._rows.get(word.lower()) if row is None else row

    def nearest(self, word: str, count: int = 10) -> list[tuple[str, float]]:
        """The words with the largest cosine to this one, which is left out; largest first.

        Raises: DataError when the word has no vector.
        """
        row = self.row(word)
        if row is None:
            raise DataError(f"{word!r}: no vector of this word; try another of its forms")
        cosine = self.table @ self.table[row] / (self._norms * self._norms[row])
        cosine[row] = -np.inf
        count = min(count, len(self) - 1)
        best = np.argpartition(-cosine, count)[:count]
        best = best[np.lexsort((best, -cosine[best]))]
        return [(self.words[i], float(cosine[i])) for i in best.tolist()]

    @cached_property
    def root_mean_square(self) -> float:
        """Root mean square of the table, at least 1e-6."""
        mean_square = float(np.vdot(self.table, self.table)) / (self.table.size or 1)
        return max(math.sqrt(mean_square), 1e-6)

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {word: row for row, word in enumerate(self.words)}

    @cached_property
    def _norms(self) -> NDArray[np.float32]:
        """(V,) lengths of the vectors; never 0, so that a zero vector has cosine 0."""
        norms: NDArray[np.float32] = np.linalg.norm(self.table, axis=1)
        return np.maximum(norms, np.finfo(np.float32).tiny ** 0.5)

    @staticmethod
    def load(path: str | Path) -> Vectors:
        """Read GloVe text, or word2vec text with its header "V D"; also as .gz.

        A word may hold spaces, as in GloVe 840B: the last D fields of a line are its numbers.
        Where a word stands twice, the first row counts.
        Raises: DataError naming file and line.
        """
        path = Path(path)
        words: dict[str, int] = {}
        table = np.empty((0, 0), np.float32)
        promised, width, seen = None, 0, 0
        for line, rows in _blocks(path):
            if line == 1:
                promised = _header(rows[0])
                if promised:
                    width = promised[1]
                    rows = rows[1:]
                    line += 1
                else:
                    width = _width(rows[0], f"{path}:1")
            if not rows:
                continue
            names, numbers = _parse(rows, width, path, line)
            seen += len(names)
            new = []
            for place, name in enumerate(names):
                if name not in words:
                    words[name] = len(words)
                    new.append(place)
            if len(words) > len(table):
                # grown where it lies: a second copy of the table would double the memory
                table.resize((len(words) + len(words) // 4, width), refcheck=False)
            table[len(words) - len(new) : len(words)] = (
                numbers if len(new) == len(names) else numbers[new]
            )
        if not words:
            raise DataError(f"{path}: no rows; each is a word and its numbers")
        if promised and promised[0] != seen:
            raise DataError(
                f"{path}:1: the header promises {promised[0]:,} rows, but there are {seen:,}; "
                "get the file again"
            )
        table.resize((len(words), width), refcheck=False)
        return Vectors(list(words), table, seen - len(words))

    def save(self, path: str | Path) -> None:
        """Write word2vec text, or the same as .gz; `load` gives the same numbers.

        Raises: DataError for a word that such a file cannot hold, StorageError.
        """
        path = Path(path)
        for row, word in enumerate(self.words):
            if not word or "\n" in word or any(map(_is_number, word.encode().split(b" ")[1:])):
                raise DataError(
                    f"{path}: word {row}, {word!r}, cannot stand in a text file of vectors; "
                    "leave it out"
                )
        pattern = " %.9g" * self.table.shape[1] + "\n"  # nine digits: a float32, exactly
        with writing(path) as partial, partial.open("wb") as raw:
            file: IO[bytes] = raw
            if path.suffix == ".gz":
                # without name and time, the same vectors are the same bytes
                file = gzip.GzipFile("", "wb", fileobj=raw, mtime=0)  # type: ignore[assignment]
            file.write(b"%d %d\n" % self.table.shape)
            for word, numbers in zip(self.words, self.table, strict=True):
                file.write((word + pattern % tuple(numbers.tolist())).encode())
            if file is not raw:
                file.close()


def _blocks(path: Path) -> Iterator[tuple[int, list[bytes]]]:
    """The lines of a file, many at a time, each time with the number of the first."""
    line, rest = 1, b""
    try:
        check_file(path, DataError, most=sys.maxsize)
        with open_gzip(path, DataError) if path.suffix == ".gz" else path.open("rb") as file:
            while data := file.read(READ_BYTES):
                if line == 1 and not rest:
                    data = data.removeprefix(BOM_UTF8)
                *rows, rest = (rest + data).split(b"\n")
                if rows:
                    yield line, rows
                    line += len(rows)
                elif len(rest) > LONGEST_LINE:
                    raise DataError(f"{path}:{line}: a line without end; is this a text file?")
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; check the spelling") from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error}); get the file again") from None
    if rest:
        yield line, [rest]


def _header(row: bytes) -> tuple[int, int] | None:
    """V and D, if this is word2vec's first line."""
    fields = row.split()
    if len(fields) == 2 and all(field.isdigit() for field in fields) and int(fields[1]):
        return int(fields[0]), int(fields[1])
    return None


def _width(row: bytes, where: str) -> int:
    """D, from a first row: how many numbers it ends with; a word of digits is still a word."""
    fields = row.rstrip(b" \r").split(b" ")
    width = 0
    while width < len(fields) - 1 and _is_number(fields[-1 - width]):
        width += 1
    if not width:
        raise DataError(f"{where}: not a word and its numbers; is this a file of word vectors?")
    return width


def _parse(
    rows: list[bytes], width: int, path: Path, line: int
) -> tuple[list[str], NDArray[np.float32]]:
    """Words and numbers (rows, D) of lines; whatever is wrong is looked for one by one."""
    words, numbers = [], []
    try:
        for row in rows:
            word, _, rest = row.rstrip(b" \r").partition(b" ")
            words.append(word)
            numbers.append(rest)
        names = b"\n".join(words).decode().split("\n")
        if all(words) and all(numbers):
            table = np.loadtxt(
                [row.decode("ascii") for row in numbers],
                dtype=np.float32,
                delimiter=" ",
                comments=None,
                ndmin=2,
            )
            if table.shape == (len(rows), width) and np.isfinite(table).all():
                return names, table
    except ValueError:  # or UnicodeDecodeError, which is one
        pass
    parsed = [_parse_one(row, width, f"{path}:{line + i}") for i, row in enumerate(rows)]
    return [word for word, _ in parsed], np.array([row for _, row in parsed], np.float32)


def _parse_one(row: bytes, width: int, where: str) -> tuple[str, NDArray[np.float32]]:
    fields = row.rstrip(b" \r").split(b" ")
    pieces, rest = fields[:-width], fields[-width:]
    if not row.strip():
        raise DataError(f"{where}: an empty line; remove it")
    try:
        word = b" ".join(pieces).decode()
    except UnicodeDecodeError:
        raise DataError(f"{where}: not UTF-8; get the file again, or convert it") from None
    if len(fields) <= width or not word or any(map(_is_number, pieces[1:])):
        raise DataError(
            f"{where}: expected a word and {width} numbers, found {len(fields)} fields; "
            "get the file again"
        )
    for field in rest:
        if not _is_number(field):
            shown = field[:40].decode("utf-8", "replace")
            raise DataError(f"{where}: {shown!r} is not a number; get the file again")
    numbers = np.array([float(field) for field in rest])
    if not (np.abs(numbers) <= np.finfo(np.float32).max).all():
        raise DataError(f"{where}: holds a number that is not finite; get the file again")
    return word, numbers.astype(np.float32)


def _is_number(field: bytes) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True
