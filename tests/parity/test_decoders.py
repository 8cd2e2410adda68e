"""Decoder-only models match transformers on tiny random models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import structs
from safetensors.torch import load_file
from tests.parity.test_tokenizer import gpt2_folder, gpt_folder

import bertkit
from bertkit.batch import Batch, Packed
from bertkit.checkpoint.directory import Loaded, save
from bertkit.extensions.generation.decoding import Decoding, Rules
from bertkit.extensions.generation.generate import generate
from bertkit.extensions.generation.stepper import Request, Stepper
from bertkit.families import FAMILIES
from bertkit.models.model import Model, build
from bertkit.nn.precision import has_bf16
from bertkit.objectives.loss import totals
from bertkit.objectives.pretrain import pretrain
from bertkit.pipelines.base import open_engine
from bertkit.text.causal_format import EXTRACT, add_causal_tokens

transformers = pytest.importorskip("transformers", reason="pip install 'bertkit[dev]'")

SIZES = [1, 3, 9, 9, 20]


@pytest.fixture(scope="module", params=["gpt2", "openai-gpt", "llama", "llama, tied"])
def writer(
    request: pytest.FixtureRequest, english: list[str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, Loaded]:
    folder = tmp_path_factory.mktemp("writer")
    first = request.param == "openai-gpt"
    (gpt_folder if first else gpt2_folder)(folder, english)
    vocab = bertkit.Tokenizer.load(folder).vocab_size
    ids = {"vocab_size": vocab}
    if not first:
        ids |= {"bos_token_id": vocab - 1, "eos_token_id": vocab - 1}
    torch.manual_seed(0)
    hf_model: Any
    if request.param == "gpt2":
        config = transformers.GPT2Config(**ids, n_embd=32, n_layer=3, n_head=4, n_positions=64)
        hf_model = transformers.GPT2LMHeadModel(config).eval()
    elif first:
        config = transformers.OpenAIGPTConfig(**ids, n_embd=32, n_layer=3, n_head=4, n_positions=64)
        hf_model = transformers.OpenAIGPTLMHeadModel(config).eval()
    else:
        config = transformers.LlamaConfig(
            **ids, hidden_size=32, intermediate_size=48, num_hidden_layers=3,
            num_attention_heads=4, num_key_value_heads=2, head_dim=12, max_position_embeddings=64,
            rope_parameters={"rope_type": "default", "rope_theta": 500.0},
            tie_word_embeddings="tied" in request.param,
        )  # fmt: skip
        hf_model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():  # larger than at initialization, so that mistakes show
        for parameter in hf_model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    hf_model.save_pretrained(folder)
    return hf_model, bertkit.load(folder)


def logits(model: Model, ids: list[torch.Tensor]) -> list[torch.Tensor]:
    layout = Packed.of([len(row) for row in ids])
    batch = Batch(torch.cat(ids), torch.zeros(layout.total, dtype=torch.long), layout)
    with torch.no_grad():
        return list(model(batch)["lm"].split(list(layout.lengths)))


def max_difference(bertkit_model: Model, hf_model: Any) -> float:
    torch.manual_seed(1)
    ids = [torch.randint(0, hf_model.config.vocab_size, (size,)) for size in SIZES]
    with torch.no_grad():
        expected = [hf_model(row[None]).logits[0] for row in ids]
    pairs = zip(logits(bertkit_model, ids), expected, strict=True)
    return max(float((a - b).abs().max()) for a, b in pairs)


def test_logits_match_transformers(writer: tuple[Any, Loaded]) -> None:
    hf_model, loaded = writer
    assert loaded.family is FAMILIES[hf_model.config.model_type]
    assert max_difference(loaded.model, hf_model) <= 1e-5


def test_control_bidirectional_attention_differs(writer: tuple[Any, Loaded]) -> None:
    hf_model, loaded = writer
    config = loaded.model.config
    bidirectional = structs.replace(
        config, attention=structs.replace(config.attention, causal=False)
    )
    model = build(bidirectional, ("lm",)).eval()
    model.load_state_dict(loaded.model.state_dict())
    assert max_difference(model, hf_model) > 0.1


def test_saved_model_loads_in_transformers(writer: tuple[Any, Loaded], tmp_path: Path) -> None:
    hf_model, loaded = writer
    save(tmp_path, loaded.model, loaded.tokenizer, loaded.family)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert isinstance(again, type(hf_model))
    assert max_difference(loaded.model, again) <= 1e-5
    saved, original = load_file(tmp_path / "model.safetensors"), hf_model.state_dict()
    assert all(torch.equal(tensor, original[name]) for name, tensor in saved.items())
    assert again.config.eos_token_id == next(iter(loaded.tokenizer.ends), None)
    text = "They walked along the river."
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer(text)["input_ids"] == loaded.tokenizer.encode(text).ids.tolist()


def test_causal_lm_loss_and_gradients_match(writer: tuple[Any, Loaded]) -> None:
    hf_model, loaded = writer
    model = loaded.model
    ids = torch.randint(0, loaded.tokenizer.vocab_size, (13,))
    inputs = ids[:-1]
    batch = Batch(inputs, torch.zeros_like(inputs), Packed.of([12]), targets={"lm": ids[1:]})
    loss = pretrain(model, batch, totals([batch])).total
    expected = hf_model(ids[None], labels=ids[None]).loss
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-5)
    name = "encoder.blocks.1.feedforward.down.weight"
    gradient = torch.autograd.grad(loss, dict(model.named_parameters())[name])[0]
    (hf_name,) = loaded.family.names([name], model.config)[name]
    weight = dict(hf_model.named_parameters())[hf_name]
    hf_gradient = torch.autograd.grad(expected, weight)[0]
    if loaded.family.transposed:
        hf_gradient = hf_gradient.T
    torch.testing.assert_close(gradient, hf_gradient, atol=1e-5, rtol=1e-4)


def requests(loaded: Loaded, sizes: list[int] = SIZES) -> list[Request]:
    rng = np.random.default_rng(3)
    return [Request(rng.integers(0, loaded.tokenizer.vocab_size - 1, size)) for size in sizes]


def step_logprobs(
    stepper: Stepper, batch_requests: list[Request], ids: torch.Tensor
) -> torch.Tensor:
    """Return the log-probabilities of each step. Shapes: ids (R, T) -> (R, T, V)."""
    state, logits = stepper.start(batch_requests)
    steps = [logits]
    for column in ids[:, :-1].T:
        steps.append(stepper.step(state, column[:, None])[:, 0])
        state.advance(torch.ones(len(batch_requests), dtype=torch.long))
    return torch.log_softmax(torch.stack(steps, 1), -1)


def check_precision(
    stepper: type[Stepper], loaded: Loaded, batch_requests: list[Request], name: str
) -> None:
    """Check stepwise log-probabilities in another precision, and in batches of any size."""
    if name == "bf16" and not has_bf16("cpu"):
        pytest.skip("this processor has no bf16")
    exact = stepper(open_engine(loaded, "fp32").model)
    other = stepper(open_engine(loaded, name).model)  # type: ignore[arg-type]
    ids = torch.randint(0, loaded.tokenizer.vocab_size, (len(batch_requests), 20))
    expected, found = (
        step_logprobs(exact, batch_requests, ids),
        step_logprobs(other, batch_requests, ids),
    )
    likely = expected > expected.amax(-1, keepdim=True) - 4
    off = (found - expected)[likely].abs()
    assert float(off.mean()) < (0.03 if name == "bf16" else 0.1)
    assert float(off.max()) > 1e-3  # the precision differs
    if name == "int8":
        for row, request in enumerate(batch_requests):
            alone = step_logprobs(other, [request], ids[row : row + 1])[0]
            assert float((alone - found[row]).abs().mean()) < 0.01


@pytest.mark.parametrize("name", ["bf16", "int8"])
def test_other_precisions_match_approximately(writer: tuple[Any, Loaded], name: str) -> None:
    _, loaded = writer
    check_precision(Stepper, loaded, requests(loaded), name)


CHOICES: dict[str, tuple[Decoding, dict[str, Any]]] = {
    "greedy": (Decoding(), {}),
    "no repeat": (Decoding(no_repeat_ngram_size=2), {"no_repeat_ngram_size": 2}),
    "at least": (Decoding(min_tokens=9), {"min_new_tokens": 9}),
    "beams": (
        Decoding(num_beams=4, num_return_sequences=3),
        {"num_beams": 4, "num_return_sequences": 3},
    ),
    "early": (Decoding(num_beams=3, early_stopping=True), {"num_beams": 3, "early_stopping": True}),
    "long": (Decoding(num_beams=5, length_penalty=2.0), {"num_beams": 5, "length_penalty": 2.0}),
    "short": (Decoding(num_beams=2, length_penalty=-1.0), {"num_beams": 2, "length_penalty": -1.0}),
    "beams, no repeat": (
        Decoding(num_beams=3, no_repeat_ngram_size=1, min_tokens=5),
        {"num_beams": 3, "no_repeat_ngram_size": 1, "min_new_tokens": 5},
    ),
}


@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize("max_tokens", [9, 30])
def test_generated_tokens_match_transformers(
    writer: tuple[Any, Loaded], name: str, max_tokens: int
) -> None:
    hf_model, loaded = writer
    check_generated_tokens(hf_model, Stepper(loaded.model), requests(loaded), name, max_tokens)


@pytest.mark.parametrize("name", ["greedy", "beams"])
def test_generation_without_eos_reaches_max_tokens(writer: tuple[Any, Loaded], name: str) -> None:
    hf_model, loaded = writer
    stepper = Stepper(loaded.model)
    check_generated_tokens(hf_model, stepper, requests(loaded), name, 9, ends=[])


def test_states_of_headless_model_match(writer: tuple[Any, Loaded], tmp_path: Path) -> None:
    _, loaded = writer
    save(tmp_path, Model(loaded.model.encoder, {}), loaded.tokenizer, loaded.family)
    hf_model = transformers.AutoModel.from_pretrained(tmp_path)
    assert type(hf_model).__name__ == loaded.family.architectures[frozenset()]
    ids = torch.randint(0, hf_model.config.vocab_size, (11,))
    batch = Batch(ids, torch.zeros_like(ids), Packed.of([11]))
    again = bertkit.load(tmp_path).model
    with torch.no_grad():
        expected = hf_model(ids[None]).last_hidden_state[0]
        torch.testing.assert_close(again.encoder(batch), expected, atol=1e-5, rtol=1e-5)


HEADS = [("classify", ("a", "b", "c")), ("choose", ())]


@pytest.mark.parametrize(("head", "labels"), HEADS, ids=["classify", "choose"])
def test_finetuned_directory_logits_match(
    writer: tuple[Any, Loaded], head: str, labels: tuple[str, ...], tmp_path: Path
) -> None:
    """Compare texts with special tokens with a padded batch of transformers."""
    _, loaded = writer
    tokenizer = add_causal_tokens(loaded.tokenizer)
    torch.manual_seed(3)
    model = build(
        structs.replace(loaded.model.config, vocab=tokenizer.vocab_size), (head,), labels=labels
    )
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    save(tmp_path, model, tokenizer, loaded.family, labels=labels)
    hf_model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    encode = transformers.AutoTokenizer.from_pretrained(tmp_path)
    first, second = ["A class", "Names refer to objects."], ["An object", "They are bound."]
    read = encode(first, second, padding=True, return_tensors="pt")
    encodings = [tokenizer.encode(*pair) for pair in zip(first, second, strict=True)]
    batch = Batch.of(encodings)
    again = bertkit.load(tmp_path).model
    assert [*again.heads] == [head]
    with torch.no_grad():
        padded = {name: read[name] for name in ("input_ids", "attention_mask")}
        expected = hf_model(**padded).logits
        found = again.eval()(batch)[head]
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
        if head == "classify":  # bertkit also loads the directory of transformers
            hf_model.save_pretrained(tmp_path / "theirs")
            tokenizer.save(tmp_path / "theirs", segments=False)
            opened = bertkit.load(tmp_path / "theirs")
            assert (opened.labels, [*opened.model.heads]) == (labels, [head])
            torch.testing.assert_close(opened.model(batch)[head], expected, atol=1e-5, rtol=1e-5)
        hf_model.config.pad_token_id = tokenizer.token(EXTRACT)  # the control: another last token
        assert (hf_model(**padded).logits - found).abs().max() > 1e-3
    written, state = load_file(tmp_path / "model.safetensors"), hf_model.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in written.items())


def check_generated_tokens(
    hf_model: Any,
    stepper: Stepper,
    batch_requests: list[Request],
    name: str,
    max_tokens: int,
    *,
    ends: list[int] | None = None,
    **more: Any,
) -> None:
    """Compare a batch with single prompts of transformers, whose results depend on padding."""
    decoding, settings = CHOICES[name]
    end = ENDS[name] if ends is None else ends
    decoding = structs.replace(decoding, max_tokens=max_tokens)
    found = generate(stepper, batch_requests, decoding, Rules(end))
    for request, texts in zip(batch_requests, found, strict=True):
        read = torch.from_numpy(request.prompt if request.source is None else request.source)[None]
        expected = hf_model.generate(
            read, attention_mask=torch.ones_like(read),
            max_new_tokens=max_tokens, do_sample=False, eos_token_id=end or None, pad_token_id=0,
            return_dict_in_generate=True, output_scores=True, **{**settings, **more},
        )  # fmt: skip
        rows = expected.sequences[:, len(request.prompt) :].tolist()
        assert len(texts) <= len(rows)
        for text, row in zip(texts, rows, strict=False):
            whole = [*text.ids, *row[len(text.ids) : len(text.ids) + (text.ended == "end")]]
            assert row[: len(whole)] == whole
            assert set(row[len(whole) :]) <= {0}
            assert (text.ended == "end") == (whole[-1] in end)
        if decoding.num_beams > 1:
            scores = [text.score for text in texts]
            hf_scores = expected.sequences_scores[: len(texts)].tolist()
            assert scores == pytest.approx(hf_scores, rel=1e-5)


ENDS = {name: [*range(40)] if name in ("greedy", "early") else [7] for name in CHOICES}
"""EOS token ids by test. Some tests need many, so that texts end early."""
