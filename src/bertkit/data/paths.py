"""Functions that find input files and determine their types."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from bertkit.console import say
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
"""ISO 639-1 language codes. Files of a parallel corpus have them as suffixes, such as train.en."""


def paths_of(paths: str | Path | Sequence[str | Path]) -> list[Path]:
    """Return one or several paths as a list."""
    several = [paths] if isinstance(paths, str | Path) else paths
    return [Path(path) for path in several]


def files(paths: Sequence[str | Path], kinds: Sequence[str] = TEXT) -> list[Path]:
    """Return the files to read, and log how many files in directories are skipped.

    A directory is replaced by the files in it and its subdirectories that have a supported type. A
    file that is passed by name may also have a language code as suffix (train.en, train.en.gz).
    Such a file is read like a .txt file.

    Args:
        paths: The files and directories.
        kinds: Supported file types.

    Raises:
        DataError: If a path does not exist, a file is empty, occurs twice, or has an unsupported
            type, or a directory contains no supported file.
    """
    known = f"{', '.join(kinds[:-1])} and {kinds[-1]}"
    chosen: list[Path] = []
    for path in paths_of(paths):
        if path.is_dir():
            inside, skipped = files_inside(path, kinds)
            note = f"skipped: {sum(skipped.values()):,} ({counted(skipped)})" if skipped else ""
            if not inside:
                note = note and f"; {note}"
                raise DataError(
                    f"{path}: no {' or '.join(kinds)} file in this directory, also as .gz{note}"
                )
            if note:
                say(f"{path}: files: {len(inside):,}; {note}")
            chosen += inside
        elif not path.exists():
            raise DataError(f"{path}: no such file or directory; check the spelling")
        elif suffix(path) not in kinds and not (
            ".txt" in kinds and suffix(path).removeprefix(".") in LANGUAGES
        ):
            raise DataError(f"{path}: unsupported file type; use {known}, also as .gz")
        else:
            chosen.append(path)
    if not chosen:
        raise DataError("no input; pass at least one file or directory")
    seen: set[Path] = set()
    for path in chosen:
        if path.stat().st_size == 0:
            raise DataError(f"{path}: the file is empty; remove the file")
        if path.resolve() in seen:
            raise DataError(f"{path}: the file is passed twice; remove one of the two")
        seen.add(path.resolve())
    return chosen


def files_inside(folder: Path, kinds: Sequence[str]) -> tuple[list[Path], Counter[str]]:
    """Find the files of certain types in a directory and its subdirectories.

    A symbolic link is followed only if its target is in the same directory tree and has not been
    found without the link. A link to another place could add any file of this machine to a result
    that is then shared.

    Returns:
        The files, sorted, and the number of skipped files by reason.
    """
    root, skipped = folder.resolve(), Counter[str]()
    chosen: dict[Path, Path] = {}
    paths = sorted(folder.rglob("*"))
    # Links are processed last, so that a file is found under its real name if possible.
    for path in sorted(paths, key=Path.is_symlink):
        if not path.is_symlink() and path.is_dir():
            continue
        kind = suffix(path)
        if reason := _reason_to_skip(path, folder, root):
            skipped[reason] += 1
        elif kind not in kinds:
            skipped[kind or "without a suffix"] += 1
        elif (target := path.resolve()) in chosen:
            skipped["linked twice"] += 1
        else:
            chosen[target] = path
    return sorted(chosen.values()), skipped


def _reason_to_skip(path: Path, folder: Path, root: Path) -> str:
    """Return the reason to skip a path regardless of its type, or an empty string."""
    if any(part.startswith(".") for part in path.relative_to(folder).parts):
        return "hidden"
    if path.is_symlink():
        if not Path(os.path.realpath(path)).is_relative_to(root):
            return "linked from outside"
        if not path.exists():
            return "broken link"
        if path.is_dir():
            return "linked twice"
    return "" if path.is_file() else "neither file nor directory"


def counted(kinds: Mapping[str, int]) -> str:
    """Format the number of files of each type, starting with the largest number."""
    ordered = sorted(kinds.items(), key=lambda kind: (-kind[1], kind[0]))
    return ", ".join(f"{count:,} {kind}" for kind, count in ordered)


def suffix(file: Path) -> str:
    """Return the suffix of a file name in lower case, without .gz: .txt for notes.txt.gz."""
    return (Path(file.stem) if file.suffix == ".gz" else file).suffix.lower()


TABLES = (".csv", ".tsv", ".jsonl", ".parquet", ".gz")
"""Suffixes of files that contain rows."""


def is_table(text: str) -> bool:
    """Return whether a text is the path of an existing table, such as a .csv file."""
    return len(text) < 256 and text.endswith(TABLES) and Path(text).is_file()
