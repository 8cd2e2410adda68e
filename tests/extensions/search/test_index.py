"""Indexing: passages that cover their documents, the same again after a stop, refusals before."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.factories import pdf

from bertkit.checkpoint.directory import load, save
from bertkit.errors import ConfigError, DataError, SearchError
from bertkit.extensions.search.documents import DocumentColumns
from bertkit.extensions.search.index import index
from bertkit.extensions.search.searcher import Searcher, model_name
from bertkit.extensions.search.store import Hit
from bertkit.extensions.search.stores import open_store
from bertkit.families import BERT
from bertkit.nn.pooling import Dense, Pooling
from bertkit.pipelines import Embed

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def write(path: Path, texts: Sequence[str], **fields: Any) -> Path:
    rows = [{"id": f"d{i}", "text": text, **fields} for i, text in enumerate(texts)]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def held(place: str, count: int = 1000) -> list[Hit]:
    vector = np.ones(32, np.float32)
    hits = open_store(place).by_vector(vector, count)
    return sorted(hits, key=lambda hit: (hit.id, hit.passage))


def texts(count: int) -> list[str]:
    return [" ".join(LETTERS[(i + j) % 26] for j in range(1 + 7 * i % 90)) for i in range(count)]


def test_passages_cover_their_documents(tiny: Path, tmp_path: Path) -> None:
    documents = texts(12)
    place = str(tmp_path / "store")
    said = index(
        [write(tmp_path / "a.jsonl", documents)], model=tiny, store=place, precision="fp32"
    )
    hits = held(place)
    assert said == {"documents": 12, "unchanged": 0, "passages": len(hits)}
    tokenizer = load(tiny).tokenizer
    for number, text in enumerate(documents):
        parts = [hit for hit in hits if hit.id == f"d{number}"]
        assert [hit.passage for hit in parts] == list(range(len(parts)))
        covered = set()
        for part in parts:
            assert text[part.start : part.end] == part.text
            assert len(tokenizer.encode(part.text)) <= 32
            covered |= set(range(part.start, part.end))
        assert all(place in covered for place, letter in enumerate(text) if letter != " ")
    assert max(hit.passage for hit in hits) >= 3


def test_a_dense_layer_decides_the_dimension(tiny: Path, tmp_path: Path) -> None:
    loaded = load(tiny)
    save(tmp_path / "m", loaded.model, loaded.tokenizer, BERT, pooling=Pooling(dense=Dense(32, 6)))
    place = str(tmp_path / "store")
    index([write(tmp_path / "a.jsonl", texts(3))], model=tmp_path / "m", store=place)
    assert open_store(place).spec.dimension == 6
    assert Searcher(place)("a")[0].id == "d0"


def test_a_passage_has_the_vector_of_its_text(tiny: Path, tmp_path: Path) -> None:
    place = str(tmp_path / "store")
    index([write(tmp_path / "a.jsonl", texts(9))], model=tiny, store=place, precision="fp32")
    searcher = Searcher(place)
    for hit in held(place):
        best = searcher.store.by_vector(searcher.embed([hit.text])[0], 1)[0]
        assert best.score == pytest.approx(1.0, abs=1e-5)


def test_long_documents_as_asked(tiny: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", texts(9))
    cut = index([file], model=tiny, store=str(tmp_path / "cut"), long="truncate")
    assert cut["passages"] == 9
    short = index([file], model=tiny, store=str(tmp_path / "short"), length=12)
    assert short["passages"] > 9
    assert all(len(hit.text) <= 19 for hit in held(str(tmp_path / "short")))
    with pytest.raises(DataError, match=r"a.jsonl:\d+: .* tokens, but the limit is 32"):
        index([file], model=tiny, store=str(tmp_path / "none"), long="error")
    for length in (7, 33):
        with pytest.raises(ConfigError, match=f"length must be 8 to 32 .*, got {length}"):
            index([file], model=tiny, store=str(tmp_path / "none"), length=length)


def test_what_is_the_same_is_left_and_what_changed_replaced(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, file = str(tmp_path / "store"), tmp_path / "a.jsonl"
    documents = texts(9)
    index([write(file, documents)], model=tiny, store=place)
    before = held(place)
    assert index([file], model=tiny, store=place)["unchanged"] == 9
    assert held(place) == before
    documents[8] = "a b"
    said = index([write(file, documents)], model=tiny, store=place)
    assert said["unchanged"] == 8
    now = held(place)
    assert [hit.text for hit in now if hit.id == "d8"] == ["a b"]
    assert [hit for hit in now if hit.id != "d8"] == [hit for hit in before if hit.id != "d8"]


def test_a_store_knows_its_model(tiny: Path, tmp_path: Path) -> None:
    place, file = str(tmp_path / "store"), tmp_path / "a.jsonl"
    write(file, texts(3))
    with pytest.raises(SearchError, match=r"^model= is required, because the store"):
        index([file], store=place)
    assert not (tmp_path / "store").exists()
    shutil.copytree(tiny, tmp_path / "model")
    index([file], model=tmp_path / "model", store=place)
    write(file, texts(5))
    assert index([file], store=place) == {"documents": 5, "unchanged": 3, "passages": 5}
    (tmp_path / "model").rename(tmp_path / "moved")
    with pytest.raises(SearchError, match=r"cannot load its model .* set its path with model="):
        index([file], store=place)
    assert index([file], model=tmp_path / "moved", store=place)["unchanged"] == 5


def test_what_is_gone_is_taken_out_when_asked(tiny: Path, tmp_path: Path) -> None:
    place, file = str(tmp_path / "store"), tmp_path / "a.jsonl"
    index([write(file, texts(9))], model=tiny, store=place)
    write(file, texts(4))
    assert len({hit.id for hit in held(place)}) == 9
    index([file], model=tiny, store=place)
    assert len({hit.id for hit in held(place)}) == 9
    said = index([file], model=tiny, store=place, sync=True)
    assert (said["unchanged"], said["removed"]) == (4, 5)
    assert {hit.id for hit in held(place)} == {f"d{i}" for i in range(4)}


def test_hits_name_where_documents_stand_now(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place, file = str(tmp_path / "store"), tmp_path / "a.jsonl"
    rows = [{"id": id, "text": f"{id} c"} for id in "abn"]

    def written(rows: list[dict[str, str]]) -> dict[str, int]:
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return index([file], model=tiny, store=place, sync=True)

    written(rows[:2])
    assert written([rows[2], *rows[:2]])["unchanged"] == 2
    assert {hit.id: hit.source for hit in held(place)} == {
        id: f"{file}:{line}" for line, id in enumerate("nab", 1)
    }
    file = file.rename(tmp_path / "b.jsonl")
    assert index([file], model=tiny, store=place, sync=True)["unchanged"] == 3
    assert {hit.source for hit in held(place)} == {f"{file}:{line}" for line in (1, 2, 3)}
    assert "unchanged content: 3 (n, a, b)" in capsys.readouterr().err
    index([file], model=tiny, store=place, sync=True)
    assert "unchanged content" not in capsys.readouterr().err


def test_all_is_checked_before_anything_is_written(tiny: Path, tmp_path: Path) -> None:
    place = tmp_path / "store"
    twice = tmp_path / "a.jsonl"
    twice.write_text('{"id": 1, "text": "a"}\n{"id": 1, "text": "b"}\n', encoding="utf-8")
    with pytest.raises(DataError, match=r"a.jsonl:2: the id '1' already exists"):
        index([twice], model=tiny, store=str(place))
    empty = tmp_path / "b.jsonl"
    empty.write_text('{"id": 1, "text": "a"}\n{"id": 2, "text": ""}\n', encoding="utf-8")
    with pytest.raises(DataError, match=r"b.jsonl:2: the document contains no text"):
        index([empty], model=tiny, store=str(place))
    assert not place.exists()


def test_what_cannot_be_used_is_named_at_once_or_left_out(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    docs, place = tmp_path / "docs", tmp_path / "store"
    docs.mkdir()
    (docs / "a.txt").write_text("a b", encoding="utf-8")
    (docs / "b.txt").touch()
    (docs / "c.md").write_bytes(b"\xff")
    (docs / "d.png").touch()
    with pytest.raises(DataError, match=r"2 files or rows are invalid.*: .*b.txt, .*c.md:1$"):
        index([docs], model=tiny, store=str(place))
    assert not place.exists()
    said = capsys.readouterr().err
    assert "files: 3 (2 .txt, 1 .md); skipped: 1 (1 .png)" in said
    assert "b.txt: the file is empty" in said
    assert "c.md:1: not UTF-8" in said
    result = index([docs], model=tiny, store=str(place), skip_bad=True)
    assert result == {"documents": 1, "unchanged": 0, "left_out": 2, "passages": 1}
    assert "skipped: " in capsys.readouterr().err
    (docs / "b.txt").unlink()
    with pytest.raises(DataError, match=r"c.md:1: not UTF-8.* \(skip_bad= skips it\)$"):
        index([docs], model=tiny, store=str(place))


def test_of_many_that_cannot_be_used_some_are_named(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text("\n".join(["{}"] * 300), encoding="utf-8")
    with pytest.raises(DataError, match=r"300 files or rows .*a.jsonl:5 and 295 more"):
        index([file], model=tiny, store=str(tmp_path / "store"))
    assert "… and 200 more" in capsys.readouterr().err


def test_files_that_are_gone_are_told(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    docs, place = tmp_path / "docs", str(tmp_path / "store")
    docs.mkdir()
    for name in "ab":
        (docs / f"{name}.txt").write_text(f"{name} c", encoding="utf-8")
    index([write(tmp_path / "rows.jsonl", ["x", "y"])], model=tiny, store=place)
    index([docs], model=tiny, store=place)
    (docs / "b.txt").unlink()
    write(tmp_path / "rows.jsonl", ["x"])
    capsys.readouterr()
    assert index(str(docs), model=tiny, store=place)["gone"] == 1  # of it, not of all
    assert "missing from these files: 1 (b.txt)" in capsys.readouterr().err
    assert index([tmp_path / "rows.jsonl"], model=tiny, store=place)["gone"] == 1
    assert "missing from these files: 1 (d1)" in capsys.readouterr().err
    said = index([docs, tmp_path / "rows.jsonl"], model=tiny, store=place, sync=True)
    assert said == {"documents": 2, "unchanged": 2, "removed": 2, "passages": 2}


def test_passages_keep_their_heading(tiny: Path, tmp_path: Path) -> None:
    text = "# a\n\n## b\n\n" + "c d e f g h. " * 8 + "\n\n## i\nj"
    (tmp_path / "a.md").write_text(text, encoding="utf-8")
    place = str(tmp_path / "store")
    index([tmp_path / "a.md"], model=tiny, store=place, precision="fp32")
    hits = held(place)
    assert [hit.heading for hit in hits][:1] == ["a > b"]
    assert (hits[-1].heading, hits[-1].text) == ("a > i", "## i\nj")
    assert all(text[hit.start : hit.end] == hit.text for hit in hits)
    # the model reads the headings that a passage does not begin with, as many as there is room for
    searcher = Searcher(place)
    later = hits[1]
    for asked, alike in ((f"b\n{later.text}", True), (later.text, False)):
        best = searcher.store.by_vector(searcher.embed([asked])[0], len(hits))
        (score,) = [hit.score for hit in best if hit.passage == later.passage]
        assert (score > 1.0 - 1e-5) == alike


def test_a_pdf_of_500_pages(tiny: Path, tmp_path: Path) -> None:
    pytest.importorskip("pypdf", reason="pip install 'bertkit[search]'")
    pages = [f"{LETTERS[i % 26]} {LETTERS[i // 26]}" for i in range(500)]
    (tmp_path / "a.pdf").write_bytes(pdf(pages))
    place = str(tmp_path / "store")
    index([tmp_path / "a.pdf"], model=tiny, store=place)
    hits = held(place)
    assert "\n\n".join(hit.text for hit in hits) == "\n\n".join(pages)
    for hit in hits:
        assert hit.text.startswith(pages[int(hit.heading.removeprefix("page ")) - 1])


def test_another_model_is_refused(tiny: Path, tmp_path: Path) -> None:
    place, file = str(tmp_path / "store"), write(tmp_path / "a.jsonl", texts(2))
    index([file], model=tiny, store=place)
    loaded = load(tiny)
    loaded.model.encoder.embedding.tokens.weight.data[7] += 1.0
    save(tmp_path / "other", loaded.model, loaded.tokenizer, loaded.family)
    with pytest.raises(SearchError, match=r"the store uses the model .*tiny.*, not .*other"):
        index([file], model=tmp_path / "other", store=place)
    with pytest.raises(SearchError, match="keep= nothing, not x:text"):
        index(
            [write(file, ["a"], x=1)], model=tiny, store=place, columns=DocumentColumns(keep=("x",))
        )


@pytest.mark.parametrize("value", [float("nan"), 0.0])
def test_vectors_without_a_direction_are_refused(
    value: float, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Embed.vectors

    def broken(self: Any, encodings: Any) -> Any:
        vectors = original(self, encodings)
        vectors[1] = value
        return vectors

    monkeypatch.setattr(Embed, "vectors", broken)
    file = write(tmp_path / "a.jsonl", ["a", "b c", "d"])
    with pytest.raises(DataError, match=r"a.jsonl:2: the embedding of 'b c"):
        index([file], model=tiny, store=str(tmp_path / "store"))


def test_names_by_which_models_open_again(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tiny.parent)
    assert model_name(Path("model")) == model_name(load(tiny)) == str(tiny.resolve())
    assert model_name("someone/else") == "someone/else"


KILLED = """
import os, signal, sys
from pathlib import Path
from bertkit.extensions.search import index as indexing
from bertkit.extensions.search import lance
indexing.PART_DOCUMENTS = 4
left = int(sys.argv[4])
def fatal(name):
    original = getattr(lance.LanceStore, name)
    def call(*arguments):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments)
    setattr(lance.LanceStore, name, call)
for name in ("replace", "finish", "_tag"):
    fatal(name)
indexing.index([Path(sys.argv[1])], model=sys.argv[2], store=sys.argv[3], precision="fp32")
"""


CHANGED = [text[::-1] for text in texts(12)]


@pytest.fixture(scope="module")
def stores(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A store of nine texts, and one of the same, changed, and three more."""
    folder = tmp_path_factory.mktemp("stores")
    for name, rows in (("before", texts(9)), ("after", CHANGED)):
        file = write(folder / f"{name}.jsonl", rows)
        index([file], model=tiny, store=str(folder / name), precision="fp32")
    return folder / "before", folder / "after"


@pytest.mark.parametrize("call", [1, 2, 3, 4, 5, 6])
def test_a_killed_run_changes_nothing_and_the_next_goes_on(
    call: int, stores: tuple[Path, Path], tiny: Path, tmp_path: Path
) -> None:
    place, file = tmp_path / "store", write(tmp_path / "a.jsonl", CHANGED)
    before, after = stores
    shutil.copytree(before, place)
    words = [str(file), str(tiny), str(place), str(call)]
    done = subprocess.run([sys.executable, "-c", KILLED, *words], capture_output=True, check=False)
    assert done.returncode == -9, done.stderr.decode()
    # the sixth is the second tag, after all is written
    assert held(str(place)) == held(str(before)) or call == 6
    index([file], model=tiny, store=str(place), precision="fp32")
    for one, other in zip(held(str(place)), held(str(after)), strict=True):
        assert (one.id, one.passage, one.text) == (other.id, other.passage, other.text)
        assert one.score == pytest.approx(other.score, abs=1e-5)
