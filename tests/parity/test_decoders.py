"""Models that write equal transformers' on tiny random models: logits, folders, tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs
from safetensors.torch import load_file
from tests.parity.test_tokenizer import gpt2_folder

import bertkit
from bertkit.batch import Batch, Packed
from bertkit.checkpoint.folder import Loaded, save
from bertkit.families.gpt2 import GPT2
from bertkit.models.model import Model, build

transformers = pytest.importorskip("transformers", reason="pip install 'bertkit[parity]'")

SIZES = [1, 3, 9, 9, 20]


@pytest.fixture(scope="module")
def gpt2(english: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Loaded]:
    folder = tmp_path_factory.mktemp("gpt2")
    gpt2_folder(folder, english, old=False)
    vocab = bertkit.Tokenizer.load(folder).vocab_size
    config = transformers.GPT2Config(
        vocab_size=vocab, n_embd=32, n_layer=3, n_head=4, n_positions=64,
        bos_token_id=vocab - 1, eos_token_id=vocab - 1,
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = transformers.GPT2LMHeadModel(config).eval()
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


def test_gpt2_has_their_logits(gpt2: tuple[Any, Loaded]) -> None:
    theirs, loaded = gpt2
    assert loaded.family is GPT2
    assert apart(loaded.model, theirs) <= 1e-5


def test_control_a_model_that_sees_what_follows_differs(gpt2: tuple[Any, Loaded]) -> None:
    theirs, loaded = gpt2
    config = loaded.model.config
    both_ways = structs.replace(config, attention=structs.replace(config.attention, causal=False))
    model = build(both_ways, ("lm",)).eval()
    model.load_state_dict(loaded.model.state_dict())
    assert apart(model, theirs) > 0.1


def test_transformers_opens_what_we_save(gpt2: tuple[Any, Loaded], tmp_path: Path) -> None:
    theirs, loaded = gpt2
    save(tmp_path, loaded.model, loaded.tokenizer, loaded.family)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert isinstance(again, transformers.GPT2LMHeadModel)
    assert apart(loaded.model, again) <= 1e-5
    ours, first = load_file(tmp_path / "model.safetensors"), theirs.state_dict()
    assert all(torch.equal(tensor, first[name]) for name, tensor in ours.items())
    assert again.config.eos_token_id == loaded.tokenizer.eos
    text = "They walked along the river."
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer(text)["input_ids"] == loaded.tokenizer.encode(text).ids.tolist()
