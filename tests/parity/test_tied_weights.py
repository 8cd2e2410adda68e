"""Weights that are tied by default: bertkit loads or rejects different stored values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.factories import ENCODERS, edit_config, tiny_config, tiny_folder
from tests.parity.test_decoders import max_difference as causal_difference
from tests.parity.test_translators import max_difference as translator_difference
from torch import Tensor

import bertkit
from bertkit.checkpoint.directory import save
from bertkit.checkpoint.weights import read_tensors, write_tensors
from bertkit.errors import CheckpointError
from bertkit.extensions.generation.families.bart import BART
from bertkit.extensions.generation.families.gpt2 import GPT2
from bertkit.extensions.generation.families.llama import LLAMA
from bertkit.extensions.generation.families.marian import MARIAN
from bertkit.extensions.generation.families.openai_gpt import OPENAI_GPT
from bertkit.extensions.generation.families.t5 import T5
from bertkit.families import FAMILIES, Family
from bertkit.models.model import build
from bertkit.nn.embedding import sinusoids
from bertkit.text.vocabulary_training import train

transformers = pytest.importorskip("transformers", reason="pip install 'bertkit[dev]'")

FILE = "model.safetensors"


@pytest.fixture(scope="module")
def tokenizer(english: list[str]) -> bertkit.Tokenizer:
    return train(english[:50], kind="bpe", size=300)


def saved(
    family: Family, tokenizer: bertkit.Tokenizer, folder: Path, more: Mapping[str, Any] = {}
) -> tuple[Path, dict[str, Tensor]]:
    """Return a directory of a model with a language model head, and its tensors."""
    head = "lm" if "lm" in family.heads else "mlm"
    options: dict[str, Any] = {"intermediate": 64} if family is OPENAI_GPT else {}
    if family.decoder is None:
        tiny_folder(folder, tokenizer, head, family=family, spread=0.1, **options)
    else:
        torch.manual_seed(0)
        encoder = tiny_config(tokenizer, family=family)
        decoder = tiny_config(tokenizer, family=family.decoder, **more)
        save(folder, build(encoder, [head], decoder=decoder), tokenizer, family)
    return folder, read_tensors(folder)


def t5(tokenizer: bertkit.Tokenizer, folder: Path, *, tied: bool, scaled: bool | None) -> Path:
    """Save a T5 with the keys of transformers 5, which do not describe its output matrix."""
    saved(T5, tokenizer, folder, {"head.lm_tied": tied})
    keys = {"tie_word_embeddings": True, "scale_decoder_outputs": scaled}
    edit_config(folder, **keys)
    return folder


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("scaled", [True, False, None])
def test_t5_output_matrix_and_scale_match(
    tied: bool, scaled: bool | None, tokenizer: bertkit.Tokenizer, tmp_path: Path
) -> None:
    folder = t5(tokenizer, tmp_path / "t5", tied=tied, scaled=scaled)
    hf_model = transformers.T5ForConditionalGeneration.from_pretrained(folder).eval()
    loaded = bertkit.load(folder)
    assert translator_difference(loaded.model, hf_model) <= 1e-5
    loaded.save(tmp_path / "saved")
    again = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "saved").eval()
    assert translator_difference(loaded.model, again) <= 1e-5
    assert translator_difference(bertkit.load(tmp_path / "saved").model, hf_model) <= 1e-5


def test_control_t5_without_scale_differs(tokenizer: bertkit.Tokenizer, tmp_path: Path) -> None:
    folders = [
        t5(tokenizer, tmp_path / str(scaled), tied=True, scaled=scaled) for scaled in (True, False)
    ]
    hf_model = transformers.T5ForConditionalGeneration.from_pretrained(folders[0]).eval()
    assert translator_difference(bertkit.load(folders[1]).model, hf_model) > 0.01


def test_llama_with_another_output_matrix_matches(
    tokenizer: bertkit.Tokenizer, tmp_path: Path
) -> None:
    folder, tensors = saved(LLAMA, tokenizer, tmp_path / "llama")
    edit_config(folder, tie_word_embeddings=True)
    hf_model = transformers.LlamaForCausalLM.from_pretrained(folder).eval()
    assert causal_difference(bertkit.load(folder).model, hf_model) <= 1e-5
    write_tensors(folder / FILE, {n: t for n, t in tensors.items() if n != "lm_head.weight"})
    assert causal_difference(bertkit.load(folder).model, hf_model) > 0.01  # the control


COPIES = [
    (family, copy)
    for family in (*ENCODERS.values(), GPT2, OPENAI_GPT, MARIAN, BART, T5)
    for copy in family.derived
]


@pytest.mark.parametrize(("family", "copy"), COPIES, ids=[f"{f.name}-{c}" for f, c in COPIES])
def test_copy_with_other_values_is_rejected(
    family: Family, copy: str, tokenizer: bertkit.Tokenizer, tmp_path: Path
) -> None:
    folder, tensors = saved(family, tokenizer, tmp_path / "model")
    original = tensors[family.derived[copy]]
    write_tensors(folder / FILE, {**tensors, copy: original.clone()})
    bertkit.load(folder)  # the control
    write_tensors(folder / FILE, {**tensors, copy: original + 1})
    with pytest.raises(CheckpointError, match=rf"{copy} differs from {family.derived[copy]}"):
        bertkit.load(folder)


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_marian_with_other_positions_is_rejected(
    side: str, tokenizer: bertkit.Tokenizer, tmp_path: Path
) -> None:
    folder, tensors = saved(MARIAN, tokenizer, tmp_path / "marian")
    name = f"model.{side}.embed_positions.weight"
    sinusoid_rows = sinusoids(torch.arange(32), 16).half()
    write_tensors(folder / FILE, {**tensors, name: sinusoid_rows})
    bertkit.load(folder)  # the control
    for wrong in (sinusoid_rows.roll(1, 0), sinusoid_rows[0]):
        write_tensors(folder / FILE, {**tensors, name: wrong.contiguous()})
        with pytest.raises(CheckpointError, match=f"{name}: expected sinusoidal positions"):
            bertkit.load(folder)


def test_tensor_with_two_values_is_rejected(tokenizer: bertkit.Tokenizer, tmp_path: Path) -> None:
    folder, tensors = saved(FAMILIES["bert"], tokenizer, tmp_path / "bert")
    name = "bert.embeddings.LayerNorm.weight"
    old = name.replace("weight", "gamma")
    write_tensors(folder / FILE, {**tensors, old: tensors[name].clone()})
    bertkit.load(folder)  # the control
    write_tensors(folder / FILE, {**tensors, old: tensors[name] + 1})
    with pytest.raises(CheckpointError, match=f"{name}: stored twice with different values"):
        bertkit.load(folder)
