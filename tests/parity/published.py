"""Tiny random models of transformers, whose files are changed one value at a time."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.parity.test_families import CASES as ENCODER_CASES
from tests.parity.test_families import make_hf_model
from torch import Tensor

import bertkit
from bertkit.batch import Batch, Packed
from bertkit.errors import BertkitError
from bertkit.extensions.generation.families.bart import BART
from bertkit.extensions.generation.families.gpt2 import GPT2
from bertkit.extensions.generation.families.llama import LLAMA
from bertkit.extensions.generation.families.marian import MARIAN
from bertkit.extensions.generation.families.openai_gpt import OPENAI_GPT
from bertkit.extensions.generation.families.t5 import T5
from bertkit.families import Family

transformers = pytest.importorskip("transformers", reason="pip install 'bertkit[dev]'")
transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()

LM = frozenset({"lm"})
CLASSIFY = frozenset({"classify"})
CASES: list[tuple[Family, frozenset[str]]] = [
    *ENCODER_CASES,
    *((family, heads) for family in (GPT2, OPENAI_GPT, LLAMA) for heads in (LM, CLASSIFY)),
    *((family, LM) for family in (MARIAN, BART, T5)),
]
NAMES = [f"{family.name}-{'+'.join(sorted(heads))}" for family, heads in CASES]

STACKS = {
    "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32,
    "max_position_embeddings": 32, "forced_eos_token_id": None,
}  # fmt: skip
GPT = {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 32}
SIZES: Mapping[str, dict[str, Any]] = {
    "gpt2": GPT,
    "openai-gpt": GPT,
    "llama": {
        "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32,
    },
    "marian": STACKS,
    "bart": STACKS,
    "t5": {
        "d_model": 16, "d_kv": 4, "d_ff": 32, "num_layers": 2, "num_heads": 4,
        "relative_attention_num_buckets": 8,
    },
}  # fmt: skip
SOURCE = torch.tensor([7, 9, 30, 11, 12, 77, 40, 23, 6])
TARGET = torch.tensor([8, 60, 61, 9, 33])


def decoder_model(family: Family, heads: frozenset[str], tokenizer: bertkit.Tokenizer) -> Any:
    """Return a random model that generates."""
    torch.manual_seed(1)
    ids = {"vocab_size": tokenizer.vocab_size}
    ids |= {f"{role}_token_id": getattr(tokenizer, role) for role in ("pad", "eos", "bos")}
    config = transformers.CONFIG_MAPPING[family.name](**ids, **SIZES[family.name], num_labels=3)
    model = getattr(transformers, family.architectures[heads])(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if family is not MARIAN or "embed_positions" not in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.tie_weights()
    return model.eval()


def outputs_of(answer: Any, heads: frozenset[str]) -> dict[str, Tensor]:
    """Return the outputs of transformers for one sequence by the names of bertkit's heads."""
    outputs = {}
    for head in heads:
        if head == "pooler":
            outputs[head] = answer.pooler_output
        elif head == "answer":
            outputs[head] = torch.stack([answer.start_logits, answer.end_logits], -1)[0]
        elif len(heads) > 1:
            names = {"mlm": "prediction_logits", "sop": "sop_logits"}
            outputs[head] = getattr(answer, names.get(head, "seq_relationship_logits"))
        else:
            outputs[head] = answer.logits
        shape = outputs[head].shape
        if head in ("mlm", "tag", "lm", "rtd"):
            outputs[head] = outputs[head][0]
        assert len(shape) > 0
    return outputs


class Published:
    """The directory of a tiny model of transformers with some heads."""

    def __init__(
        self, family: Family, heads: frozenset[str], tokenizer: bertkit.Tokenizer, folder: Path
    ) -> None:
        self.family, self.heads, self.folder = family, heads, folder
        writes = "lm" in family.heads
        model = decoder_model(family, heads, tokenizer) if writes else make_hf_model(family, heads)
        self.kind = type(model)
        self.tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        self.settings = json.loads(model.config.to_json_string(use_diff=False))
        self.settings["architectures"] = [self.kind.__name__]
        model.save_pretrained(folder)
        tokenizer.save(folder)

    def keys(self) -> set[str]:
        """Return every key that the configuration class or its model reads."""
        config = transformers.CONFIG_MAPPING[self.family.name]
        keys = {*self.settings, *config.attribute_map}
        keys |= {field.name for field in dataclasses.fields(config)}
        return keys

    def reference(self, settings: Mapping[str, Any]) -> dict[str, Tensor] | None:
        """Return the outputs of transformers, or None if it cannot load all weights."""
        try:
            config = transformers.CONFIG_MAPPING[self.family.name].from_dict(dict(settings))
            with torch.device("meta"):
                shapes = {name: t.shape for name, t in self.kind(config).state_dict().items()}
            if any(name not in self.tensors for name in shapes):
                return None
            if any(self.tensors[name].shape != shape for name, shape in shapes.items()):
                return None
            model = self.kind.from_pretrained(
                None, config=config, state_dict=dict(self.tensors), dtype=torch.float32
            )
            return self.outputs(model.eval())
        except Exception:  # transformers raises many types for invalid values
            return None

    def outputs(self, model: Any) -> dict[str, Tensor]:
        """Return the outputs of a model of transformers."""
        ids = SOURCE[None, None] if "choose" in self.heads else SOURCE[None]
        more = {} if self.family.decoder is None else {"decoder_input_ids": TARGET[None]}
        with torch.no_grad():
            return outputs_of(
                model(input_ids=ids, attention_mask=torch.ones_like(ids), **more), self.heads
            )

    def uses(self, name: str, stored: Mapping[str, Tensor]) -> bool:
        """Return whether another value of a stored tensor changes the outputs of transformers."""
        results = []
        for tensors in (stored, {**stored, name: torch.randn(stored[name].shape)}):
            config = transformers.CONFIG_MAPPING[self.family.name].from_dict(self.settings)
            model = self.kind.from_pretrained(
                None, config=config, state_dict=dict(tensors), dtype=torch.float32
            )
            results.append(self.outputs(model.eval()))
        before, after = results
        same = (torch.allclose(before[head], after[head], atol=1e-4) for head in before)
        return not all(same)  # a bias of keys changes rounding only

    def load(self, settings: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return the outputs of bertkit. Raises: BertkitError."""
        text = json.dumps(settings)
        (self.folder / "config.json").write_text(text, encoding="utf-8")
        model = bertkit.load(self.folder).model
        assert set(model.heads) == self.heads
        batch = Batch(SOURCE, torch.zeros_like(SOURCE), Packed.of([len(SOURCE)]))
        if self.family.decoder is not None:
            ids = TARGET
            batch = Batch(
                ids, torch.zeros_like(ids), Packed.of([len(ids)]),
                source=batch, source_order=torch.tensor([0]),
            )  # fmt: skip
        with torch.no_grad():
            return dict(model(batch))

    def verdict(self, settings: Mapping[str, Any]) -> str:
        """Return how bertkit treats these settings: "equal", "rejected", "invalid" or "wrong"."""
        try:
            found = self.load(settings)
        except BertkitError:
            return "rejected"
        expected = self.reference(settings)
        if expected is None:
            return "invalid"
        same = all(
            found[head].shape == expected[head].shape
            and torch.allclose(found[head], expected[head], atol=2e-5, rtol=1e-4)
            for head in self.heads
        )
        return "equal" if same else "wrong"
