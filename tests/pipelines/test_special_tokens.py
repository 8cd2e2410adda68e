"""Tests that inputs of causal models contain the special tokens of the tokenizer."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from tests.extensions.generation.test_chat_format import TALK
from tests.factories import tiny_folder
from tokenizers import decoders, models, pre_tokenizers, processors

import bertkit
from bertkit.extensions.generation.blocks import block
from bertkit.extensions.generation.chat_format import ChatFormat
from bertkit.extensions.generation.likelihood import _likelihoods
from bertkit.extensions.generation.messages import Conversation
from bertkit.extensions.generation.perplexity import evaluate_text
from bertkit.extensions.generation.pipeline import Generate
from bertkit.extensions.generation.prompts import _label_logprobs
from bertkit.extensions.generation.tasks.chat import Chat as ChatTask
from bertkit.families import FAMILIES
from bertkit.pipelines.frozen_words import FrozenEncoder
from bertkit.text.causal_format import add_causal_tokens
from bertkit.text.tokenizer import Tokenizer

transformers = pytest.importorskip("transformers", reason="pip install 'bertkit[dev]'")

TEMPLATES = {"none": "$A", "bos": "<s> $A", "both": "<s> $A </s>", "eos": "$A </s>"}
TEXTS = ["The cat sat", " on", "Grüße 🙂"]


def tokenizer_of(single: str) -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate(["<s>", "</s>", *alphabet, "at"])}
    core = tokenizers.Tokenizer(models.BPE(vocab, [("a", "t")]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(["<s>", "</s>"])
    names = [name for name in ("<s>", "</s>") if name in single]
    if names:
        core.post_processor = processors.TemplateProcessing(
            single=single, special_tokens=[(name, vocab[name]) for name in names]
        )
    settings = {"bos_token": "<s>", "eos_token": "</s>"}
    return Tokenizer(core, {**settings, "tokenizer_class": "PreTrainedTokenizerFast"})


@pytest.fixture(scope="module", params=TEMPLATES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("llama") / request.param
    tokenizer = tokenizer_of(TEMPLATES[request.param])
    shape = {"layers": 2, "length": 64, "spread": 0.4}
    return tiny_folder(out, tokenizer, "lm", family=FAMILIES["llama"], **shape)


@pytest.fixture(scope="module")
def writer(folder: Path) -> Generate:
    return Generate(bertkit.load(folder))


def reference(folder: Path) -> tuple[Any, Any]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    model.generation_config = transformers.GenerationConfig(eos_token_id=1, pad_token_id=1)
    return tokenizer, model


def log_probability(model: Any, ids: list[int], start: int, end: int) -> float:
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    return sum(float(logits[position - 1, ids[position]]) for position in range(start, end))


def test_generate_uses_ids_of_tokenizer(folder: Path, writer: Generate) -> None:
    tokenizer, model = reference(folder)
    for request, text in zip(writer.requests(TEXTS), TEXTS, strict=True):
        ids = tokenizer(text).input_ids
        assert request.prompt.tolist() == ids
        with torch.no_grad():
            output = model.generate(
                input_ids=torch.tensor([ids]),
                attention_mask=torch.ones(1, len(ids), dtype=torch.long),
                max_new_tokens=8, do_sample=False,
            )  # fmt: skip
        expected = tokenizer.decode(output[0, len(ids) :], skip_special_tokens=True)
        assert writer([text], {"max_tokens": 8})[0][0].text == expected


def test_perplexity_matches_transformers(folder: Path, tmp_path: Path) -> None:
    tokenizer, model = reference(folder)
    nats, count = 0.0, 0
    for number, text in enumerate(["The cat sat", "Grüße 🙂"]):
        (tmp_path / f"{number}.txt").write_text(text, encoding="utf-8")
        ids = tokenizer(text).input_ids
        if folder.name == "none":  # the end token separates texts, as in GPT-2
            ids = [1, *ids, 1]
        with torch.no_grad():
            nats += float(model(torch.tensor([ids]), labels=torch.tensor([ids])).loss) * (
                len(ids) - 1
            )
        count += len(ids) - 1
    found = evaluate_text(folder, sorted(tmp_path.glob("*.txt")))
    assert found.tokens == count
    assert found.perplexity == pytest.approx(math.exp(nats / count), rel=1e-4)


def test_likelihoods_are_conditioned_on_first_special_token(folder: Path, writer: Generate) -> None:
    tokenizer, model = reference(folder)
    first, second = (tokenizer(t, add_special_tokens=False).input_ids for t in ("The cat", " sat"))
    begin = 0 if folder.name in ("bos", "both") else 1
    whole = [begin, *first, *second]
    start = len(whole) - len(second)
    expected = log_probability(model, whole, start, len(whole))
    (found,) = _likelihoods(writer, [("The cat", " sat")], ["here"])
    assert found.total == pytest.approx(expected, rel=1e-4)
    for prompt in ("", "The cat"):
        ids = [begin, *(first if prompt else [])]
        if prompt and begin == 1:
            ids = ids[1:]  # without a BOS token a prompt begins with its text
        rows = _label_logprobs(writer, prompt, [" at"], [second])
        whole = [*ids, *tokenizer(" at", add_special_tokens=False).input_ids, *second]
        expected = log_probability(model, whole, len(whole) - len(second), len(whole))
        assert rows[0, 0] == pytest.approx(expected, rel=1e-4)


def test_plain_conversation_begins_with_bos(writer: Generate) -> None:
    added = writer.tokenizer.added[0]
    chat = ChatFormat(writer.tokenizer)
    assert tuple(chat.encode(TALK)[0][: len(added)].tolist()) == added
    (feature,) = ChatTask().features(
        [Conversation(tuple(TALK[:2]), "a:1")], writer.tokenizer, 60, long="truncate", labeled=True
    )
    assert tuple(feature.encoding.ids[: len(added)].tolist()) == added


def test_embeddings_use_ids_of_tokenizer(folder: Path) -> None:
    tokenizer, _ = reference(folder)
    loaded = bertkit.load(folder)
    assert loaded.tokenizer.encode(TEXTS[0]).ids.tolist() == tokenizer(TEXTS[0]).input_ids
    (feature,) = FrozenEncoder(loaded, "fp32").read(["cat"], [(0, 3)])
    expected = tokenizer("cat").input_ids
    begins = folder.name in ("bos", "both")
    assert feature.encoding.ids.tolist() == (expected if begins else [1, *expected])


def test_causal_tokens_keep_bos(folder: Path) -> None:
    tokenizer = add_causal_tokens(bertkit.load(folder).tokenizer)
    tokens = tokenizer.pieces(tokenizer.encode("at", "at").ids)
    bos = ["<s>"] if folder.name in ("bos", "both") else []
    assert tokens == [*bos, "<start>", "at", "<delimiter>", "at", "<extract>"]
    assert (
        add_causal_tokens(tokenizer).encode("at").ids.tolist()
        == tokenizer.encode("at").ids.tolist()
    )


def test_pretraining_blocks_begin_with_bos(folder: Path) -> None:
    tokenizer = bertkit.load(folder).tokenizer
    first = block(np.array([5, 6]), 0, 8, tokenizer.eos, tokenizer.begin[-1])
    begin = 0 if folder.name in ("bos", "both") else 1
    assert first.ids.tolist() == [begin, 5, 6]
