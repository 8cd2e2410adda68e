"""The files that paths name, and their kinds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bertkit.errors import DataError

TEXT = (".txt", ".jsonl", ".parquet")

_CODES = (
    "aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu "
    "cv cy da de dv dz ee el en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi "
    "ho hr ht hu hy hz ia id ie ig ii ik io is it iu ja jv ka kg ki kj kk kl km kn ko kr ks "
    "ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd ne ng nl "
    "nn no nr nv ny oc oj om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg si sk sl "
    "sm sn so sq sr ss st su sv sw ta te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve "
    "vi vo wa wo xh yi yo za zh zu "
)

LANGUAGES = frozenset(_CODES.split())
"""ISO 639-1: the file of one language of a parallel corpus ends in it, such as train.en."""


def paths_of(paths: str | Path | Sequence[str | Path]) -> list[Path]:
    """Paths, or one alone, as a list."""
    several = [paths] if isinstance(paths, str | Path) else paths
    return [Path(path) for path in several]


def files(paths: Sequence[str | Path], kinds: Sequence[str] = TEXT) -> list[Path]:
    """The files to read: folders give what they hold at any depth, sorted, without hidden ones.

    A file that is named by itself may end in a language (train.en, train.en.gz); it is as .txt.

    Raises: DataError naming a path that is missing, empty, named twice, or of none of the kinds.
    """
    known = f"{', '.join(kinds[:-1])} and {kinds[-1]}"
    chosen: list[Path] = []
    for path in paths_of(paths):
        if path.is_dir():
            inside = [p for p in files_inside(path) if suffix(p) in kinds]
            if not inside:
                raise DataError(f"{path}: no {' or '.join(kinds)} file in this folder (nor as .gz)")
            chosen += inside
        elif not path.exists():
            raise DataError(f"{path}: no such file or folder; check the spelling")
        elif suffix(path) not in kinds and not (
            ".txt" in kinds and suffix(path).removeprefix(".") in LANGUAGES
        ):
            raise DataError(f"{path}: unknown kind of file; text is read from {known}, also .gz")
        else:
            chosen.append(path)
    if not chosen:
        raise DataError("no text: name at least one file or folder")
    seen: set[Path] = set()
    for path in chosen:
        if path.stat().st_size == 0:
            raise DataError(f"{path}: the file is empty; leave it out")
        if path.resolve() in seen:
            raise DataError(f"{path}: named twice; name each file once")
        seen.add(path.resolve())
    return chosen


def files_inside(folder: Path) -> list[Path]:
    """The files of a folder at any depth, sorted, without hidden ones."""
    inside = folder.rglob("*")
    return sorted(
        p
        for p in inside
        if p.is_file() and not any(part.startswith(".") for part in p.relative_to(folder).parts)
    )


def suffix(file: Path) -> str:
    """The kind of a file, whether compressed or not: notes.txt.gz is .txt."""
    return (Path(file.stem) if file.suffix == ".gz" else file).suffix.lower()


TABLES = (".csv", ".tsv", ".jsonl", ".parquet", ".gz")
"""How files of rows are named."""


def is_table(text: str) -> bool:
    """Whether what was given as a text is the name of a file of rows that is there."""
    return len(text) < 256 and text.endswith(TABLES) and Path(text).is_file()
