"""Generation settings of a directory change the text like in transformers, or are rejected."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers, processors

import bertkit
from bertkit.errors import BertkitError, CheckpointError
from bertkit.extensions.generation.generation_config import DECODING, FIELDS, SAMPLED
from bertkit.extensions.generation.pipeline import Generate

transformers = pytest.importorskip("transformers", reason="pip install 'bertkit[dev]'")

TEXTS = ["cat sat on", "bab", "on the mat, the mat"]
TOKENS = ["<s>", "<pad>", "</s>", "<unk>"]
LETTERS = sorted(" ,abcehmnostu")
SIZES = {
    "vocab_size": len(TOKENS) + len(LETTERS),
    "bos_token_id": 0,
    "pad_token_id": 1,
    "eos_token_id": 2,
}
LIMIT = 12
"""Maximum length in tokens if a case sets none."""


def _tokenizer(folder: Path, single: str) -> None:
    vocab = {token: i for i, token in enumerate([*TOKENS, *LETTERS])}
    core = tokenizers.Tokenizer(models.BPE(vocab, [], unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(" ", "isolated")
    core.decoder = decoders.Fuse()
    core.post_processor = processors.TemplateProcessing(
        single=single, special_tokens=[(token, vocab[token]) for token in TOKENS if token in single]
    )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<s>", eos_token="</s>", pad_token="<pad>",
        unk_token="<unk>", model_max_length=64,
    ).save_pretrained(folder)  # fmt: skip


def _model(kind: str) -> Any:
    if kind == "gpt2":
        config = transformers.GPT2Config(n_embd=16, n_layer=1, n_head=2, n_positions=64, **SIZES)
        return transformers.GPT2LMHeadModel(config)
    if kind == "t5":
        config = transformers.T5Config(
            d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, decoder_start_token_id=1,
            **SIZES,
        )  # fmt: skip
        return transformers.T5ForConditionalGeneration(config)
    config = transformers.BartConfig(
        d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32,
        max_position_embeddings=64, decoder_start_token_id=2, forced_eos_token_id=None, **SIZES,
    )  # fmt: skip
    return transformers.BartForConditionalGeneration(config)


@pytest.fixture(scope="module", params=["bart", "t5", "gpt2"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("generation") / request.param
    _tokenizer(out, "<s> $A </s>" if request.param == "bart" else "$A")
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        model = _model(request.param).eval()
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(torch.randn_like(weight) * 0.5)
    model.save_pretrained(out)
    return out


CASES: list[dict[str, Any]] = [
    {},
    {"num_beams": 3},
    {"num_beams": 3, "length_penalty": 0.0},
    {"num_beams": 3, "length_penalty": -1.0},
    {"num_beams": 3, "early_stopping": True},
    {"num_beams": 3, "early_stopping": "never"},
    {"num_beams": 3, "num_return_sequences": 2},
    {"num_beams": 3, "diversity_penalty": 0.5, "num_beam_groups": 3},
    {"num_beams": 3, "renormalize_logits": True},
    {"no_repeat_ngram_size": 2},
    {"no_repeat_ngram_size": 0},
    {"repetition_penalty": 1.5},
    {"repetition_penalty": 0.5},
    {"repetition_penalty": 1.5, "num_beams": 3},
    {"encoder_repetition_penalty": 1.5},
    {"encoder_no_repeat_ngram_size": 1},
    {"bad_words_ids": [[5], [6, 7], [8, 9, 10]]},
    {"bad_words_ids": [[2], [5]]},
    {"suppress_tokens": [4, 5, 6, 7]},
    {"suppress_tokens": [4, 5, 6, 7], "num_beams": 3},
    {"begin_suppress_tokens": [4, 5, 6, 7, 8, 9, 10]},
    {"begin_suppress_tokens": [4, 5, 6, 7, 8], "forced_bos_token_id": 9},
    {"min_length": 10},
    {"min_length": 10, "num_beams": 3},
    {"min_new_tokens": 8},
    {"min_new_tokens": 8, "min_length": 40},
    {"max_length": 22},
    {"max_length": 22, "num_beams": 3},
    {"max_new_tokens": 5},
    {"max_new_tokens": 5, "num_beams": 3},
    {"forced_bos_token_id": 7},
    {"forced_bos_token_id": 7, "num_beams": 3},
    {"forced_eos_token_id": 2},
    {"forced_eos_token_id": 2, "num_beams": 3},
    {"forced_eos_token_id": [2], "num_beams": 3, "length_penalty": 2.0},
    {"eos_token_id": [2, 3]},
    {"do_sample": False, "temperature": 0.3, "top_k": 3, "top_p": 0.5, "typical_p": 0.5},
    {"do_sample": True, "num_beams": 3},
    {"do_sample": True, "typical_p": 0.5},
    {"do_sample": True, "epsilon_cutoff": 0.1},
    {"do_sample": True, "eta_cutoff": 0.1},
    {"do_sample": True, "top_h": 1.0},
    {"exponential_decay_length_penalty": [2, 1.5]},
    {"sequence_bias": [[[5], -5.0]]},
    {"guidance_scale": 1.5},
    {"penalty_alpha": 0.6, "top_k": 4},
    {"watermarking_config": {"greenlist_ratio": 0.25, "bias": 2.0}},
    {"stop_strings": ["a"]},
    {"token_healing": True},
    {"max_time": 100.0},
    {"force_words_ids": [[5]], "num_beams": 3},
    {"constraints": [1]},
    {"dola_layers": "high"},
    {"use_cache": False},
    {"output_scores": True, "return_dict_in_generate": False},
    {"remove_invalid_values": True},
    {"pad_token_id": 3},
    {"bos_token_id": 3},
    {"prompt_lookup_num_tokens": 2},
]
REJECTED = {
    "diversity_penalty", "renormalize_logits", "encoder_repetition_penalty", "sequence_bias",
    "encoder_no_repeat_ngram_size", "typical_p", "epsilon_cutoff", "eta_cutoff", "guidance_scale",
    "exponential_decay_length_penalty", "penalty_alpha", "watermarking_config", "stop_strings",
    "token_healing", "max_time", "force_words_ids", "constraints", "dola_layers", "top_h",
}  # fmt: skip


def _name(case: dict[str, Any]) -> str:
    return ",".join(f"{key}={value}" for key, value in case.items()) or "none"


@cache
def _reference(folder: Path) -> tuple[Any, Any]:
    config = json.loads((folder / "config.json").read_text())
    auto = "AutoModelForSeq2SeqLM" if config.get("is_encoder_decoder") else "AutoModelForCausalLM"
    model = getattr(transformers, auto).from_pretrained(folder).eval()
    return transformers.AutoTokenizer.from_pretrained(folder), model


def _expected(folder: Path, settings: dict[str, Any]) -> list[str]:
    tokenizer, model = _reference(folder)
    if (folder / "generation_config.json").exists():
        model.generation_config = transformers.GenerationConfig.from_pretrained(folder)
    limit = {} if {"max_length", "max_new_tokens"} & {*settings} else {"max_new_tokens": LIMIT}
    texts = []
    for text in TEXTS:
        ids = tokenizer(text, return_tensors="pt").input_ids
        output = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **limit)
        start = 0 if model.config.is_encoder_decoder else ids.shape[1]
        texts.append(tokenizer.decode(output[0, start:], skip_special_tokens=True))
    return texts


@pytest.mark.parametrize("case", CASES, ids=_name)
def test_generation_setting_matches_transformers_or_is_rejected(
    folder: Path, case: dict[str, Any]
) -> None:
    base = {"eos_token_id": 2, "pad_token_id": 1, "bos_token_id": 0}
    start = {"bart": {"decoder_start_token_id": 2}, "t5": {"decoder_start_token_id": 1}}
    settings = {**base, **start.get(folder.name, {}), **case}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    loaded = bertkit.load(folder)
    assert {**settings, **loaded.generation.settings} == settings
    rejected = [key for key in case if key in REJECTED]
    if case.get("early_stopping") == "never" or (case.get("do_sample") and "num_beams" in case):
        rejected = [next(key for key in case if key in ("early_stopping", "do_sample"))]
    if case.get("do_sample") is False:
        rejected = []
    if rejected:
        with pytest.raises(CheckpointError, match=rf"generation_config.json: .*{rejected[0]}"):
            Generate(loaded)
        return
    limit = {} if {"max_length", "max_new_tokens"} & {*case} else {"max_tokens": LIMIT}
    texts = [best[0].text for best in Generate(loaded)(TEXTS, limit)]
    assert texts == _expected(folder, case)


def test_every_field_of_transformers_is_listed() -> None:
    fields = {*transformers.GenerationConfig().to_dict()}
    assert fields == {*FIELDS}
    tested = {key for case in CASES for key in case}
    assert {*DECODING, *SAMPLED} <= tested


def test_cases_change_the_text(folder: Path) -> None:
    texts = set()
    for case in ({}, {"repetition_penalty": 1.5}, {"suppress_tokens": [8, 10]}):
        settings = {"eos_token_id": 2, "decoder_start_token_id": 2, **case}
        (folder / "generation_config.json").write_text(json.dumps(settings))
        writer = Generate(bertkit.load(folder))
        texts.add(tuple(best[0].text for best in writer(TEXTS, {"max_tokens": LIMIT})))
    assert len(texts) > 1


def test_config_json_is_used_without_generation_config(folder: Path) -> None:
    path = folder / "config.json"
    before = json.loads(path.read_text())
    legacy = {"num_beams": 3, "length_penalty": 0.0, "repetition_penalty": 1.5, "typical_p": 0.5}
    try:
        path.write_text(json.dumps({**before, **legacy}))
        (folder / "generation_config.json").unlink(missing_ok=True)
        loaded = bertkit.load(folder)
        decoding = loaded.generation.decoding
        found = (decoding.num_beams, decoding.length_penalty, decoding.repetition_penalty)
        assert found == (3, 0, 1.5)
        texts = [best[0].text for best in Generate(loaded)(TEXTS, {"max_tokens": LIMIT})]
        _reference.cache_clear()
        assert texts == _expected(folder, {})
        _reference.cache_clear()
        (folder / "generation_config.json").write_text('{"eos_token_id": 2}')
        assert bertkit.load(folder).generation.decoding.num_beams == 1
        path.write_text(json.dumps({**before, "guidance_scale": 2.0}))
        (folder / "generation_config.json").unlink()
        with pytest.raises(CheckpointError, match=r"config.json: guidance_scale = 2.0"):
            Generate(bertkit.load(folder))
    finally:
        path.write_text(json.dumps(before))


def test_do_sample_samples_with_the_defaults_of_transformers(folder: Path) -> None:
    settings = {"eos_token_id": 2, "decoder_start_token_id": 2, "do_sample": True}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    decoding = bertkit.load(folder).generation.decoding
    assert (decoding.temperature, decoding.top_k, decoding.top_p) == (1.0, 50, 1.0)
    settings |= {"temperature": 0.5, "top_k": 0, "top_p": 0.9, "min_p": 0.1}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    decoding = bertkit.load(folder).generation.decoding
    assert (decoding.temperature, decoding.top_k, decoding.top_p) == (0.5, None, 0.9)
    assert decoding.min_p == 0.1
    writer = Generate(bertkit.load(folder))
    with pytest.raises(BertkitError, match="set num_beams to 1, or temperature to 0"):
        writer(TEXTS, {"num_beams": 2})


def test_prompt_that_reaches_max_length_is_rejected(folder: Path) -> None:
    if folder.name != "gpt2":
        return
    (folder / "generation_config.json").write_text('{"eos_token_id": 2, "max_length": 5}')
    writer = Generate(bertkit.load(folder))
    with pytest.raises(BertkitError, match=r"max_length in generation_config\.json is 5"):
        writer(["cat sat on"])
    assert writer(["cat sat on"], {"max_tokens": 2})[0][0].tokens <= 2
