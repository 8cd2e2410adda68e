"""Models that read one text and write another equal transformers' on tiny random models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.parity.test_decoders import CHOICES, same_tokens
from tests.text.test_marian import sentences, write_folder
from torch import Tensor

import bertkit
from bertkit.batch import Batch, Packed
from bertkit.checkpoint.folder import Loaded, save
from bertkit.families.marian import MARIAN
from bertkit.models.model import Model
from bertkit.models.stepper import DecoderStepper, Request

transformers = pytest.importorskip("transformers", reason="pip install 'bertkit[parity]'")

SIZES = [(5, 3), (1, 9), (12, 1), (5, 8), (30, 4)]
"""Tokens of each source, and of its target."""


@pytest.fixture(scope="module")
def marian(english: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Loaded]:
    folder = write_folder(
        tmp_path_factory.mktemp("marian") / "m", sentences(english)[:1500], "nmt_nfkc"
    )
    tokenizer = bertkit.Tokenizer.load(folder)
    config = transformers.MarianConfig(
        vocab_size=tokenizer.vocab_size, d_model=32, encoder_layers=2, decoder_layers=3,
        encoder_attention_heads=4, decoder_attention_heads=2, encoder_ffn_dim=64,
        decoder_ffn_dim=48, max_position_embeddings=64, pad_token_id=tokenizer.pad,
        eos_token_id=tokenizer.eos, decoder_start_token_id=tokenizer.pad, scale_embedding=True,
        activation_function="swish",
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = transformers.MarianMTModel(config).eval()
    with torch.no_grad():  # larger than at birth, so that mistakes show
        for name, parameter in theirs.named_parameters():
            if "embed_positions" not in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
        theirs.final_logits_bias.normal_()
    theirs.save_pretrained(folder)
    return theirs, bertkit.load(folder)


def batch(vocab: int) -> tuple[Batch, list[tuple[Tensor, Tensor]]]:
    """Sources and targets, each side shortest first."""
    torch.manual_seed(1)
    pairs = [tuple(torch.randint(0, vocab, (size,)) for size in both) for both in SIZES]
    sides = []
    for side in (0, 1):
        order = sorted(range(len(pairs)), key=lambda place: len(pairs[place][side]))
        texts = [pairs[place][side] for place in order]
        ids = torch.cat(texts)
        layout = Packed.of([len(text) for text in texts])
        sides.append((order, Batch(ids, torch.zeros_like(ids), layout)))
    (first, sources), (order, targets) = sides
    where = torch.tensor([first.index(place) for place in order])
    whole = Batch(targets.ids, targets.types, targets.layout, source=sources, source_order=where)
    return whole, [pairs[place] for place in order]


def apart(ours: Model, theirs: Any) -> float:
    asked, pairs = batch(theirs.config.vocab_size)
    with torch.no_grad():
        found = ours(asked)["lm"].split(list(asked.layout.lengths))
        expected = [
            theirs(input_ids=source[None], decoder_input_ids=target[None]).logits[0]
            for source, target in pairs
        ]
    return max(float((one - other).abs().max()) for one, other in zip(found, expected, strict=True))


def test_marian_has_their_logits(marian: tuple[Any, Loaded]) -> None:
    theirs, loaded = marian
    assert loaded.family is MARIAN
    assert apart(loaded.model, theirs) <= 1e-5


@pytest.mark.parametrize("wrong", ["bias", "scale", "source"])
def test_control_a_difference_is_seen(marian: tuple[Any, Loaded], wrong: str) -> None:
    theirs, loaded = marian
    model = bertkit.load(loaded.folder).model
    assert model.decoder is not None
    if wrong == "bias":
        model.heads["lm"].bias.data.zero_()
    elif wrong == "scale":
        model.decoder.embedding.scale = None
    else:
        model.decoder.blocks[0].cross.kv.weight.data.neg_()
    assert apart(model, theirs) > 0.01


def test_transformers_opens_what_we_save(marian: tuple[Any, Loaded], tmp_path: Path) -> None:
    theirs, loaded = marian
    save(tmp_path, loaded.model, loaded.tokenizer, loaded.family)
    again = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert isinstance(again, transformers.MarianMTModel)
    assert apart(loaded.model, again) <= 1e-5
    ours, first = load_file(tmp_path / "model.safetensors"), theirs.state_dict()
    assert all(torch.equal(tensor, first[name]) for name, tensor in ours.items())
    assert again.config.decoder_start_token_id == loaded.tokenizer.pad
    assert apart(bertkit.load(tmp_path).model, theirs) <= 1e-5


@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize("room", [9, 30])
def test_the_same_tokens_are_chosen(marian: tuple[Any, Loaded], name: str, room: int) -> None:
    theirs, loaded = marian
    rng = np.random.default_rng(3)
    start, vocab = np.array([loaded.tokenizer.pad]), loaded.tokenizer.vocab_size
    asked = [Request(start, rng.integers(0, vocab, source)) for source, _ in SIZES]
    stepper = DecoderStepper(loaded.model)
    same_tokens(theirs, stepper, asked, name, room, forced_eos_token_id=None)
