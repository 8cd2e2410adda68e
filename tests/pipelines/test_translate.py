"""Tests of translation with Marian models."""

from __future__ import annotations

import io
import json
import shutil
import warnings
from pathlib import Path

import pytest
import torch
import transformers
from tests.extensions.generation.test_marian_tokenizer import sentences, write_folder

import bertkit
from bertkit.errors import BertkitError, CheckpointError, DataError
from bertkit.extensions.generation.commands import generate
from bertkit.extensions.generation.decoding import Decoding
from bertkit.extensions.generation.generation_config import FILE


@pytest.fixture(scope="module")
def folder(english: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a Marian model with random weights that generates short texts."""
    path = write_folder(
        tmp_path_factory.mktemp("marian") / "m", sentences(english)[:1500], "nmt_nfkc"
    )
    tokenizer = bertkit.Tokenizer.load(path)
    pad, eos = tokenizer.pad, tokenizer.eos
    config = transformers.MarianConfig(
        vocab_size=tokenizer.vocab_size, d_model=32, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64,
        decoder_ffn_dim=64, max_position_embeddings=64, pad_token_id=pad, eos_token_id=eos,
        decoder_start_token_id=pad, scale_embedding=True,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.MarianMTModel(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
        model.final_logits_bias[0, eos] = 1.5
    model.generation_config = transformers.GenerationConfig(
        decoder_start_token_id=pad, eos_token_id=eos, pad_token_id=pad, num_beams=3,
        bad_words_ids=[[pad]], max_length=64, early_stopping=True,
    )  # fmt: skip
    model.save_pretrained(path)
    return path


def test_translations_match_transformers(folder: Path, english: list[str]) -> None:
    """The model directory specifies beams, EOS tokens and forbidden tokens."""
    hf_model = transformers.MarianMTModel.from_pretrained(folder)
    with warnings.catch_warnings(action="ignore"):  # transformers recommends another package
        hf_tokenizer = transformers.MarianTokenizer.from_pretrained(folder)
    texts = [text for text in sentences(english) if len(text) < 80][:12]
    writer = bertkit.pipeline("generate", folder)
    assert writer.loaded.generation.decoding == Decoding(num_beams=3, early_stopping=True)
    ended = 0
    for text, (answer,) in zip(texts, writer(texts), strict=True):
        with warnings.catch_warnings(action="ignore"):  # transformers recommends another package
            inputs = hf_tokenizer(text, return_tensors="pt")
        written = hf_model.generate(**inputs)[0]
        if answer.ended == "end":
            assert answer.text == hf_tokenizer.decode(written, skip_special_tokens=True)
            ended += 1
    assert ended >= 4
    greedy = writer(texts, Decoding())
    assert [result.text for (result,) in greedy] != [result.text for (result,) in writer(texts)]


def test_generate_keeps_empty_lines(
    folder: Path,
    english: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = tmp_path / "text.en"
    first, second = [text for text in sentences(english) if len(text) == 60][:2]
    source.write_text(f"{first}\n\n{second}\n \n", encoding="utf-8")
    generate(str(folder), file=source)
    out = capsys.readouterr().out.split("\n")
    assert [bool(line) for line in out] == [True, False, True, False, False]
    (translation,) = bertkit.pipeline("generate", folder)([second])[0]
    assert out[2] == translation.text
    monkeypatch.setattr("sys.stdin", io.StringIO(source.read_text(encoding="utf-8")))
    generate(str(folder))
    assert capsys.readouterr().out.split("\n") == out
    generate(
        str(folder),
        file=source,
        scores=True,
        decoding=Decoding(num_beams=4, num_return_sequences=2),
    )
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [len(texts) for texts in answers] == [2, 0, 2, 0]
    assert answers[0][0]["score"] > answers[0][1]["score"]


def test_generate_reports_truncated_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x").write_text("one\nThe class statement\n", encoding="utf-8")
    decoding = Decoding(max_tokens=1, min_tokens=1)
    generate(str(folder), file=tmp_path / "x", decoding=decoding)
    assert ":2: truncated after 1 tokens, without an EOS token" in capsys.readouterr().err


def test_generate_rejects_long_source_and_missing_head(
    folder: Path, tiny: Path, tmp_path: Path
) -> None:
    writer = bertkit.pipeline("generate", folder)
    with pytest.raises(
        DataError, match=r"the source has .* tokens, but the model supports at most 64"
    ):
        writer(["short", "word " * 100])
    with pytest.raises(CheckpointError, match="has no lm head"):
        generate(str(tiny), file=tmp_path / "x")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bad_words_ids": [3]}, "bad_words_ids must be a list of lists"),
        ({"bad_words_ids": [["x"]]}, "bad_words_ids must be .* got 'x'"),
        ({"eos_token_id": -1}, "eos_token_id must be .* got -1"),
        ({"decoder_start_token_id": "a"}, "decoder_start_token_id must be .* got 'a'"),
        ({"num_beams": "three"}, "beams"),
    ],
)
def test_invalid_generation_config_is_rejected(
    folder: Path, tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    shutil.copytree(folder, tmp_path / "m")
    path = tmp_path / "m" / FILE
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**config, **changes}), encoding="utf-8")
    with pytest.raises(BertkitError, match=f"generation_config.json: .*{message}"):
        bertkit.pipeline("generate", tmp_path / "m")
