"""Encoder-decoder models match transformers on tiny random models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.extensions.generation.test_marian_tokenizer import sentences, write_folder
from tests.parity.test_decoders import CHOICES, check_generated_tokens, check_precision
from tests.parity.test_tokenizer import t5_folder
from torch import Tensor

import bertkit
from bertkit.batch import Batch, Packed
from bertkit.checkpoint.directory import Loaded, save
from bertkit.extensions.generation.stepper import DecoderStepper, Request
from bertkit.extensions.generation.tasks.seq2seq import Seq2seq
from bertkit.families import FAMILIES
from bertkit.models.model import Model
from bertkit.nn.attention import Trace
from bertkit.objectives.loss import totals
from bertkit.tasks.summarize import SummaryExample
from bertkit.tasks.task import make_batch
from bertkit.text.vocabulary_training import train

pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
transformers = pytest.importorskip("transformers", reason="pip install 'bertkit[dev]'")

SIZES = [(5, 3), (1, 9), (12, 1), (5, 8), (30, 4)]
"""Number of source and target tokens of each pair."""


SIZE = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 48,
    "max_position_embeddings": 64,
}  # fmt: skip


@pytest.fixture(scope="module", params=["marian", "bart", "t5", "t5 1.1"])
def translator(
    request: pytest.FixtureRequest, english: list[str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, Loaded]:
    folder = tmp_path_factory.mktemp(request.param) / "m"
    if request.param == "marian":
        write_folder(folder, sentences(english)[:1500], "nmt_nfkc")
    elif "t5" in request.param:
        folder.mkdir()
        t5_folder(folder, english)
    else:
        train(english[:50], kind="bpe", size=600).save(folder, segments=False)
    tokenizer = bertkit.Tokenizer.load(folder)
    ids = {"vocab_size": tokenizer.vocab_size, "pad_token_id": tokenizer.pad}
    ids["eos_token_id"] = tokenizer.eos
    torch.manual_seed(0)
    hf_model: Any
    if request.param == "marian":
        hf_model = transformers.MarianMTModel(
            transformers.MarianConfig(
                **SIZE,
                **ids,
                decoder_start_token_id=tokenizer.pad,
                scale_embedding=True,
                activation_function="swish",
            )
        )
    elif "t5" in request.param:
        config = transformers.T5Config(
            **ids, decoder_start_token_id=tokenizer.pad, d_model=32, d_kv=6, d_ff=48,
            num_layers=3, num_decoder_layers=2, num_heads=4, n_positions=64,
            relative_attention_num_buckets=8, tie_word_embeddings="1.1" not in request.param,
            feed_forward_proj="gated-gelu" if "1.1" in request.param else "relu",
        )  # fmt: skip
        hf_model = transformers.T5ForConditionalGeneration(config)
        if "1.1" in request.param:
            hf_model.lm_head.weight = torch.nn.Parameter(hf_model.lm_head.weight.clone())
    else:
        hf_model = transformers.BartForConditionalGeneration(
            transformers.BartConfig(
                **SIZE,
                **ids,
                bos_token_id=tokenizer.bos,
                decoder_start_token_id=tokenizer.eos,
                forced_eos_token_id=None,
                activation_dropout=0.1,
            )
        )
    hf_model.eval()
    with torch.no_grad():  # larger than at initialization, so that mistakes show
        for name, parameter in hf_model.named_parameters():
            if request.param == "bart" or "embed_positions" not in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
            if request.param == "bart" and "embed_positions" in name:
                parameter[:2] = 0  # rows before the first position
        if "t5" not in request.param:
            hf_model.final_logits_bias.normal_()
        elif "1.1" in request.param:  # keeps logits as small as in the other models
            hf_model.lm_head.weight *= 0.2
    hf_model.save_pretrained(folder)
    if request.param == "t5 1.1":  # transformers 5 writes another value than published models
        saved_config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(
            json.dumps({**saved_config, "tie_word_embeddings": False})
        )
    return hf_model, bertkit.load(folder)


def test_training_loss_matches_transformers(
    translator: tuple[Any, Loaded], english: list[str]
) -> None:
    """The labels are the ids that the target side of the tokenizer returns."""
    peer, loaded = translator
    texts = sentences(english)[1500:1506]
    pairs = [(text, text[::-1].upper()[:40]) for text in texts]
    task = Seq2seq().with_decoder(loaded.begin, loaded.target)
    rows = [SummaryExample(text, (target,), f"a:{n}") for n, (text, target) in enumerate(pairs)]
    features = task.features(rows, loaded.tokenizer, 64, long="truncate", labeled=True)
    packed = make_batch(task, features)
    tokenizer = transformers.AutoTokenizer.from_pretrained(loaded.folder)
    losses, wrong, counts = [], [], []
    with torch.no_grad():
        loss = task.loss(loaded.model, packed, totals([packed])).total.item()
        for text, target in pairs:
            options = {"return_tensors": "pt", "truncation": True, "max_length": 64}
            source = tokenizer(text, **options)["input_ids"]
            labels = tokenizer(text_target=target, **options)["input_ids"]
            as_source = tokenizer(target, **options)["input_ids"]
            losses.append(peer(input_ids=source, labels=labels).loss.item())
            wrong.append(peer(input_ids=source, labels=as_source).loss.item())
            counts.append(labels.numel())
    assert loss == pytest.approx(np.average(losses, weights=counts), abs=2e-5)
    if loaded.tokenizer is not loaded.target:  # the control
        assert max(map(abs, np.subtract(losses, wrong))) > 1e-2


def batch(vocab: int) -> tuple[Batch, list[tuple[Tensor, Tensor]]]:
    """Return a batch of sources and targets and the pairs, each side sorted by length."""
    torch.manual_seed(1)
    pairs = [tuple(torch.randint(0, vocab, (size,)) for size in lengths) for lengths in SIZES]
    sides = []
    for side in (0, 1):
        order = sorted(range(len(pairs)), key=lambda index: len(pairs[index][side]))
        texts = [pairs[index][side] for index in order]
        ids = torch.cat(texts)
        layout = Packed.of([len(text) for text in texts])
        sides.append((order, Batch(ids, torch.zeros_like(ids), layout)))
    (first, sources), (order, targets) = sides
    source_order = torch.tensor([first.index(index) for index in order])
    whole = Batch(
        targets.ids, targets.types, targets.layout, source=sources, source_order=source_order
    )
    return whole, [pairs[index] for index in order]


def max_difference(bertkit_model: Model, hf_model: Any) -> float:
    batch_of_pairs, pairs = batch(hf_model.config.vocab_size)
    with torch.no_grad():
        logits = bertkit_model(batch_of_pairs)["lm"].split(list(batch_of_pairs.layout.lengths))
        expected = [
            hf_model(input_ids=source[None], decoder_input_ids=target[None]).logits[0]
            for source, target in pairs
        ]
    return max(float((a - b).abs().max()) for a, b in zip(logits, expected, strict=True))


def test_logits_match_transformers(translator: tuple[Any, Loaded]) -> None:
    hf_model, loaded = translator
    assert loaded.family is FAMILIES[hf_model.config.model_type]
    assert max_difference(loaded.model, hf_model) <= 1e-5


@pytest.mark.parametrize("wrong", ["bias", "embedding", "source"])
def test_control_changed_weight_differs(translator: tuple[Any, Loaded], wrong: str) -> None:
    hf_model, loaded = translator
    model = bertkit.load(loaded.folder).model
    assert model.decoder is not None
    if wrong == "bias":
        head = model.heads["lm"]
        if head.bias is not None:
            head.bias.data.zero_()
        else:
            head.scale = 0.5 if head.scale is None else None
    elif wrong == "embedding":
        embedding = model.decoder.embedding
        if model.decoder.relative is not None:
            model.decoder.relative.table.weight.data.neg_()
        elif embedding.positions is None:
            embedding.scale = None
        else:
            embedding.positions.weight.data = embedding.positions.weight.data.roll(1, 0)
    else:
        model.decoder.blocks[0].cross.kv.weight.data.neg_()
    assert max_difference(model, hf_model) > 0.01


def test_saved_model_loads_in_transformers(translator: tuple[Any, Loaded], tmp_path: Path) -> None:
    hf_model, loaded = translator
    save(tmp_path, loaded.model, loaded.tokenizer, loaded.family)
    again = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert isinstance(again, type(hf_model))
    assert max_difference(loaded.model, again) <= 1e-5
    saved, original = load_file(tmp_path / "model.safetensors"), hf_model.state_dict()
    assert all(torch.equal(tensor, original[name]) for name, tensor in saved.items())
    assert again.config.decoder_start_token_id == hf_model.config.decoder_start_token_id
    assert max_difference(bertkit.load(tmp_path).model, hf_model) <= 1e-5


def requests(loaded: Loaded) -> list[Request]:
    rng = np.random.default_rng(3)
    start, vocab = np.array([loaded.generation.start]), loaded.tokenizer.vocab_size
    return [Request(start, rng.integers(0, vocab, source)) for source, _ in SIZES]


@pytest.mark.parametrize("name", ["bf16", "int8"])
def test_other_precisions_match_approximately(translator: tuple[Any, Loaded], name: str) -> None:
    _, loaded = translator
    check_precision(DecoderStepper, loaded, requests(loaded), name)


@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize("max_tokens", [9, 30])
def test_generated_tokens_match_transformers(
    translator: tuple[Any, Loaded], name: str, max_tokens: int
) -> None:
    hf_model, loaded = translator
    stepper = DecoderStepper(loaded.model)
    check_generated_tokens(
        hf_model, stepper, requests(loaded), name, max_tokens, forced_eos_token_id=None
    )


def test_cross_attention_matches_transformers(translator: tuple[Any, Loaded]) -> None:
    """Compare the cross-attention weights of one forward pass in all layers."""
    hf_model, loaded = translator
    hf_model.set_attn_implementation("eager")
    rng = np.random.default_rng(2)
    source, text = rng.integers(5, hf_model.config.vocab_size, (2, 11))
    stepper, trace = DecoderStepper(loaded.model), Trace()
    logits = stepper.read(Request(text[:1], source), text[1:].tolist(), trace)
    with torch.no_grad():
        out = hf_model(
            input_ids=torch.from_numpy(source)[None],
            decoder_input_ids=torch.from_numpy(text)[None],
            output_attentions=True,
        )
    assert float((logits - out.logits[0]).abs().max()) <= 1e-5
    expected = torch.cat(out.cross_attentions)
    weights = torch.stack([layer[0] for layer in trace.cross])
    assert weights.shape == expected.shape
    assert float((weights - expected).abs().max()) <= 1e-5
    # The controls: another head and another type of attention.
    assert float((weights - expected.roll(1, 1)).abs().max()) > 1e-3
    assert float((weights - torch.cat(out.decoder_attentions)).abs().max()) > 1e-3
