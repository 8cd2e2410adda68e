"""English text of the installed Python, read without running code."""

import itertools
import sys
from pathlib import Path

from bertkit.data import local_text


def test_documents_contain_enough_text() -> None:
    found = list(itertools.islice(local_text.documents(), 200))
    assert sum(len(text) for _, text in found) > 500_000
    assert {source for source, _ in found} >= {"python reference", "python library"}
    assert all(text.strip() for _, text in found)


def test_docstrings_does_not_run_the_module(tmp_path: Path) -> None:
    path = tmp_path / "module_never_imported.py"
    words = "This sentence stands in a docstring that is long enough to be worth reading."
    path.write_text(f'"""{words}\n\n>>> an example\n"""\nraise SystemExit("this was run")\n')
    assert list(local_text.docstrings(path)) == [words + "\n"]
    assert "module_never_imported" not in sys.modules


def test_docstrings_skips_invalid_files(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("def (")
    assert list(local_text.docstrings(tmp_path / "bad.py")) == []
