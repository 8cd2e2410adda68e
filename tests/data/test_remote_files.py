"""A corpus elsewhere: copied here as it is read, asked again where it fails, and named then."""

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
    """Files of this machine, which do not come at first: as `faults` says, in turn."""

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
def there(tmp_path: Path) -> Corpus:
    return finish(tmp_path / "there", write(tmp_path / "there", DOCUMENTS, limit=3))


def test_a_corpus_elsewhere_is_as_one_here(there: Corpus, cache: Path) -> None:
    address = f"flaky://{there.folder}"
    corpus = Corpus.open(address)
    assert not list(cache.rglob("shard-*"))
    assert corpus.tokens == there.tokens
    assert corpus.place == address
    assert corpus.tokenizer().fingerprint == there.tokenizer().fingerprint
    assert read_back(corpus) == read_back(there)
    corpus.verify()
    came = len(Flaky.asked)
    again = Corpus.open(address)
    assert read_back(again) == read_back(there)
    assert len(Flaky.asked) == came


def test_a_part_brings_its_shards_alone(there: Corpus, cache: Path) -> None:
    part = Corpus.open(f"flaky://{there.folder}").part([1])
    assert part.starts[-1] == part.tokens
    assert {path.stem for path in cache.rglob("shard-*")} == {"shard-00001"}


@pytest.mark.parametrize("fault", ["time out", "half", "other"])
def test_a_file_that_does_not_come_is_asked_for_again(fault: str, there: Corpus) -> None:
    Flaky.faults = [fault, fault]
    assert read_back(Corpus.open(f"flaky://{there.folder}")) == read_back(there)
    assert Flaky.asked[:3] == ["shard-00000.tokens"] * 3


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("time out", "no answer in 10 seconds"),
        ("half", "got .* of .* bytes"),
        ("other", "the hash differs from the manifest"),
    ],
)
def test_a_file_that_never_comes_is_named(
    fault: str, reason: str, there: Corpus, cache: Path
) -> None:
    Flaky.faults = [fault] * store.TRIES
    corpus = Corpus.open(f"flaky://{there.folder}")
    name = "there/shard-00000.tokens"
    with pytest.raises(DataError, match=f"{name}: 3 attempts failed .*{reason}.*; run it again"):
        read_back(corpus)
    assert not list(cache.rglob("*.tokens*"))


def test_a_password_is_refused_and_not_shown() -> None:
    with pytest.raises(ConfigError, match="URLs with a password") as told:
        Corpus.open("ftp://me:hunter2@host/corpus")
    assert "hunter2" not in str(told.value)


def test_a_limit_that_is_no_number_is_named(there: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(store.LIMIT, "much")
    with pytest.raises(
        ConfigError, match=r"BERTKIT_CACHE_GB must be a number of gigabytes, got 'much'"
    ):
        Corpus.open(f"flaky://{there.folder}").fetch()


def test_what_was_longest_unused_makes_room(
    there: Corpus, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(store.LIMIT, "0.0000001")  # a hundred bytes
    monkeypatch.setattr(corpora, "VOLUME_TOKENS", 100)
    corpus = Corpus.open(f"flaky://{there.folder}")
    for number in (1, 0):
        corpus.part([number]).fetch()
        assert {path.stem for path in cache.rglob("shard-*")} == {f"shard-0000{number}"}


@pytest.mark.parametrize(
    ("address", "kind", "message"),
    [
        (
            "flaky:///nowhere",
            DataError,
            "nowhere/manifest.json not found; check that it is a corpus",
        ),
        ("nothing://bucket/corpus", ConfigError, "nothing://bucket/corpus: .*nothing"),
    ],
)
def test_an_address_of_nothing_is_named(address: str, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        Corpus.open(address)
