"""Sentence pairs do not reveal their label by lengths or by word boundaries."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from benchmarks import text

from bertkit.data.corpus import Corpus
from bertkit.data.document_readers import documents
from bertkit.data.masking import Masking
from bertkit.data.samples import Samples, Sampling
from bertkit.data.shuffling import Purpose, generator
from bertkit.recipes.prepare import prepare
from bertkit.text.vocabulary_training import train

KINDS = ("filling", "one sentence", "short", "rest")
ENOUGH = 1_200
"""Minimum number of samples of a type.

Half of them are scored, so the standard error of the area is at most 0.02.
"""


def prepare_corpus(folder: Path, texts: list[str], size: int = 4_000) -> Corpus:
    """Return a corpus with a cased vocabulary."""
    lines = (json.dumps({"text": found}) + "\n" for found in texts)
    (folder / "text.jsonl").write_text("".join(lines), encoding="utf-8")
    tokenizer = train(texts[:2_000], kind="wordpiece", size=size, lowercase=False)
    return prepare([folder / "text.jsonl"], tokenizer=tokenizer, out=folder / "out", processes=1)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory, english: list[str]) -> Corpus:
    """Return documents of one to eight paragraphs."""
    parts = [part for page in english for part in page.split("\n\n")]
    texts, sizes = [], np.random.default_rng(0).choice([1, 2, 3, 8], len(parts))
    for begin, size in zip(np.cumsum(sizes) - sizes, sizes, strict=True):
        texts.append("\n\n".join(parts[begin : begin + size]))
    return prepare_corpus(
        tmp_path_factory.mktemp("english"), [found for found in texts if found.strip()]
    )


def kind(samples: Samples, epoch: int, index: int) -> str:
    """Return the type of window that a sample comes from."""
    rng = generator(samples.seed, epoch, index, Purpose.SAMPLE)
    first, last, target_length = samples._window(index, rng)
    if last - first == 1:
        return "one sentence"
    if target_length < samples.capacity:
        return "short"
    tokens = samples.corpus.starts[last] - samples.corpus.starts[first]
    return "filling" if tokens >= samples.capacity else "rest"


def areas(samples: Samples, count: int) -> dict[str, float]:
    """Return the ROC AUC of a classifier without content features, per type of window.

    The classifier separates true from false pairs. It is trained on half of the windows and
    evaluated on the other half; 0.5 is chance.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.metrics import roc_auc_score

    tokens = samples.tokenizer.pieces(np.arange(samples.tokenizer.vocab_size))
    begins = np.array([(p[:1].isupper(), p.startswith("##")) for p in tokens])
    ends = np.array([p.endswith((".", "!", "?")) for p in tokens])
    epochs = -(-count // len(samples))
    order = np.random.default_rng(0).permutation(epochs * len(samples))[:count]
    kinds, rows, pairs = [], [], []
    for epoch, index in zip(*map(np.ndarray.tolist, np.divmod(order, len(samples))), strict=True):
        rng = generator(samples.seed, epoch, index, Purpose.SAMPLE)
        (a, b), pair = samples._parts(index, rng)
        row = [len(a), len(b)]
        for part in (a, b):
            row += [*begins[part[0]], ends[part[-1]]] if len(part) else [2, 2, 2]
        rows.append(row)
        kinds.append(kind(samples, epoch, index))
        pairs.append(pair)
    x, y, types = np.array(rows), np.array(pairs), np.array(kinds)
    learn = np.random.default_rng(1).random(len(samples))[order % len(samples)] < 0.5
    found = {}
    for name in KINDS:
        selected = types == name
        if selected.sum() < ENOUGH:
            continue
        model = HistGradientBoostingClassifier(
            max_iter=40, max_leaf_nodes=15, min_samples_leaf=50, random_state=0
        ).fit(x[selected & learn], y[selected & learn])
        scores = model.predict_proba(x[selected & ~learn])[:, 1]
        found[name] = float(roc_auc_score(y[selected & ~learn], scores))
    return found


def make(corpus: Corpus, *, pairs: str, length: int, short: float = 0.1) -> Samples:
    sampling = Sampling(pairs=pairs, length=length, short_seq_probability=short)  # type: ignore[arg-type]
    return Samples(corpus, corpus.tokenizer(), sampling, Masking())


def sample_like_original(self: Samples, index: int, rng: np.random.Generator):  # type: ignore[no-untyped-def]
    """Sample a false B as in the original code: whole sentences of another document."""
    from bertkit.data.samples import _cut

    first, last, target_length = self._window(index, rng)
    a, b = self._divide(first, last, rng)
    other = int(rng.random() < 0.5)
    starts, limits = self.corpus.starts, self.corpus.document_starts
    current = int(np.searchsorted(limits, first, side="right")) - 1
    document = (current + 1 + int(rng.integers(len(limits) - 2))) % (len(limits) - 1)
    begin = int(rng.integers(limits[document], limits[document + 1]))
    end = int(np.searchsorted(starts, starts[begin] + target_length - len(a)))
    false = self._tokens(begin, min(max(end, begin + 1), int(limits[document + 1])))
    return _cut([a, false if other else b], self.capacity, rng), other


def test_nsp_pairs_are_indistinguishable_without_content(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = make(corpus, pairs="nsp", length=64, short=0.2)
    found = areas(samples, 18_000)
    assert set(found) == set(KINDS)
    assert max(found.values()) < 0.55, found
    monkeypatch.setattr(Samples, "_parts", sample_like_original)
    original_areas = areas(samples, 18_000)
    assert min(original_areas["one sentence"], original_areas["rest"]) > 0.65, original_areas


def test_single_sentences_are_split_between_words(
    tmp_path: Path, english: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If A ended inside a word, only the true B could continue it."""

    def word_start_fractions(samples: Samples) -> tuple[float, float]:
        """Return the fraction of B segments that start with a word, for true and false pairs."""
        marks = samples.tokenizer.starts_word
        true, false = [], []
        for index in range(len(samples)):
            rng = generator(0, 0, index, Purpose.SAMPLE)
            first, last, target_length = samples._window(index, rng)
            _, b = samples._divide(first, last, rng)
            if last - first == 1 and len(b):
                true.append(marks[b[0]])
                false.append(marks[samples._sample_false_b(first, last, target_length, b, rng)[0]])
        assert len(true) > 400
        return float(np.mean(true)), float(np.mean(false))

    # The small vocabulary splits words into many tokens.
    samples = make(prepare_corpus(tmp_path, english, 500), pairs="nsp", length=64)
    assert min(word_start_fractions(samples)) > 0.98
    monkeypatch.setattr(samples, "starts_word", np.ones_like(samples.starts_word))
    assert max(word_start_fractions(samples)) < 0.9


def test_sop_pairs_of_one_sentence_are_indistinguishable(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = make(corpus, pairs="sop", length=64)
    assert areas(samples, 12_000)["one sentence"] < 0.6

    def divide(self: Samples, first: int, last: int, rng: np.random.Generator):  # type: ignore[no-untyped-def]
        tokens = self._tokens(first, last)
        middle = int(rng.integers(1, max(len(tokens), 2)))
        return tokens[:middle], tokens[middle:]

    monkeypatch.setattr(Samples, "_divide", divide)
    assert areas(samples, 8_000)["one sentence"] > 0.8


def reviews(data_folder: Path) -> list[str]:
    sources = sorted((data_folder / "prose_reviews").glob("*.jsonl.gz"))
    return [found.text for found in islice(documents(sources), 6_000)]


def novels(data_folder: Path) -> list[str]:
    sources = sorted((data_folder / "prose_novels").glob("*.txt.gz"))[::4]
    return [found.text[:500_000] for found in documents(sources)]


def docstrings(_: Path) -> list[str]:
    return text.documents(8)


@pytest.fixture(scope="module", params=[reviews, novels, docstrings], ids=lambda f: f.__name__)
def prose(
    request: pytest.FixtureRequest, data_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Corpus:
    read: Callable[[Path], list[str]] = request.param
    return prepare_corpus(tmp_path_factory.mktemp(read.__name__), read(data_folder))


@pytest.mark.slow
@pytest.mark.parametrize("length", [64, 128])
def test_nsp_pairs_of_real_prose_are_indistinguishable(prose: Corpus, length: int) -> None:
    found = areas(make(prose, pairs="nsp", length=length), 100_000)
    assert len(found) >= 2
    assert max(found.values()) < 0.55, found
