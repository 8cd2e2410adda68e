"""Symbolic links: a directory contributes each of its files once."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.factories import tiny_tokenizer

from bertkit.data.paths import files
from bertkit.errors import DataError
from bertkit.extensions.cleaning.clean import clean
from bertkit.extensions.search.documents import DocumentColumns, documents, list_files
from bertkit.extensions.search.index import index
from bertkit.recipes.prepare import prepare
from bertkit.recipes.vocabulary import train_vocabulary

SECRET = "root shell password"
OWN = {"hr/holiday.txt", "it/a.txt"}
SKIPPED = "skipped: 8 (4 linked from outside, 2 linked twice, 1 broken link, 1 hidden)"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a directory with links out of it, links within it, loops, and dangling links."""
    outside, docs = tmp_path / "outside", tmp_path / "docs"
    for folder in (outside, docs / "hr", docs / "it"):
        folder.mkdir(parents=True)
    (outside / "secret.txt").write_text(SECRET, encoding="utf-8")
    (docs / "hr" / "holiday.txt").write_text("A day off is free. " * 30, encoding="utf-8")
    (docs / "it" / "a.txt").write_text("The network cable is blue. " * 30, encoding="utf-8")
    (docs / ".hidden.txt").write_text(SECRET, encoding="utf-8")
    (docs / "it" / "absolute.txt").symlink_to(outside / "secret.txt")
    (docs / "it" / "relative.txt").symlink_to("../../outside/secret.txt")
    (docs / "it" / "folder").symlink_to(outside)
    (docs / "it" / "gone-outside.txt").symlink_to("/no/such/file.txt")
    (docs / "it" / "gone.txt").symlink_to("missing.txt")
    # The link precedes its target in sort order.
    (docs / "a-link.txt").symlink_to("hr/holiday.txt")
    (docs / "it" / "up").symlink_to("..")
    return docs


def test_directory_lists_own_files_once(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert {str(file.relative_to(tree)) for file in files([tree])} == OWN
    assert capsys.readouterr().err == f"{tree}: files: 2; {SKIPPED}\n"
    listing = list_files([tree])
    assert {name for _, name in listing.files} == OWN
    assert str(listing).endswith(SKIPPED)


def test_linked_directory_is_read(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tree)
    assert {
        file.relative_to(tmp_path / "link").as_posix() for file in files([tmp_path / "link"])
    } == OWN


def test_link_loops_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("A.", encoding="utf-8")
    (tmp_path / "x.txt").symlink_to("y.txt")
    (tmp_path / "y.txt").symlink_to("x.txt")
    os.mkfifo(tmp_path / "pipe.txt")
    assert [file.name for file in files([tmp_path])] == ["a.txt"]
    assert list_files([tmp_path]).skipped == {"broken link": 2, "neither file nor directory": 1}


def test_link_to_hidden_file_is_read(tmp_path: Path) -> None:
    # Kubernetes mounts a ConfigMap like this.
    (tmp_path / "..data").mkdir()
    (tmp_path / "..data" / "a.txt").write_text("A.", encoding="utf-8")
    (tmp_path / "a.txt").symlink_to("..data/a.txt")
    (tmp_path / "b.txt").symlink_to("..data/a.txt")
    assert [file.name for file in files([tmp_path])] == ["a.txt"]


def test_directory_with_only_outside_links_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "secret.txt").write_text(SECRET, encoding="utf-8")
    (tmp_path / "docs" / "a.txt").symlink_to("../secret.txt")
    for read in (files, list_files):
        with pytest.raises(DataError, match=r"docs: .* \(1 linked from outside"):
            read([tmp_path / "docs"])


def test_link_passed_by_name_is_read(tree: Path) -> None:
    (found,) = documents([tree / "it" / "absolute.txt"], DocumentColumns())
    assert found.text == SECRET


def _prepare(tree: Path, out: Path, tiny: Path) -> None:
    tokenizer = tiny_tokenizer(["a", "day", "off", "is", "free"])
    prepare([tree], tokenizer=tokenizer, out=out / "corpus", processes=1)


def _clean(tree: Path, out: Path, tiny: Path) -> None:
    clean([tree], out=out / "clean", processes=1)


def _vocabulary(tree: Path, out: Path, tiny: Path) -> None:
    train_vocabulary([tree], out=out / "vocabulary", size=100)


def _index(tree: Path, out: Path, tiny: Path) -> None:
    counts = index([tree], model=tiny, store=str(out / "store"))
    assert counts["documents"] == len(OWN)


@pytest.mark.parametrize("command", [_prepare, _clean, _vocabulary, _index])
def test_command_does_not_follow_links_outside(
    command: Callable[[Path, Path, Path], None],
    tree: Path,
    tmp_path: Path,
    tiny: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    command(tree, out, tiny)
    assert SKIPPED in capsys.readouterr().err
    written = b"".join(file.read_bytes() for file in out.rglob("*") if file.is_file())
    assert b"password" not in written
