"""Corruption of texts: source and target keep all tokens, at the requested rate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.factories import tiny_corpus

import bertkit
from bertkit.data.corpus import Corpus
from bertkit.errors import ConfigError, TokenizerError
from bertkit.extensions.generation.corruption import (
    Corrupted,
    Corruption,
    CorruptionType,
    infill,
    mass,
    permute_sentences,
    prefix,
    sentinel_ids,
    spans,
)
from bertkit.recipes.pretrain import pretrain
from bertkit.recipes.pretrain_config import read_config
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.vocabulary_training import train

SENTINELS = np.arange(1000, 1100)
MASK = 999
LENGTHS = st.integers(2, 300)
SEEDS = st.integers(0, 1000)
RATES = st.sampled_from([0.05, 0.15, 0.3, 0.5, 0.9])


def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


@given(count=LENGTHS, seed=SEEDS, rate=RATES, mean=st.sampled_from([1.0, 3.0, 10.0]))
def test_spans_and_sentinels_restore_the_text(
    count: int, seed: int, rate: float, mean: float
) -> None:
    ids = np.arange(count)
    source, target = spans(ids, SENTINELS, rng(seed), Corruption(rate=rate, mean=mean))
    filled: dict[int, list[int]] = {}
    for token in target.tolist():
        if token >= 1000:
            filled[token] = []
        else:
            filled[max(filled)].append(token)
    restored = [t for token in source.tolist() for t in filled.get(token, [token])]
    assert restored == ids.tolist()
    num_selected = min(max(round(count * rate), 1), count - 1)
    assert sum(map(len, filled.values())) == num_selected
    assert sorted(filled) == list(range(1000, 1000 + len(filled)))
    assert all(filled.values())
    assert max(len(source), len(target)) <= count


def test_number_of_spans_matches_t5() -> None:
    """Seqio selects 77 of 512 tokens, in 26 spans."""
    source, target = spans(np.arange(512), SENTINELS, rng(0), Corruption())
    assert (source >= 1000).sum() == 26
    assert (target < 1000).sum() == 77


@given(count=LENGTHS, seed=SEEDS, rate=RATES)
def test_infill_keeps_unmasked_tokens_in_order(count: int, seed: int, rate: float) -> None:
    ids = np.arange(count)
    source = infill(ids, MASK, rng(seed), Corruption(rate=rate))
    unmasked = source[source != MASK]
    assert (np.diff(unmasked) > 0).all()
    assert count - len(unmasked) == int(np.ceil(count * rate))
    assert (source == MASK).any()


def test_infill_span_lengths_follow_poisson_distribution() -> None:
    ids, settings, empty, masks, num_selected = np.arange(400), Corruption(rate=0.3), 0, 0, 0
    for seed in range(50):
        source = infill(ids, MASK, rng(seed), settings).tolist()
        masks += source.count(MASK)
        num_selected += len(ids) - len(source) + source.count(MASK)
        around = [-1, *source, len(ids)]
        empty += sum(
            around[i] == MASK and around[i + 1] - around[i - 1] == 1 and around[i + 1] != MASK
            for i in range(1, len(around) - 1)
        )
    assert num_selected / masks == pytest.approx(3.0, rel=0.08)
    assert 0.01 < empty / masks < 0.1  # e^-3 is 0.05; adjacent spans hide some


@given(count=LENGTHS, seed=SEEDS, cuts=st.sets(st.integers(1, 299)))
def test_permute_sentences_keeps_sentences_intact(count: int, seed: int, cuts: set[int]) -> None:
    ids, starts = np.arange(count), sorted(cut for cut in cuts if cut < count)
    moved = permute_sentences(ids, starts, rng(seed))
    assert sorted(moved.tolist()) == ids.tolist()
    breaks = {int(moved[i]) for i in range(1, count) if moved[i] != moved[i - 1] + 1}
    assert breaks <= {0, *starts}


@given(count=LENGTHS, seed=SEEDS, rate=RATES)
def test_mass_target_is_the_masked_span(count: int, seed: int, rate: float) -> None:
    ids = np.arange(count)
    source, target = mass(ids, MASK, rng(seed), Corruption(rate=rate))
    assert len(source) == count
    assert np.array_equal(ids[source == MASK], target)
    assert (np.diff(target) == 1).all()
    assert np.array_equal(ids, np.arange(count))  # the input is not modified


@given(count=LENGTHS, seed=SEEDS)
def test_prefix_source_and_target_restore_the_text(count: int, seed: int) -> None:
    source, target = prefix(np.arange(count), rng(seed))
    assert np.array_equal(np.concatenate([source, target]), np.arange(count))
    assert len(source)
    assert len(target)


@pytest.fixture(scope="module")
def corpora(
    tmp_path_factory: pytest.TempPathFactory, english: list[str]
) -> dict[str, tuple[Corpus, Tokenizer]]:
    result: dict[str, tuple[Corpus, Tokenizer]] = {}
    for name, use in (("t5", "spans"), ("bart", "encode")):
        folder, texts = tmp_path_factory.mktemp(name), ["x", *english[:9]]
        corpus = Corpus.open(tiny_corpus(folder, texts, kind="bpe", size=500, use=use))
        result[name] = corpus, corpus.tokenizer()
    return result


MODEL = {"layers": 1, "hidden": 32, "heads": 2, "intermediate": 64, "max_positions": 64}
CORRUPTIONS: list[tuple[str, CorruptionType]] = [
    ("t5", "spans"), ("t5", "prefix"), ("bart", "infill"), ("bart", "mass"), ("bart", "prefix")
]  # fmt: skip


@pytest.mark.parametrize(("name", "corruption"), CORRUPTIONS)
def test_samples_depend_only_on_seed_epoch_and_index(
    corpora: dict[str, tuple[Corpus, Tokenizer]], name: str, corruption: CorruptionType
) -> None:
    corpus, tokenizer = corpora[name]
    settings = Corruption(permute=corruption == "infill")

    def samples(seed: int) -> Corrupted:
        return Corrupted(corpus, tokenizer, corruption, settings, start=7, length=64, seed=seed)

    first, second = samples(3), samples(3)
    indices = range(0, len(first), 7)
    before = [second.sample(1, i) for i in reversed(indices)][::-1]
    differ = 0
    for index, expected in zip(indices, before, strict=True):
        pair = first.sample(1, index)
        for part in ("source", "ids", "labels"):
            assert np.array_equal(getattr(pair, part), getattr(expected, part))
        assert pair.ids[0] == 7
        assert np.array_equal(pair.ids[1:], pair.labels[:-1])
        assert pair.labels[-1] == pair.source[-1] == tokenizer.eos
        assert max(len(pair.source), len(pair.ids)) <= 64
        differ += not np.array_equal(pair.source, first.sample(2, index).source)
        differ += not np.array_equal(pair.source, samples(4).sample(1, index).source)
    assert differ > len(indices)  # control: other epochs and seeds give other samples


def test_epoch_covers_the_corpus_once(corpora: dict[str, tuple[Corpus, Tokenizer]]) -> None:
    corpus, tokenizer = corpora["t5"]
    samples = Corrupted(corpus, tokenizer, "prefix", Corruption(), start=0, length=50)
    tokens = 0
    for index in range(len(samples)):
        pair = samples.sample(0, index)
        tokens += len(pair.source) + len(pair.labels) - 2
    assert corpus.tokens - corpus.documents <= tokens <= corpus.tokens


def test_vocabulary_for_spans_matches_t5(corpora: dict[str, tuple[Corpus, Tokenizer]]) -> None:
    _, tokenizer = corpora["t5"]
    sentinels = sentinel_ids(tokenizer)
    assert len(sentinels) == 100
    assert sentinels[0] == tokenizer.vocab_size - 1 <= 499
    assert (np.diff(sentinels) == -1).all()
    assert tokenizer.encode("").ids.tolist() == [tokenizer.eos]
    with pytest.raises(TokenizerError, match='use="spans"'):
        sentinel_ids(corpora["bart"][1])
    with pytest.raises(ConfigError, match="size must be at least 259"):
        train(["a b"], kind="bpe", size=300, use="spans")


@pytest.mark.parametrize(("name", "corruption"), CORRUPTIONS)
def test_pretraining_reduces_the_loss(
    corpora: dict[str, tuple[Corpus, Tokenizer]],
    name: str,
    corruption: CorruptionType,
    tmp_path: Path,
) -> None:
    corpus, _ = corpora[name]
    settings: dict[str, Any] = {
        "family": name,
        "objective": corruption,
        "model": MODEL,
        "sampling": {"pairs": "none", "length": 48, "held_out": 0.2},
        "train": {
            "steps": 30, "batch_size": 16, "learning_rate": 5e-3, "warmup_steps": 3,
            "evaluate_every": 30, "save_every": 30, "precision": "fp32",
        },
    }  # fmt: skip
    if corruption in ("spans", "infill", "mass"):
        settings["corruption"] = {"rate": 0.3}
    scores = pretrain(settings, corpus=corpus.folder, out=tmp_path / "run")
    assert scores["lm_loss"] < np.log(500) - 0.3
    loaded = bertkit.load(tmp_path / "run")
    ((text,),) = bertkit.pipeline("generate", loaded)(["The class"])
    assert text.tokens
    transformers = pytest.importorskip("transformers", reason="pip install 'bertkit[dev]'")
    hf_model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "run")
    assert type(hf_model).__name__.lower().startswith(name)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"family": "gpt2"}, "objective"),
        ({"objective": "translate", "corruption": {"rate": 0.3}}, "corruption"),
        ({"corruption": {"rate": 1.0}}, "rate"),
        ({"corruption": {"mean": 0.0}}, "mean"),
    ],
)
def test_read_config_rejects_invalid_settings(
    corpora: dict[str, tuple[Corpus, Tokenizer]], changed: dict[str, Any], message: str
) -> None:
    _, tokenizer = corpora["t5"]
    train = {"steps": 1, "batch_size": 1, "learning_rate": 1e-3, "warmup_steps": 1}
    settings: dict[str, Any] = {"family": "t5", "objective": "spans", "model": MODEL}
    settings |= {"sampling": {"pairs": "none", "length": 48}, "train": train}
    read_config(settings, tokenizer)
    with pytest.raises(ConfigError, match=message):
        read_config({**settings, **changed}, tokenizer)
