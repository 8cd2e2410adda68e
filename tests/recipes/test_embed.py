"""Embedding of many texts, and the atomic output file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bertkit.checkpoint.formats import LoadSettings
from bertkit.errors import ConfigError, DataError
from bertkit.pipelines import Embed, pipeline
from bertkit.recipes.embed import embed, embed_file, embed_texts, load_embedder


@pytest.mark.parametrize("count", [0, 1, 9, 10, 1001])
def test_embed_file_writes_vectors_incrementally(
    count: int, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertkit.pipelines.embed.TEXTS_PER_BATCH", 10)
    embed = pipeline("embed", tiny)
    texts = [" ".join("abcdefgh"[: 1 + i % 8]) for i in range(count)]
    written: list[int] = []

    def source() -> Iterator[str]:
        for text in texts:
            partial = list(tmp_path.glob(".v.npy.partial-*"))
            written.append(partial[0].stat().st_size if partial else 0)
            yield text

    assert embed_file(embed, source(), tmp_path / "v.npy") == (count, 0)
    found = np.load(tmp_path / "v.npy", allow_pickle=False)
    assert (found.shape, found.dtype) == ((count, 32), np.float32)
    if count:
        np.testing.assert_allclose(found, embed(texts), atol=1e-6)
    if count > 1000:
        assert written[-1] > 32 * 4 * 900  # The file grows before the end.


def test_embed_file_counts_truncated_and_rejects_long_texts(tiny: Path, tmp_path: Path) -> None:
    embed = pipeline("embed", tiny)
    texts = ["a b", "a " * 100, "c"]
    assert embed_file(embed, texts, tmp_path / "v.npy", long="truncate") == (3, 1)
    before = (tmp_path / "v.npy").read_bytes()
    with pytest.raises(DataError, match="102 tokens"):
        embed_file(embed, texts, tmp_path / "w.npy")
    assert [path.name for path in tmp_path.iterdir()] == ["v.npy"]
    with pytest.raises(ConfigError, match="already exists"):
        embed_file(embed, ["c"], tmp_path / "v.npy")
    assert (tmp_path / "v.npy").read_bytes() == before


def test_embed_accepts_all_row_types(tiny: Path, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    texts = ["a b", "c", "d e f"]
    table = pandas.DataFrame({"id": [1, 2, 3], "text": texts})
    path = tmp_path / "rows.jsonl"
    table.to_json(path, orient="records", lines=True)
    opened = pipeline("embed", tiny)
    expected = opened(texts)
    for rows in (texts, table, table["text"], path, [{"text": text} for text in texts]):
        np.testing.assert_array_equal(embed(tiny, rows), expected)
        np.testing.assert_array_equal(opened(rows), expected)
    np.testing.assert_array_equal(embed(str(tiny), "c"), opened("c"))
    np.testing.assert_array_equal(opened(table, text_column="text"), expected)
    with pytest.raises(DataError, match=r"^texts: no column 'txt'; did you mean 'text'"):
        embed(tiny, table, text_column="txt")
    with pytest.raises(DataError, match=r"^texts\.iloc\[1\]: the text is empty; remove the row"):
        embed(tiny, pandas.Series(["a", None]))


def test_embed_uses_an_available_gpu(
    tiny: Path, fake_gpu: str, capsys: pytest.CaptureFixture[str]
) -> None:
    embedded = load_embedder(tiny, LoadSettings())
    assert isinstance(embedded, Embed)
    assert embedded.engine.device.type == fake_gpu
    capsys.readouterr()
    for device, on_gpu in (("auto", True), ("cpu", False)):
        for vectors in (
            list(embed_texts(str(tiny), ["a b", "c"], device=device)),
            embed(tiny, ["a b", "c"], device=device),
        ):
            assert (np.asarray(vectors) == 1).all() == on_gpu
        assert capsys.readouterr().err.count(f"device: {fake_gpu}") == 2 * on_gpu
