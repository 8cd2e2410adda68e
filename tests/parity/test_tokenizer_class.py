"""Directories without tokenizer.json: bertkit matches the named class or rejects it."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from bertkit.errors import TokenizerError
from bertkit.text.tokenizer import Tokenizer

transformers = pytest.importorskip("transformers", reason="pip install 'bertkit[dev]'")
auto = transformers.models.auto.tokenization_auto

TEXTS = ["The café is open", "THE Cat's <mask> [MASK] sat.", "naïve 東京 a", "  the  cat ", ""]
PAIRS = [("the cat", "A café"), ("sat", "")]
WORDS = ["the", "cat", "The", "cafe", "café", "sat", "is", "open", ".", "'", "a", "s", "東", "京"]


def vocab_txt(folder: Path) -> None:
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<s>", "</s>", "<pad>", "<mask>"]
    tokens = [*specials, "<unk>", *WORDS, *(f"##{word}" for word in WORDS)]
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")


def merges_txt(folder: Path, *, words: bool = False) -> None:
    end = {"end_of_word_suffix": "</w>"} if words else {}
    core = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", **end))
    core.pre_tokenizer = (
        pre_tokenizers.BertPreTokenizer() if words else pre_tokenizers.ByteLevel()  # type: ignore[assignment]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=360,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>", "<|endoftext|>"],
        initial_alphabet=[] if words else pre_tokenizers.ByteLevel.alphabet(),
        **end,
        show_progress=False,
    )
    core.train_from_iterator([text.lower() if words else text for text in TEXTS * 3], trainer)
    core.model.save(str(folder))


FILES: dict[str, Any] = {
    "vocab.txt": vocab_txt,
    "merges.txt": merges_txt,
    "words": lambda folder: merges_txt(folder, words=True),
}
SUPPORTED = {
    "vocab.txt": {
        *("BertTokenizer", "BertTokenizerFast", "DistilBertTokenizer", "ElectraTokenizer"),
        "MPNetTokenizer",
    },
    "merges.txt": {"RobertaTokenizer", "BartTokenizer", "GPT2Tokenizer", "GPT2TokenizerFast"},
    "words": {"OpenAIGPTTokenizer"},
}


def classes(file: str) -> list[str]:
    """Return the names of transformers classes that read the file."""
    names = set()
    for name in {*filter(None, auto.TOKENIZER_MAPPING_NAMES.values())}:
        tokenizer_class = auto.tokenizer_class_from_name(name)
        if file in getattr(tokenizer_class, "vocab_files_names", {}).values():
            names.add(name)
    return sorted(names)


def equal_ids(folder: Path) -> None:
    bertkit_tokenizer, hf_tokenizer = (
        Tokenizer.load(folder),
        transformers.AutoTokenizer.from_pretrained(folder),
    )
    for text in TEXTS:
        assert bertkit_tokenizer.encode(text).ids.tolist() == hf_tokenizer(text)["input_ids"], text
    for text, pair in PAIRS:
        assert (
            bertkit_tokenizer.encode(text, pair).ids.tolist()
            == hf_tokenizer([text], [pair])["input_ids"][0]
        )


def name_class(folder: Path, name: str, settings_file: str = "tokenizer_config.json") -> None:
    settings: dict[str, Any] = {"tokenizer_class": name}
    if settings_file == "tokenizer_config.json":
        (folder / "config.json").write_text('{"model_type": "bert"}', encoding="utf-8")
        settings["do_lower_case"] = False
    else:
        (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}', encoding="utf-8")
        settings["model_type"] = "bert"
    (folder / settings_file).write_text(json.dumps(settings), encoding="utf-8")


@pytest.mark.parametrize("file", FILES)
def test_class_matches_transformers_or_is_rejected(file: str, tmp_path: Path) -> None:
    FILES[file](tmp_path)
    names = {*classes("merges.txt" if file == "words" else file), *SUPPORTED[file]}
    for name in sorted(names):
        name_class(tmp_path, name)
        if name in SUPPORTED[file]:
            equal_ids(tmp_path)
        else:
            with contextlib.suppress(TokenizerError):
                Tokenizer.load(tmp_path)
                equal_ids(tmp_path)
    assert len(names) >= 10


@pytest.mark.parametrize("settings_file", ["tokenizer_config.json", "config.json"])
@pytest.mark.parametrize(
    ("file", "name"),
    [("vocab.txt", "BertJapaneseTokenizer"), ("vocab.txt", "RoFormerTokenizer"),
     ("vocab.txt", "RobertaTokenizer"), ("merges.txt", "HerbertTokenizer"),
     ("merges.txt", "Qwen2TokenizerFast"), ("merges.txt", "BertTokenizer"),
     ("merges.txt", "PreTrainedTokenizerFast")],
)  # fmt: skip
def test_unsupported_class_is_rejected_with_remedy(
    settings_file: str, file: str, name: str, tmp_path: Path
) -> None:
    FILES[file](tmp_path)
    name_class(tmp_path, name, settings_file)
    with pytest.raises(TokenizerError, match=rf"'{name}' is not supported with {file}.*save_pretr"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    ("file", "model_type"),
    [
        *(("vocab.txt", name) for name in ("bert", "mpnet", "electra", "distilbert")),
        *(("merges.txt", name) for name in ("roberta", "bart", "gpt2")),
        ("words", "openai-gpt"),
    ],
)
def test_model_type_selects_the_class(file: str, model_type: str, tmp_path: Path) -> None:
    FILES[file](tmp_path)
    settings = {"do_lower_case": False}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}), encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    equal_ids(tmp_path)


def test_control_two_classes_have_different_ids(tmp_path: Path) -> None:
    vocab_txt(tmp_path)
    pairs = []
    for name in ("BertTokenizer", "MPNetTokenizer"):
        name_class(tmp_path, name)
        pairs.append(Tokenizer.load(tmp_path).encode("the", "cat").ids.tolist())
    assert pairs[0] != pairs[1]
