"""Models that write equal transformers' on tiny random models: logits, folders, tokens."""

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
    theirs: Any
    if request.param == "gpt2":
        config = transformers.GPT2Config(**ids, n_embd=32, n_layer=3, n_head=4, n_positions=64)
        theirs = transformers.GPT2LMHeadModel(config).eval()
    elif first:
        config = transformers.OpenAIGPTConfig(**ids, n_embd=32, n_layer=3, n_head=4, n_positions=64)
        theirs = transformers.OpenAIGPTLMHeadModel(config).eval()
    else:
        config = transformers.LlamaConfig(
            **ids, hidden_size=32, intermediate_size=48, num_hidden_layers=3,
            num_attention_heads=4, num_key_value_heads=2, head_dim=12, max_position_embeddings=64,
            rope_parameters={"rope_type": "default", "rope_theta": 500.0},
            tie_word_embeddings="tied" in request.param,
        )  # fmt: skip
        theirs = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():  # larger than at birth, so that mistakes show
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    theirs.save_pretrained(folder)
    return theirs, bertkit.load(folder)


def logits(model: Model, ids: list[torch.Tensor]) -> list[torch.Tensor]:
    layout = Packed.of([len(row) for row in ids])
    batch = Batch(torch.cat(ids), torch.zeros(layout.total, dtype=torch.long), layout)
    with torch.no_grad():
        return list(model(batch)["lm"].split(list(layout.lengths)))


def apart(ours: Model, theirs: Any) -> float:
    torch.manual_seed(1)
    ids = [torch.randint(0, theirs.config.vocab_size, (size,)) for size in SIZES]
    with torch.no_grad():
        expected = [theirs(row[None]).logits[0] for row in ids]
    pairs = zip(logits(ours, ids), expected, strict=True)
    return max(float((one - other).abs().max()) for one, other in pairs)


def test_it_has_their_logits(writer: tuple[Any, Loaded]) -> None:
    theirs, loaded = writer
    assert loaded.family is FAMILIES[theirs.config.model_type]
    assert apart(loaded.model, theirs) <= 1e-5


def test_control_a_model_that_sees_what_follows_differs(writer: tuple[Any, Loaded]) -> None:
    theirs, loaded = writer
    config = loaded.model.config
    both_ways = structs.replace(config, attention=structs.replace(config.attention, causal=False))
    model = build(both_ways, ("lm",)).eval()
    model.load_state_dict(loaded.model.state_dict())
    assert apart(model, theirs) > 0.1


def test_transformers_opens_what_we_save(writer: tuple[Any, Loaded], tmp_path: Path) -> None:
    theirs, loaded = writer
    save(tmp_path, loaded.model, loaded.tokenizer, loaded.family)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert isinstance(again, type(theirs))
    assert apart(loaded.model, again) <= 1e-5
    ours, first = load_file(tmp_path / "model.safetensors"), theirs.state_dict()
    assert all(torch.equal(tensor, first[name]) for name, tensor in ours.items())
    assert again.config.eos_token_id == next(iter(loaded.tokenizer.ends), None)
    text = "They walked along the river."
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer(text)["input_ids"] == loaded.tokenizer.encode(text).ids.tolist()


def test_next_words_have_their_loss_and_gradients(writer: tuple[Any, Loaded]) -> None:
    theirs, loaded = writer
    model = loaded.model
    ids = torch.randint(0, loaded.tokenizer.vocab_size, (13,))
    inputs = ids[:-1]
    batch = Batch(inputs, torch.zeros_like(inputs), Packed.of([12]), targets={"lm": ids[1:]})
    ours = pretrain(model, batch, totals([batch])).total
    expected = theirs(ids[None], labels=ids[None]).loss
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)
    name = "encoder.blocks.1.feedforward.down.weight"
    gradient = torch.autograd.grad(ours, dict(model.named_parameters())[name])[0]
    (theirs_is,) = loaded.family.names([name], model.config)[name]
    weight = dict(theirs.named_parameters())[theirs_is]
    their_gradient = torch.autograd.grad(expected, weight)[0]
    if loaded.family.transposed:
        their_gradient = their_gradient.T
    torch.testing.assert_close(gradient, their_gradient, atol=1e-5, rtol=1e-4)


def requests(loaded: Loaded, sizes: list[int] = SIZES) -> list[Request]:
    rng = np.random.default_rng(3)
    return [Request(rng.integers(0, loaded.tokenizer.vocab_size - 1, size)) for size in sizes]


def stepped(stepper: Stepper, asked: list[Request], ids: torch.Tensor) -> torch.Tensor:
    """Log-probabilities while these tokens are read one by one. Shapes: ids (R, T) -> (R, T, V)."""
    state, logits = stepper.start(asked)
    steps = [logits]
    for column in ids[:, :-1].T:
        steps.append(stepper.step(state, column[:, None])[:, 0])
        state.advance(torch.ones(len(asked), dtype=torch.long))
    return torch.log_softmax(torch.stack(steps, 1), -1)


def near_in(stepper: type[Stepper], loaded: Loaded, asked: list[Request], name: str) -> None:
    """What a model finds likely, in another precision and step by step; and alone as in company."""
    if name == "bf16" and not has_bf16("cpu"):
        pytest.skip("this processor has no bf16")
    exact = stepper(open_engine(loaded, "fp32").model)
    other = stepper(open_engine(loaded, name).model)  # type: ignore[arg-type]
    ids = torch.randint(0, loaded.tokenizer.vocab_size, (len(asked), 20))
    expected, found = stepped(exact, asked, ids), stepped(other, asked, ids)
    likely = expected > expected.amax(-1, keepdim=True) - 4
    off = (found - expected)[likely].abs()
    assert float(off.mean()) < (0.03 if name == "bf16" else 0.1)
    assert float(off.max()) > 1e-3  # it is another precision indeed
    if name == "int8":
        for row, request in enumerate(asked):
            alone = stepped(other, [request], ids[row : row + 1])[0]
            assert float((alone - found[row]).abs().mean()) < 0.01


@pytest.mark.parametrize("name", ["bf16", "int8"])
def test_it_writes_in_other_precisions(writer: tuple[Any, Loaded], name: str) -> None:
    _, loaded = writer
    near_in(Stepper, loaded, requests(loaded), name)


CHOICES: dict[str, tuple[Decoding, dict[str, Any]]] = {
    "greedy": (Decoding(), {}),
    "no repeat": (Decoding(no_repeat=2), {"no_repeat_ngram_size": 2}),
    "at least": (Decoding(min_tokens=9), {"min_new_tokens": 9}),
    "beams": (Decoding(beams=4, best=3), {"num_beams": 4, "num_return_sequences": 3}),
    "early": (Decoding(beams=3, early_stopping=True), {"num_beams": 3, "early_stopping": True}),
    "long": (Decoding(beams=5, length_penalty=2.0), {"num_beams": 5, "length_penalty": 2.0}),
    "short": (Decoding(beams=2, length_penalty=-1.0), {"num_beams": 2, "length_penalty": -1.0}),
    "beams, no repeat": (
        Decoding(beams=3, no_repeat=1, min_tokens=5),
        {"num_beams": 3, "no_repeat_ngram_size": 1, "min_new_tokens": 5},
    ),
}


@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize("room", [9, 30])
def test_the_same_tokens_are_chosen(writer: tuple[Any, Loaded], name: str, room: int) -> None:
    theirs, loaded = writer
    same_tokens(theirs, Stepper(loaded.model), requests(loaded), name, room)


@pytest.mark.parametrize("name", ["greedy", "beams"])
def test_without_an_end_texts_are_as_long_as_there_is_room(
    writer: tuple[Any, Loaded], name: str
) -> None:
    theirs, loaded = writer
    stepper = Stepper(loaded.model)
    same_tokens(theirs, stepper, requests(loaded), name, 9, ends=[])


def test_a_model_without_its_head_has_their_states(
    writer: tuple[Any, Loaded], tmp_path: Path
) -> None:
    _, loaded = writer
    save(tmp_path, Model(loaded.model.encoder, {}), loaded.tokenizer, loaded.family)
    theirs = transformers.AutoModel.from_pretrained(tmp_path)
    assert type(theirs).__name__ == loaded.family.architectures[frozenset()]
    ids = torch.randint(0, theirs.config.vocab_size, (11,))
    batch = Batch(ids, torch.zeros_like(ids), Packed.of([11]))
    again = bertkit.load(tmp_path).model
    with torch.no_grad():
        expected = theirs(ids[None]).last_hidden_state[0]
        torch.testing.assert_close(again.encoder(batch), expected, atol=1e-5, rtol=1e-5)


HEADS = [("classify", ("a", "b", "c")), ("choose", ())]


@pytest.mark.parametrize(("head", "labels"), HEADS, ids=["classify", "choose"])
def test_a_fine_tuned_folder_has_their_logits(
    writer: tuple[Any, Loaded], head: str, labels: tuple[str, ...], tmp_path: Path
) -> None:
    """Of texts within the frame, in a padded batch of theirs."""
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
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    encode = transformers.AutoTokenizer.from_pretrained(tmp_path)
    first, second = ["A class", "Names refer to objects."], ["An object", "They are bound."]
    read = encode(first, second, padding=True, return_tensors="pt")
    encodings = [tokenizer.encode(*pair) for pair in zip(first, second, strict=True)]
    batch = Batch.of(encodings)
    again = bertkit.load(tmp_path).model
    assert [*again.heads] == [head]
    with torch.no_grad():
        padded = {name: read[name] for name in ("input_ids", "attention_mask")}
        expected = theirs(**padded).logits
        found = again.eval()(batch)[head]
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
        if head == "classify":  # and the other way: their folder, opened here
            theirs.save_pretrained(tmp_path / "theirs")
            tokenizer.save(tmp_path / "theirs", segments=False)
            opened = bertkit.load(tmp_path / "theirs")
            assert (opened.labels, [*opened.model.heads]) == (labels, [head])
            torch.testing.assert_close(opened.model(batch)[head], expected, atol=1e-5, rtol=1e-5)
        theirs.config.pad_token_id = tokenizer.token(EXTRACT)  # the control: another last token
        assert (theirs(**padded).logits - found).abs().max() > 1e-3
    written, state = load_file(tmp_path / "model.safetensors"), theirs.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in written.items())


def same_tokens(
    theirs: Any,
    stepper: Stepper,
    asked: list[Request],
    name: str,
    room: int,
    *,
    ends: list[int] | None = None,
    **more: Any,
) -> None:
    """Prompts of many lengths at once; theirs one by one, as padding changes their results."""
    decoding, settings = CHOICES[name]
    end = ENDS[name] if ends is None else ends
    decoding = structs.replace(decoding, max_tokens=room)
    found = generate(stepper, asked, decoding, Rules(end))
    for request, texts in zip(asked, found, strict=True):
        read = torch.from_numpy(request.prompt if request.source is None else request.source)[None]
        expected = theirs.generate(
            read, attention_mask=torch.ones_like(read),
            max_new_tokens=room, do_sample=False, eos_token_id=end or None, pad_token_id=0,
            return_dict_in_generate=True, output_scores=True, **{**settings, **more},
        )  # fmt: skip
        rows = expected.sequences[:, len(request.prompt) :].tolist()
        assert len(texts) <= len(rows)
        for text, row in zip(texts, rows, strict=False):
            whole = [*text.ids, *row[len(text.ids) : len(text.ids) + (text.ended == "end")]]
            assert row[: len(whole)] == whole
            assert set(row[len(whole) :]) <= {0}
            assert (text.ended == "end") == (whole[-1] in end)
        if decoding.beams > 1:
            scores = [text.score for text in texts]
            theirs_are = expected.sequences_scores[: len(texts)].tolist()
            assert scores == pytest.approx(theirs_are, rel=1e-5)


ENDS = {name: [*range(40)] if name in ("greedy", "early") else [7] for name in CHOICES}
"""Tokens that end a text: some tests want many that end early."""
