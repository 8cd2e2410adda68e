"""Deeply nested JSON raises the same error as invalid JSON."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertkit.data.corpus import Corpus
from bertkit.data.labels import parse_labels
from bertkit.errors import DataError
from bertkit.extensions.generation.pairs import Pairs
from bertkit.tasks.respond import Respond
from bertkit.tasks.task import Reading

NESTED = "[" * 100_000


def test_labels_reject_deeply_nested_json() -> None:
    with pytest.raises(DataError, match="expected a list such as"):
        parse_labels(NESTED, "a.csv:2")


def test_dialogues_reject_deeply_nested_json(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(NESTED, encoding="utf-8")
    with pytest.raises(DataError, match="not a JSON list"):
        Respond.reader.read(tmp_path / "a.json", Reading(), labeled=True)


@pytest.mark.parametrize("kind", [Corpus, Pairs])
def test_manifests_reject_deeply_nested_json(
    kind: type[Corpus] | type[Pairs], tmp_path: Path
) -> None:
    (tmp_path / "manifest.json").write_text(NESTED, encoding="utf-8")
    with pytest.raises(DataError, match="manifest"):
        kind.open(tmp_path)
