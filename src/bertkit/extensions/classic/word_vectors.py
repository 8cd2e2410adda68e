"""Static word vectors (word2vec, GloVe): loading, saving, and search for similar words."""

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
"""Number of bytes to read at a time."""

LONGEST_LINE = 1 << 26
"""Maximum number of bytes in a line."""

CACHED_CHARACTERS = 32
"""Maximum number of characters in a chunk of text whose words are cached."""

_NORMALIZER = normalizers.BertNormalizer(lowercase=True)
_PRE_TOKENIZER = pre_tokenizers.BertPreTokenizer()


def tokens(text: str) -> list[str]:
    """Split a text into words and punctuation, as uncased BERT does before WordPiece.

    Words are lowercased, and accents are removed. Source: BERT's BasicTokenizer.

    Args:
        text: The text.
    """
    # The rules split each chunk between spaces independently, so frequent chunks can be cached.
    words: list[str] = []
    for chunk in text.split(" "):
        words += _words(chunk) if len(chunk) > CACHED_CHARACTERS else _cached_words(chunk)
    return words


def _words(chunk: str) -> tuple[str, ...]:
    normal = _NORMALIZER.normalize_str(chunk)
    return tuple(word for word, _ in _PRE_TOKENIZER.pre_tokenize_str(normal))


_cached_words = lru_cache(maxsize=1 << 18)(_words)


@dataclass(frozen=True, eq=False)
class Vectors:
    """Static word vectors.

    Args:
        words: The words.
        table: The vector of each word.
        repeated: Number of rows in the file that were skipped because their word had occurred
            before. Published GloVe files contain such rows.

    Shapes:
        table: (V, D).
    """

    words: list[str]
    table: NDArray[np.float32]
    repeated: int = 0

    def __post_init__(self) -> None:
        if self.table.ndim != 2 or len(self.words) != len(self.table):
            raise ValueError(
                f"table must have 2 dimensions and {len(self.words)} rows, got shape "
                f"{self.table.shape}"
            )

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        return self.row(word) is not None

    def __getitem__(self, word: str) -> NDArray[np.float32]:
        """Return the vector of a word or, if it has no vector, of its lowercase form.

        Raises:
            KeyError: If neither has a vector.
        """
        row = self.row(word)
        if row is None:
            raise KeyError(word)
        vector: NDArray[np.float32] = self.table[row]
        return vector

    def row(self, word: str) -> int | None:
        """Return the row number of a word or, if it has no vector, of its lowercase form.

        Returns:
            The row number, or None if neither has a vector.
        """
        row = self._rows.get(word)
        return self._rows.get(word.lower()) if row is None else row

    def nearest(self, word: str, count: int = 10) -> list[tuple[str, float]]:
        """Return the words with the highest cosine similarity to a word, most similar first.

        Args:
            word: The word to search for. It is not in the result.
            count: Number of words to return.

        Raises:
            DataError: If the word has no vector.
        """
        row = self.row(word)
        if row is None:
            raise DataError(f"{word!r} has no vector; try another form of the word")
        cosine = self.table @ self.table[row] / (self._norms * self._norms[row])
        cosine[row] = -np.inf
        count = min(count, len(self) - 1)
        best = np.argpartition(-cosine, count)[:count]
        best = best[np.lexsort((best, -cosine[best]))]
        return [(self.words[i], float(cosine[i])) for i in best.tolist()]

    @cached_property
    def root_mean_square(self) -> float:
        """Root mean square of all values in the table, but at least 1e-6."""
        mean_square = float(np.vdot(self.table, self.table)) / (self.table.size or 1)
        return max(math.sqrt(mean_square), 1e-6)

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {word: row for row, word in enumerate(self.words)}

    @cached_property
    def _norms(self) -> NDArray[np.float32]:
        """Norms of the vectors, of shape (V,). They are never 0, so a zero vector has cosine 0."""
        norms: NDArray[np.float32] = np.linalg.norm(self.table, axis=1)
        return np.maximum(norms, np.finfo(np.float32).tiny ** 0.5)

    @staticmethod
    def load(path: str | Path) -> Vectors:
        """Load a text file of vectors from GloVe, or from word2vec (with a header "V D"); also .gz.

        A word may contain spaces, as in GloVe 840B. The last D fields of a line are the values of
        the vector. If a word occurs in several lines, the first line is used.

        Args:
            path: The file.

        Raises:
            DataError: If the file is invalid. The message names the file and line.
        """
        path = Path(path)
        words: dict[str, int] = {}
        table = np.empty((0, 0), np.float32)
        header, width, num_rows = None, 0, 0
        for line, rows in _blocks(path):
            if line == 1:
                header = _header(rows[0])
                if header:
                    width = header[1]
                    rows = rows[1:]
                    line += 1
                else:
                    width = _width(rows[0], f"{path}:1")
            if not rows:
                continue
            names, numbers = _parse(rows, width, path, line)
            num_rows += len(names)
            new = []
            for index, name in enumerate(names):
                if name not in words:
                    words[name] = len(words)
                    new.append(index)
            if len(words) > len(table):
                # Resize in place: a second copy of the table would double the memory.
                table.resize((len(words) + len(words) // 4, width), refcheck=False)
            table[len(words) - len(new) : len(words)] = (
                numbers if len(new) == len(names) else numbers[new]
            )
        if not words:
            raise DataError(f"{path}: contains no rows; each row must be a word and its values")
        if header and header[0] != num_rows:
            raise DataError(
                f"{path}:1: expected {header[0]:,} rows, as in the header, but got {num_rows:,}; "
                "download the file again"
            )
        table.resize((len(words), width), refcheck=False)
        return Vectors(list(words), table, num_rows - len(words))

    def save(self, path: str | Path) -> None:
        """Save the vectors in the text format of word2vec. `load` returns exactly the same values.

        Args:
            path: Path of the file. It is compressed if the suffix is .gz.

        Raises:
            DataError: If a word cannot be stored in this format.
            StorageError: If the file cannot be written.
        """
        path = Path(path)
        for row, word in enumerate(self.words):
            if not word or "\n" in word or any(map(_is_number, word.encode().split(b" ")[1:])):
                raise DataError(
                    f"{path}: word {row}, {word!r}, cannot be stored in a text file of vectors; "
                    "remove the word"
                )
        # Nine digits represent a float32 exactly.
        pattern = " %.9g" * self.table.shape[1] + "\n"
        with writing(path) as partial, partial.open("wb") as raw:
            file: IO[bytes] = raw
            if path.suffix == ".gz":
                # Without a name and a time, the same vectors always produce the same bytes.
                file = gzip.GzipFile("", "wb", fileobj=raw, mtime=0)  # type: ignore[assignment]
            file.write(b"%d %d\n" % self.table.shape)
            for word, numbers in zip(self.words, self.table, strict=True):
                file.write((word + pattern % tuple(numbers.tolist())).encode())
            if file is not raw:
                file.close()


def _blocks(path: Path) -> Iterator[tuple[int, list[bytes]]]:
    """Read a file in blocks of lines, and yield each block with the number of its first line."""
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
                    raise DataError(f"{path}:{line}: the line is too long; is this a text file?")
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; check the path") from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error}); download the file again") from None
    if rest:
        yield line, [rest]


def _header(row: bytes) -> tuple[int, int] | None:
    """Return V and D if a line is the header of a word2vec file, otherwise None."""
    fields = row.split()
    if len(fields) == 2 and all(field.isdigit() for field in fields) and int(fields[1]):
        return int(fields[0]), int(fields[1])
    return None


def _width(row: bytes, location: str) -> int:
    """Return D, the number of numeric fields at the end of the first line.

    The first field is the word, even if it is a number.
    """
    fields = row.rstrip(b" \r").split(b" ")
    width = 0
    while width < len(fields) - 1 and _is_number(fields[-1 - width]):
        width += 1
    if not width:
        raise DataError(
            f"{location}: expected a word and its values; is this a file of word vectors?"
        )
    return width


def _parse(
    rows: list[bytes], width: int, path: Path, line: int
) -> tuple[list[str], NDArray[np.float32]]:
    """Parse lines into words and values of shape (rows, D).

    All lines are parsed together. If this fails, they are parsed one by one.
    """
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
    # UnicodeDecodeError is also a ValueError.
    except ValueError:
        pass
    parsed = [_parse_one(row, width, f"{path}:{line + i}") for i, row in enumerate(rows)]
    return [word for word, _ in parsed], np.array([row for _, row in parsed], np.float32)


def _parse_one(row: bytes, width: int, location: str) -> tuple[str, NDArray[np.float32]]:
    fields = row.rstrip(b" \r").split(b" ")
    word_parts, rest = fields[:-width], fields[-width:]
    if not row.strip():
        raise DataError(f"{location}: the line is empty; remove the line")
    try:
        word = b" ".join(word_parts).decode()
    except UnicodeDecodeError:
        raise DataError(f"{location}: not UTF-8; convert the file or download it again") from None
    if len(fields) <= width or not word or any(map(_is_number, word_parts[1:])):
        raise DataError(
            f"{location}: expected a word and {width} values, got {len(fields)} fields; "
            "download the file again"
        )
    for field in rest:
        if not _is_number(field):
            shown = field[:40].decode("utf-8", "replace")
            raise DataError(f"{location}: {shown!r} is not a number; download the file again")
    numbers = np.array([float(field) for field in rest])
    if not (np.abs(numbers) <= np.finfo(np.float32).max).all():
        raise DataError(f"{location}: contains a value that is not finite; download the file again")
    return word, numbers.astype(np.float32)


def _is_number(field: bytes) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True
