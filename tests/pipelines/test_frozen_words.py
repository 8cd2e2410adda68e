"""What frozen models have of words: the same states as everywhere else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.factories import tiny_elmo

from bertkit.checkpoint.formats import LoadSettings, open_format
from bertkit.data.tagged_text import TaggedText, untagged
from bertkit.errors import DataError
from bertkit.extensions.classic.feature_classifier import compute_states
from bertkit.extensions.classic.word_models import FrozenElmo
from bertkit.extensions.classic.words import Words
from bertkit.tasks.tag import Tag, TagOptions


def tagged(text: str, tags: list[str]) -> TaggedText:
    example = untagged(text)
    return TaggedText(example.text, example.word_spans, tags)


@pytest.fixture
def elmo(tmp_path: Path) -> FrozenElmo:
    frozen = open_format(tiny_elmo(tmp_path / "elmo")).load_frozen(LoadSettings())
    assert isinstance(frozen, FrozenElmo)
    return frozen


def test_states_of_an_elmo_are_those_of_its_pipeline(elmo: FrozenElmo) -> None:
    examples = [
        tagged("Ada lives in New York.", ["B-PER", "O", "O", "B-LOC", "I-LOC", "O"]),
        tagged("No", ["O"]),
        tagged("She works", ["O", "O"]),
    ]
    task = Tag.from_examples(examples, TagOptions())
    read = task.features(examples, elmo.tokenizer, elmo.length, long="window", labelled=True)
    states = compute_states(elmo, read, [0, 2])
    wanted = Words(elmo.words.model)([example.words for example in examples])
    expected = torch.cat([torch.from_numpy(one.layers[[0, 2]]) for one in wanted], 1)
    torch.testing.assert_close(states.float(), expected, atol=2e-3, rtol=2e-3)
    assert [task.labels[i] for i in read[0].target] == examples[0].tags
    assert read[0].encoding.words == [None, 0, 1, 2, 3, 4, 5, None]


def test_a_range_of_several_words_is_their_mean(elmo: FrozenElmo) -> None:
    text = "Ada lives in New York."
    (words,) = elmo.words([text])
    found = elmo.states(elmo.read([text, text], [(13, 21), (14, 15)]))
    np.testing.assert_allclose(found[:, 0], words.layers[:, 3:5].mean(1), atol=1e-6)
    np.testing.assert_allclose(found[:, 1], words.layers[:, 3], atol=1e-6)
    with pytest.raises(DataError, match="no word stands at 3:4"):
        elmo.read([text], [(3, 4)])


def test_states_of_a_transformer_are_the_same_both_ways(tiny: Path) -> None:
    frozen = open_format(tiny).load_frozen(LoadSettings())
    texts = ["a b c", "d"]
    found = frozen.states(frozen.read(texts, [(2, 3), (0, 1)]))
    examples = [tagged(text, ["O"] * len(text.split())) for text in texts]
    task = Tag(["O", "B-X"], TagOptions(scheme="iob2"))
    read = task.features(examples, frozen.tokenizer, frozen.length, long="window", labelled=False)
    states = compute_states(frozen, read, range(frozen.layers + 1))
    wanted = torch.from_numpy(found)
    torch.testing.assert_close(states[:, [1, 3]].float(), wanted, atol=2e-3, rtol=2e-3)
