"""`bertkit info CORPUS` prints samples with their masks, and statistics."""

import json

import pytest

from bertkit.data.masking import Masking
from bertkit.data.samples import Samples, Sampling
from bertkit.recipes.inspect_corpus import rates, readable, statistics
from bertkit.recipes.prepare import prepare
from bertkit.text.vocabulary_training import train


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory, english: list[str]):  # type: ignore[no-untyped-def]
    folder = tmp_path_factory.mktemp("inspect")
    rows = [json.dumps({"text": text}) + "\n" for text in english[:30]]
    (folder / "text.jsonl").write_text("".join(rows), encoding="utf-8")
    tokenizer = train(english[:30], kind="wordpiece", size=600)
    return prepare([folder / "text.jsonl"], tokenizer=tokenizer, out=folder / "out", processes=1)


def test_statistics_match_the_corpus(corpus) -> None:  # type: ignore[no-untyped-def]
    found = statistics(corpus)
    assert found["tokens"] == corpus.tokens
    assert found["documents"] == corpus.documents == 30


@pytest.mark.parametrize("pairs", ["nsp", "sop", "none"])
def test_printed_samples_match_their_masks_and_pairs(corpus, pairs: str) -> None:  # type: ignore[no-untyped-def]
    sampling = Sampling(pairs=pairs, length=64)  # type: ignore[arg-type]
    samples = Samples(corpus, corpus.tokenizer(), sampling, Masking(), seed=1)
    sampled = samples.batch(0, 200)
    labels = {"nsp": ("IsNext", "NotNext"), "sop": ("InOrder", "Swapped")}
    for sample in sampled[:20]:
        lines = list(readable(samples, sample))
        assert f"{len(sample)} tokens" in lines[0]
        if sample.pair is not None:
            assert lines[0].startswith(labels[pairs][sample.pair])
        assert sum(line.count("←") for line in lines) == len(sample.masked_positions)
        kept = int((sample.ids[sample.masked_positions] == sample.labels).sum())
        assert sum(line.count("←=") for line in lines) >= kept
        assert len(lines) == 1 + (1 if pairs == "none" else 2)
    found = rates(samples, sampled)
    assert found["[MASK], of selected"] == pytest.approx(0.8, abs=0.05)
    assert sum(v for k, v in found.items() if k.endswith("of selected")) == pytest.approx(1.0)
    assert ("true pairs" in found) == (pairs != "none")
