"""Explanations contain the values that the model computes."""

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
"""Error of 16-bit values: twice 2⁻¹¹ of one."""


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


def test_tokens_and_words_match_text(found: Explanation) -> None:
    tokens = [token.piece for token in found.tokens]
    assert tokens[:8] == ["[CLS]", "we", "sat", "on", "the", "bank", ",", "cross"]
    assert [token.segment for token in found.tokens] == [0] * 13 + [1] * 7
    texts = [TEXT, PAIR]
    for index, word in enumerate(found.words):
        own = found.tokens[word.first : word.end]
        assert texts[word.sequence][own[0].start : own[-1].end] == word.text
        assert all(token.word == index for token in own)
    crossing = found.words[6]
    assert (crossing.text, crossing.end - crossing.first) == ("crossing", 2)
    assert [t.piece for t in found.tokens if t.word is None] == ["[CLS]", "[SEP]", "[SEP]"]


def test_attention_matches_transformers(bert: Path, found: Explanation) -> None:
    transformers = pytest.importorskip("transformers")
    hf_model = transformers.BertModel.from_pretrained(bert, attn_implementation="eager").eval()
    ids = torch.tensor([[token.id for token in found.tokens]])
    types = torch.tensor([[token.segment for token in found.tokens]])
    with torch.inference_mode():
        out = hf_model(ids, token_type_ids=types, output_attentions=True)
    expected = torch.cat(out.attentions)
    bertkit_values = stacked(found.attention)
    np.testing.assert_allclose(bertkit_values, expected, atol=HALF)
    # The control: another head differs.
    assert abs(bertkit_values[:, 1] - expected[:, 0].numpy()).max() > 0.1
    np.testing.assert_allclose(bertkit_values.sum(-1), 1, atol=10 * HALF)
    np.testing.assert_allclose(stacked(found.mean), expected.mean(1), atol=HALF)


def test_rollout_matches_the_paper(found: Explanation) -> None:
    below = np.eye(len(found.tokens))
    for layer, bertkit_values in zip(stacked(found.attention), stacked(found.rollout), strict=True):
        mixed = layer.mean(0) + np.eye(len(below))
        mixed /= mixed.sum(-1, keepdims=True)
        below = mixed @ below
        np.testing.assert_allclose(bertkit_values, below, atol=10 * HALF)
    last = stacked(found.mean)[-1]
    # The control: the attention of the last layer differs.
    assert abs(bertkit_values - last).max() > 0.1


def test_steps_reproduce_attention_and_head_output(loaded: Loaded, found: Explanation) -> None:
    assert found.steps is not None
    trace = traced(loaded, TEXT, PAIR)
    for layer, array in enumerate(found.steps):
        q, k, v = decoded(array)
        weights = softmax(q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1]))
        np.testing.assert_allclose(weights, trace.attention[layer][0], atol=1e-5)
        given = trace.heads[layer].transpose(0, 1)
        np.testing.assert_allclose(weights @ v, given, atol=1e-5)
        # The control: the scale 1/√K is required.
        assert abs(softmax(q @ k.transpose(0, 2, 1)) - weights).max() > 0.01


def test_embeddings_add_up_to_first_state(loaded: Loaded, found: Explanation) -> None:
    parts = {part.name: decoded(part.values) for part in found.embeddings.parts}
    assert list(parts) == ["token", "position", "segment", "sum", "norm"]
    assert found.embeddings.width == 32
    added = parts["token"] + parts["position"] + parts["segment"]
    np.testing.assert_allclose(parts["sum"], added, atol=1e-6)
    first = traced(loaded, TEXT, PAIR).states[0]
    np.testing.assert_allclose(parts["norm"], first, atol=1e-6)
    # All 32 values are shown; wider vectors are abbreviated.
    for part in found.embeddings.parts:
        np.testing.assert_allclose(part.norms, np.linalg.norm(parts[part.name], axis=1), atol=1e-5)


def test_layer_steps_reproduce_next_state(loaded: Loaded, found: Explanation) -> None:
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
        # The control: the states differ.
        assert abs(steps["state"] - trace.states[layer + 1].numpy()).max() > 0.1


def test_cosines_match_states(loaded: Loaded, found: Explanation) -> None:
    states = torch.stack(traced(loaded, TEXT, PAIR).states)
    expected = torch.cosine_similarity(states[:, :, None], states[:, None], dim=-1)
    np.testing.assert_allclose(stacked(found.similarity), expected, atol=HALF)
    repeats = {repeat.text: repeat for repeat in found.repeats}
    assert list(repeats) == ["bank", "the"]
    assert [found.words[index].sequence for index in repeats["bank"].words] == [0, 1]
    a, b = (found.words[index].first for index in repeats["bank"].words)
    np.testing.assert_allclose(
        [layer[0][1] for layer in repeats["bank"].cosines], expected[:, a, b], atol=1e-5
    )
    assert repeats["the"].more == 0


def test_words_of_several_tokens_use_mean_state(loaded: Loaded) -> None:
    text = "crossing it, crossing us"
    states = torch.stack(traced(loaded, text).states)
    means = torch.stack([states[:, 1:3].mean(1), states[:, 5:7].mean(1)])
    (repeat,) = explain(loaded, text).repeats
    expected = torch.cosine_similarity(*means, dim=-1)
    np.testing.assert_allclose([c[0][1] for c in repeat.cosines], expected, atol=1e-5)


def test_only_first_occurrences_are_compared(loaded: Loaded) -> None:
    (repeat,) = explain(loaded, "bank " * 9).repeats
    assert repeat.words == list(range(6))
    assert repeat.more == 3


def test_local_layer_attends_within_window(tmp_path: Path, loaded: Loaded) -> None:
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


def test_pre_norm_model_has_a_final_norm(tmp_path: Path, loaded: Loaded) -> None:
    tiny_folder(tmp_path / "pre", loaded.tokenizer, "mlm", family=MODERNBERT, layers=2, heads=4)
    found = explain(tmp_path / "pre", TEXT)
    assert found.rotary
    assert not explain(loaded, TEXT).rotary
    assert found.walk is not None
    first, last = ({part.name: decoded(part.values) for part in walk.steps} for walk in found.walk)
    states = traced(load(tmp_path / "pre"), TEXT).states
    np.testing.assert_allclose(first["second sum"], states[1], atol=1e-5)
    np.testing.assert_allclose(last["final norm"], states[2], atol=1e-5)
    # The control: the final norm changes the states.
    assert abs(last["second sum"] - states[2].numpy()).max() > 1e-3
    assert len(last) == WALK_STEPS
    assert len(first) == WALK_STEPS - 1


def test_pairs_do_not_require_segments(tmp_path: Path, loaded: Loaded) -> None:
    tiny_folder(tmp_path / "one", loaded.tokenizer, family=ROBERTA, token_types=1)
    found = explain(tmp_path / "one", TEXT, PAIR)
    segment = next(part for part in found.embeddings.parts if part.name == "segment")
    assert len(set(segment.norms)) == 1
    assert {word.sequence for word in found.words} == {0, 1}


def test_long_text_is_rejected_or_truncated(loaded: Loaded) -> None:
    with pytest.raises(DataError, match=r"102 tokens, but the maximum of the model is 40; shorten"):
        explain(loaded, "bank " * 100)
    found = explain(loaded, "bank " * 100, long="truncate")
    assert (len(found.tokens), found.truncated) == (40, True)
    assert not explain(loaded, "bank").truncated
    with pytest.raises(ConfigError, match="long: no such value 'window'; known: 'error', 'trunc"):
        explain(loaded, "bank", long="window")  # type: ignore[arg-type]


def test_large_parts_are_omitted_or_quantized(
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
def test_explain_rejects_texts_without_tokens(loaded: Loaded, texts: Any, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        explain(loaded, *texts)


def test_explain_rejects_nan_weights(bert: Path) -> None:
    broken = load(bert)
    with torch.no_grad():
        broken.model.encoder.blocks[0].attention.out.bias[0] = torch.nan  # type: ignore[union-attr, index]
    with pytest.raises(CheckpointError, match="are nan or inf"):
        explain(broken, TEXT)


def test_sources_match_their_lines(found: Explanation) -> None:
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
    hf_model, loaded = writer
    hf_model.set_attn_implementation("eager")
    return hf_model, loaded, explain(loaded, "The class statement, and the class.")


def test_causal_attention_matches_transformers(causal: tuple[Any, Loaded, Explanation]) -> None:
    """Causal attention has no weight on later tokens."""
    hf_model, loaded, shown = causal
    assert shown.causal
    ids = torch.tensor([[token.id for token in shown.tokens]])
    with torch.inference_mode():
        out = hf_model(ids, output_attentions=True)
    expected = torch.cat(out.attentions).numpy()
    bertkit_values = stacked(shown.attention)
    np.testing.assert_allclose(bertkit_values, expected, atol=HALF)
    # The control: another head differs.
    assert abs(bertkit_values[:, 1] - expected[:, 0]).max() > 0.01
    assert not np.triu(bertkit_values, 1).any()
    assert not np.triu(stacked(shown.rollout), 1).any()
    trace = Trace()
    with torch.inference_mode():
        loaded.model.encoder(Batch.of([loaded.tokenizer.encode(shown.text)]), trace)
    exact = torch.stack([layer[0] for layer in trace.attention])
    np.testing.assert_allclose(exact, expected, atol=1e-5)


def test_causal_steps_reproduce_attention(causal: tuple[Any, Loaded, Explanation]) -> None:
    """Heads with common keys have separate copies of them."""
    _, loaded, shown = causal
    assert shown.steps is not None
    heads = loaded.model.config.heads
    for array, weights in zip(shown.steps, shown.attention, strict=True):
        q, k, _ = decoded(array)
        assert len(q) == len(k) == heads
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
        hidden = np.triu(np.full(scores.shape, -np.inf, np.float32), 1)
        np.testing.assert_allclose(softmax(scores + hidden), decoded(weights), atol=HALF)


def test_next_word_candidates_match_transformers(causal: tuple[Any, Loaded, Explanation]) -> None:
    hf_model, loaded, shown = causal
    ids = torch.tensor([[token.id for token in shown.tokens]])
    with torch.inference_mode():
        probabilities = torch.softmax(hf_model(ids).logits[0], -1)
    assert shown.masked is not None
    assert len(shown.masked) == len(shown.words)
    seen = 0
    for word, tokens in zip(shown.words, shown.masked, strict=True):
        for index, candidates in zip(range(word.first, word.end), tokens, strict=True):
            if index == 0:
                assert candidates == []
                continue
            best = probabilities[index - 1].topk(10)
            names = spelled(loaded.tokenizer, best.indices.tolist())
            assert [candidate.token for candidate in candidates] == names
            scores = [candidate.score for candidate in candidates]
            np.testing.assert_allclose(scores, best.values, atol=1e-5)
            seen += 1
    assert seen > 5
    assert "CausalLM" in shown.sources["masked"].name
