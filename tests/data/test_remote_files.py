"""Remote corpora: caching, retries, and errors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from tests.data.test_corpus import DOCUMENTS, finish, read_back, write

from bertkit.data import corpus as corpora
from bertkit.data import remote_files as store
from bertkit.data.corpus import Corpus
from bertkit.errors import ConfigError, DataError


class Flaky(LocalFileSystem):  # type: ignore[misc]
    """File system that fails in the order given by `faults`."""

    protocol = "flaky"
    faults: ClassVar[list[str]] = []
    asked: ClassVar[list[str]] = []

    def get_file(self, place: str, target: str, **rest: Any) -> None:
        Flaky.asked.append(Path(place).name)
        fault = Flaky.faults.pop(0) if Flaky.faults else None
        if fault == "time out":
            raise TimeoutError("no answer in 10 seconds")
        super().get_file(place, target, **rest)
        content = Path(target).read_bytes()
        if fault == "half":
            Path(target).write_bytes(content[: len(content) // 2])
        elif fault == "other":
            Path(target).write_bytes(bytes(len(content)))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    fsspec.register_implementation("flaky", Flaky, clobber=True)
    monkeypatch.setenv(store.CACHE, str(tmp_path / "cache"))
    monkeypatch.setattr(store, "WAIT", 0.0)
    Flaky.faults, Flaky.asked = [], []
    yield tmp_path / "cache"
    Flaky.faults = []


@pytest.fixture
def local_corpus(tmp_path: Path) -> Corpus:
    return finish(tmp_path / "local_corpus", write(tmp_path / "local_corpus", DOCUMENTS, limit=3))


def test_remote_corpus_equals_local_corpus(local_corpus: Corpus, cache: Path) -> None:
    address = f"flaky://{local_corpus.folder}"
    corpus = Corpus.open(address)
    assert not list(cache.rglob("shard-*"))
    assert corpus.tokens == local_corpus.tokens
    assert corpus.place == address
    assert corpus.tokenizer().fingerprint == local_corpus.tokenizer().fingerprint
    assert read_back(corpus) == read_back(local_corpus)
    corpus.verify()
    num_requests = len(Flaky.asked)
    again = Corpus.open(address)
    assert read_back(again) == read_back(local_corpus)
    assert len(Flaky.asked) == num_requests


def test_part_fetches_only_its_shards(local_corpus: Corpus, cache: Path) -> None:
    part = Corpus.open(f"flaky://{local_corpus.folder}").part([1])
    assert part.starts[-1] == part.tokens
    assert {path.stem for path in cache.rglob("shard-*")} == {"shard-00001"}


@pytest.mark.parametrize("fault", ["time out", "half", "other"])
def test_fetch_retries_failed_downloads(fault: str, local_corpus: Corpus) -> None:
    Flaky.faults = [fault, fault]
    assert read_back(Corpus.open(f"flaky://{local_corpus.folder}")) == read_back(local_corpus)
    assert Flaky.asked[:3] == ["shard-00000.tokens"] * 3


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("time out", "no answer in 10 seconds"),
        ("half", "got .* of .* bytes"),
        ("other", "the hash differs from the manifest"),
    ],
)
def test_fetch_reports_file_after_failed_retries(
    fault: str, reason: str, local_corpus: Corpus, cache: Path
) -> None:
    Flaky.faults = [fault] * store.TRIES
    corpus = Corpus.open(f"flaky://{local_corpus.folder}")
    name = "local_corpus/shard-00000.tokens"
    with pytest.raises(DataError, match=f"{name}: 3 attempts failed .*{reason}.*; try again"):
        read_back(corpus)
    assert not list(cache.rglob("*.tokens*"))


def test_open_rejects_urls_with_passwords() -> None:
    with pytest.raises(ConfigError, match="a URL must not contain a password") as error:
        Corpus.open("ftp://me:hunter2@host/corpus")
    assert "hunter2" not in str(error.value)


def test_fetch_rejects_invalid_cache_limit(
    local_corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(store.LIMIT, "much")
    with pytest.raises(
        ConfigError, match=r"BERTKIT_CACHE_GB must be a number of gigabytes, got 'much'"
    ):
        Corpus.open(f"flaky://{local_corpus.folder}").fetch()


def test_cache_evicts_least_recently_used_files(
    local_corpus: Corpus, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The limit is 100 bytes.
    monkeypatch.setenv(store.LIMIT, "0.0000001")
    monkeypatch.setattr(corpora, "VOLUME_TOKENS", 100)
    corpus = Corpus.open(f"flaky://{local_corpus.folder}")
    for number in (1, 0):
        corpus.part([number]).fetch()
        assert {path.stem for path in cache.rglob("shard-*")} == {f"shard-0000{number}"}


@pytest.mark.parametrize(
    ("address", "kind", "message"),
    [
        ("flaky:///nowhere", DataError, "nowhere/manifest.json not found; check the corpus URL"),
        ("nothing://bucket/corpus", ConfigError, "nothing://bucket/corpus: .*nothing"),
    ],
)
def test_open_reports_invalid_addresses(address: str, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        Corpus.open(address)
