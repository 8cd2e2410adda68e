"""The numbers of the page are the model's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.factories import tiny_folder
from tests.parity.test_decoders import writer as writer  # the fixture

from bertkit.batch import Batch
from bertkit.checkpoint.directory import Loaded, load
from bertkit.errors import CheckpointError, ConfigError, DataError
from bertkit.families import MODERNBERT, ROBERTA
from bertkit.nn.attention import Trace
from bertkit.view import explain as explaining
from bertkit.view import masked_predictions as masking
from bertkit.view.arrays import Array, decoded
from bertkit.view.explain import WALK_STEPS, explain
from bertkit.view.page_data import Explanation
from bertkit.view.token_text import spelled

TEXT = "We sat on the bank, crossing the river."
PAIR = "The bank lent us money."

HALF = 1e-3
"""What 16 bits may be off: 2⁻¹¹ of one, twice over."""


@pytest.fixture(scope="module")
def loaded(bert: Path) -> Loaded:
    return load(bert)


@pytest.fixture(scope="module")
def found(loaded: Loaded) -> Explanation:
    return explain(loaded, TEXT, PAIR)


def stacked(layers: list[Array]) -> NDArray[np.float32]:
    return np.stack([decoded(layer) for layer in layers])


def traced(loaded: Loaded, text: str, pair: str | None = None) -> Trace:
    trace = Trace()
    with torch.inference_mode():
        loaded.model.encoder(Batch.of([loaded.tokenizer.encode(text, pair)]), trace)
    return trace


def softmax(x: NDArray[np.float32]) -> NDArray[np.float32]:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def test_tokens_and_words_are_those_of_the_text(found: Explanation) -> None:
    pieces = [token.piece for token in found.tokens]
    assert pieces[:8] == ["[CLS]", "we", "sat", "on", "the", "bank", ",", "cross"]
    assert [token.segment for token in found.tokens] == [0] * 13 + [1] * 7
    texts = [TEXT, PAIR]
    for place, word in enumerate(found.words):
        own = found.tokens[word.first : word.end]
        assert texts[word.sequence][own[0].start : own[-1].end] == word.text
        assert all(token.word == place for token in own)
    crossing = found.words[6]
    assert (crossing.text, crossing.end - crossing.first) == ("crossing", 2)
    assert [t.piece for t in found.tokens if t.word is None] == ["[CLS]", "[SEP]", "[SEP]"]


def test_attention_is_that_of_transformers(bert: Path, found: Explanation) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.BertModel.from_pretrained(bert, attn_implementation="eager").eval()
    ids = torch.tensor([[token.id for token in found.tokens]])
    types = torch.tensor([[token.segment for token in found.tokens]])
    with torch.inference_mode():
        out = theirs(ids, token_type_ids=types, output_attentions=True)
    expected = torch.cat(out.attentions)
    ours = stacked(found.attention)
    np.testing.assert_allclose(ours, expected, atol=HALF)
    assert abs(ours[:, 1] - expected[:, 0].numpy()).max() > 0.1  # the control: another head
    np.testing.assert_allclose(ours.sum(-1), 1, atol=10 * HALF)
    np.testing.assert_allclose(stacked(found.mean), expected.mean(1), atol=HALF)


def test_rollout_is_the_papers(found: Explanation) -> None:
    below = np.eye(len(found.tokens))
    for layer, ours in zip(stacked(found.attention), stacked(found.rollout), strict=True):
        mixed = layer.mean(0) + np.eye(len(below))
        mixed /= mixed.sum(-1, keepdims=True)
        below = mixed @ below
        np.testing.assert_allclose(ours, below, atol=10 * HALF)
    last = stacked(found.mean)[-1]
    assert abs(ours - last).max() > 0.1  # the control: the last layer alone


def test_steps_lead_to_the_weights_and_to_what_a_head_gives(
    loaded: Loaded, found: Explanation
) -> None:
    assert found.steps is not None
    trace = traced(loaded, TEXT, PAIR)
    for layer, array in enumerate(found.steps):
        q, k, v = decoded(array)
        weights = softmax(q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1]))
        np.testing.assert_allclose(weights, trace.attention[layer][0], atol=1e-5)
        given = trace.heads[layer].transpose(0, 1)
        np.testing.assert_allclose(weights @ v, given, atol=1e-5)
        assert abs(softmax(q @ k.transpose(0, 2, 1)) - weights).max() > 0.01  # without √K


def test_embeddings_add_up_to_what_the_first_layer_reads(
    loaded: Loaded, found: Explanation
) -> None:
    parts = {part.name: decoded(part.values) for part in found.embeddings.parts}
    assert list(parts) == ["token", "position", "segment", "sum", "norm"]
    assert found.embeddings.width == 32
    added = parts["token"] + parts["position"] + parts["segment"]
    np.testing.assert_allclose(parts["sum"], added, atol=1e-6)
    first = traced(loaded, TEXT, PAIR).states[0]
    np.testing.assert_allclose(parts["norm"], first, atol=1e-6)
    for part in found.embeddings.parts:  # 32 numbers, fewer than are shown of wider vectors
        np.testing.assert_allclose(part.norms, np.linalg.norm(parts[part.name], axis=1), atol=1e-5)


def test_the_steps_of_a_layer_lead_from_state_to_state(loaded: Loaded, found: Explanation) -> None:
    assert found.walk is not None
    trace = traced(loaded, TEXT, PAIR)
    for layer, walk in enumerate(found.walk):
        steps = {part.name: decoded(part.values) for part in walk.steps}
        np.testing.assert_allclose(steps["state"], trace.states[layer], atol=1e-5)
        np.testing.assert_allclose(steps["second norm"], trace.states[layer + 1], atol=1e-5)
        added = steps["state"] + steps["attention"]
        np.testing.assert_allclose(steps["sum"], added, atol=1e-5)
        added = steps["norm"] + steps["feed-forward"]
        np.testing.assert_allclose(steps["second sum"], added, atol=1e-5)
        heads = trace.heads[layer].transpose(0, 1)
        np.testing.assert_allclose(decoded(walk.heads), heads, atol=1e-5)
        assert abs(steps["state"] - trace.states[layer + 1].numpy()).max() > 0.1  # the control


def test_cosines_are_those_of_the_states(loaded: Loaded, found: Explanation) -> None:
    states = torch.stack(traced(loaded, TEXT, PAIR).states)
    expected = torch.cosine_similarity(states[:, :, None], states[:, None], dim=-1)
    np.testing.assert_allclose(stacked(found.similarity), expected, atol=HALF)
    repeats = {repeat.text: repeat for repeat in found.repeats}
    assert list(repeats) == ["bank", "the"]
    assert [found.words[place].sequence for place in repeats["bank"].words] == [0, 1]
    a, b = (found.words[place].first for place in repeats["bank"].words)
    np.testing.assert_allclose(
        [layer[0][1] for layer in repeats["bank"].cosines], expected[:, a, b], atol=1e-5
    )
    assert repeats["the"].more == 0


def test_words_in_several_pieces_are_compared_by_their_mean(loaded: Loaded) -> None:
    text = "crossing it, crossing us"
    states = torch.stack(traced(loaded, text).states)
    means = torch.stack([states[:, 1:3].mean(1), states[:, 5:7].mean(1)])
    (repeat,) = explain(loaded, text).repeats
    expected = torch.cosine_similarity(*means, dim=-1)
    np.testing.assert_allclose([c[0][1] for c in repeat.cosines], expected, atol=1e-5)


def test_only_the_first_places_of_a_word_are_compared(loaded: Loaded) -> None:
    (repeat,) = explain(loaded, "bank " * 9).repeats
    assert repeat.words == list(range(6))
    assert repeat.more == 3


def test_a_local_layer_sees_its_window(tmp_path: Path, loaded: Loaded) -> None:
    tiny_folder(
        tmp_path / "local",
        loaded.tokenizer,
        "mlm",
        family=MODERNBERT,
        layers=3,
        heads=4,
        **{"attention.window": {"tokens": 2, "global_every": 2}},
    )
    found = explain(tmp_path / "local", TEXT)
    assert found.windows == [None, 2, None]
    assert found.steps is not None
    assert [part.name for part in found.embeddings.parts] == ["token", "sum", "norm"]
    q, k, _ = decoded(found.steps[1])
    apart = np.arange(q.shape[1])
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
    scores[:, abs(apart[:, None] - apart) > 2] = -np.inf
    np.testing.assert_allclose(softmax(scores), decoded(found.attention[1]), atol=HALF)


def test_a_pre_norm_model_ends_with_a_norm(tmp_path: Path, loaded: Loaded) -> None:
    tiny_folder(tmp_path / "pre", loaded.tokenizer, "mlm", family=MODERNBERT, layers=2, heads=4)
    found = explain(tmp_path / "pre", TEXT)
    assert found.rotary
    assert not explain(loaded, TEXT).rotary
    assert found.walk is not None
    first, last = ({part.name: decoded(part.values) for part in one.steps} for one in found.walk)
    states = traced(load(tmp_path / "pre"), TEXT).states
    np.testing.assert_allclose(first["second sum"], states[1], atol=1e-5)
    np.testing.assert_allclose(last["final norm"], states[2], atol=1e-5)
    assert abs(last["second sum"] - states[2].numpy()).max() > 1e-3  # the control
    assert len(last) == WALK_STEPS
    assert len(first) == WALK_STEPS - 1


def test_a_pair_needs_no_segments(tmp_path: Path, loaded: Loaded) -> None:
    tiny_folder(tmp_path / "one", loaded.tokenizer, family=ROBERTA, token_types=1)
    found = explain(tmp_path / "one", TEXT, PAIR)
    segment = next(part for part in found.embeddings.parts if part.name == "segment")
    assert len(set(segment.norms)) == 1
    assert {word.sequence for word in found.words} == {0, 1}


def test_a_long_text_is_refused_or_cut(loaded: Loaded) -> None:
    with pytest.raises(DataError, match=r"102 tokens, but the maximum of the model is 40; shorten"):
        explain(loaded, "bank " * 100)
    found = explain(loaded, "bank " * 100, long="truncate")
    assert (len(found.tokens), found.truncated) == (40, True)
    assert not explain(loaded, "bank").truncated
    with pytest.raises(ConfigError, match="long: no such value 'window'; known: 'error', 'trunc"):
        explain(loaded, "bank", long="window")  # type: ignore[arg-type]


def test_large_parts_are_left_out_or_rounded(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explaining, "MAX_FINE_TOKENS", 8)
    monkeypatch.setattr(explaining, "STEPS_BYTES", 1000)
    monkeypatch.setattr(masking, "MASKED_TOKENS", 30)
    found = explain(loaded, TEXT)
    exact = torch.stack([layer[0] for layer in traced(loaded, TEXT).attention])
    assert found.attention[0].type == "uint8"
    np.testing.assert_allclose(np.sqrt(stacked(found.attention)), exact.sqrt(), atol=0.501 / 255)
    assert found.steps is None
    assert found.masked is not None
    assert len(found.masked) == 2
    monkeypatch.setattr(explaining, "MAX_TOKENS", 10)
    with pytest.raises(DataError, match="maximum of a page is 10"):
        explain(loaded, TEXT)


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        ((" \n",), "text: the text is empty"),
        (("bank", ""), "pair: the text is empty"),
        (("\u200b",), "the text has no tokens"),
        (("bank \ud800",), "lone surrogate"),
    ],
)
def test_what_is_no_text_is_refused(loaded: Loaded, texts: Any, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        explain(loaded, *texts)


def test_damaged_weights_are_refused(bert: Path) -> None:
    broken = load(bert)
    with torch.no_grad():
        broken.model.encoder.blocks[0].attention.out.bias[0] = torch.nan  # type: ignore[union-attr, index]
    with pytest.raises(CheckpointError, match="are nan or inf"):
        explain(broken, TEXT)


def test_sources_are_where_they_say(found: Explanation) -> None:
    root = Path(__file__).parents[2]
    for source in found.sources.values():
        lines = (root / source.path).read_text(encoding="utf-8").splitlines()
        assert f"def {source.name.rpartition('.')[2]}(" in lines[source.line - 1]
        code = source.code.splitlines()
        assert [line.strip() for line in code] == [
            line.strip() for line in lines[source.line - 1 :][: len(code)]
        ]


@pytest.fixture
def causal(writer: tuple[Any, Loaded]) -> tuple[Any, Loaded, Explanation]:
    theirs, loaded = writer
    theirs.set_attn_implementation("eager")
    return theirs, loaded, explain(loaded, "The class statement, and the class.")


def test_a_causal_models_attention_is_that_of_transformers(
    causal: tuple[Any, Loaded, Explanation],
) -> None:
    """A triangle: what stands behind a token has no weight."""
    theirs, loaded, shown = causal
    assert shown.causal
    ids = torch.tensor([[token.id for token in shown.tokens]])
    with torch.inference_mode():
        out = theirs(ids, output_attentions=True)
    expected = torch.cat(out.attentions).numpy()
    ours = stacked(shown.attention)
    np.testing.assert_allclose(ours, expected, atol=HALF)
    assert abs(ours[:, 1] - expected[:, 0]).max() > 0.01  # the control: another head
    assert not np.triu(ours, 1).any()
    assert not np.triu(stacked(shown.rollout), 1).any()
    trace = Trace()
    with torch.inference_mode():
        loaded.model.encoder(Batch.of([loaded.tokenizer.encode(shown.text)]), trace)
    exact = torch.stack([layer[0] for layer in trace.attention])
    np.testing.assert_allclose(exact, expected, atol=1e-5)


def test_a_causal_models_steps_lead_to_its_weights(
    causal: tuple[Any, Loaded, Explanation],
) -> None:
    """Where several heads share keys, each has its own copy."""
    _, loaded, shown = causal
    assert shown.steps is not None
    heads = loaded.model.config.heads
    for array, weights in zip(shown.steps, shown.attention, strict=True):
        q, k, _ = decoded(array)
        assert len(q) == len(k) == heads
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
        hidden = np.triu(np.full(scores.shape, -np.inf, np.float32), 1)
        np.testing.assert_allclose(softmax(scores + hidden), decoded(weights), atol=HALF)


def test_next_words_are_what_the_model_expects_from_the_left(
    causal: tuple[Any, Loaded, Explanation],
) -> None:
    theirs, loaded, shown = causal
    ids = torch.tensor([[token.id for token in shown.tokens]])
    with torch.inference_mode():
        chances = torch.softmax(theirs(ids).logits[0], -1)
    assert shown.masked is not None
    assert len(shown.masked) == len(shown.words)
    seen = 0
    for word, pieces in zip(shown.words, shown.masked, strict=True):
        for place, candidates in zip(range(word.first, word.end), pieces, strict=True):
            if place == 0:
                assert candidates == []
                continue
            best = chances[place - 1].topk(10)
            names = spelled(loaded.tokenizer, best.indices.tolist())
            assert [one.token for one in candidates] == names
            scores = [one.score for one in candidates]
            np.testing.assert_allclose(scores, best.values, atol=1e-5)
            seen += 1
    assert seen > 5
    assert "CausalLM" in shown.sources["masked"].name
