"""Each key of tokenizer_config.json and special_tokens_map.json: equal ids or an error."""

from __future__ import annotations

import inspect
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tests.parity.test_tokenizer import in_two_files

from bertkit.errors import BertkitError
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.tokenizer_classes import KEYS
from bertkit.text.vocabulary_training import train

transformers = pytest.importorskip("transformers", reason="pip install 'bertkit[dev]'")

CONFIG, SPECIALS = "tokenizer_config.json", "special_tokens_map.json"
TEXTS = [
    "The Café's naïve VALUE, a  class.",
    "[MASK] the <mask> of </s> [SEP] a",
    "The name<new> is <extra_id_3> bound<b>. 東京 values and objects of a class",
    " the class",
    "",
]
PAIRS = [("The class of a value", "is a Name"), ("a b", "")]
TOKEN = {"content": "the", "lstrip": True, "rstrip": True, "single_word": False}
TOKEN |= {"normalized": False, "special": True}


def byte_pairs(texts: list[str], *specials: str, end: str = "") -> dict[str, Any]:
    """Return the vocabulary and merges of a BPE with other special tokens."""
    model = json.loads(train(texts, kind="bpe", size=500).core.to_str())["model"]
    unigram = [token for token in model["vocab"] if token[0] not in "<["]
    vocab = {token: i for i, token in enumerate([*specials, *unigram])}
    return {"vocab": vocab, "merges": [tuple(pair) for pair in model["merges"]]}


def unigram(texts: list[str], *specials: str) -> dict[str, Any]:
    """Return the vocabulary of a Unigram model with other special tokens."""
    model = json.loads(train(texts, kind="unigram", size=400).core.to_str())["model"]
    scored = [(token, score) for token, score in model["vocab"] if token[0] not in "<["]
    return {"vocab": [*((token, 0.0) for token in specials), *scored]}


def words(texts: list[str], *specials: str) -> dict[str, Any]:
    vocab = json.loads(train(texts, kind="wordpiece", size=400).core.to_str())["model"]["vocab"]
    names = [*specials, *(token for token in vocab if token[0] not in "<[")]
    return {"vocab": {token: i for i, token in enumerate(names)}}


def letters(texts: list[str]) -> dict[str, Any]:
    """Return the vocabulary of GPT without merges."""
    known = sorted({letter for text in texts for letter in text.lower() if letter.isalpha()})
    names = ["<unk>", *known, *(f"{letter}</w>" for letter in known)]
    merges = [("t", "h"), ("th", "e</w>")]
    return {"vocab": {n: i for i, n in enumerate([*names, "th", "the</w>"])}, "merges": merges}


ROBERTA = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
BERT = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CLASSES: dict[str, Any] = {
    "bert": ("BertTokenizer", words, BERT),
    "distilbert": ("DistilBertTokenizer", words, BERT),
    "mpnet": ("MPNetTokenizer", words, ("<s>", "<pad>", "</s>", "[UNK]", "<mask>")),
    "roberta": ("RobertaTokenizer", byte_pairs, ROBERTA),
    "gpt2": ("GPT2Tokenizer", byte_pairs, ("<|endoftext|>", "<s>")),
    "openai-gpt": ("OpenAIGPTTokenizer", letters, ()),
    "albert": ("AlbertTokenizer", unigram, ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")),
    "xlm-roberta": ("XLMRobertaTokenizer", unigram, ("<s>", "<pad>", "</s>", "<unk>", "<mask>")),
    "camembert": ("CamembertTokenizer", unigram, ("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>",
                  "<unk>NOTUSED", "<s>", "</s>", "<mask>")),
    "deberta-v2": ("DebertaV2Tokenizer", unigram, ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]")),
    "t5": ("T5Tokenizer", unigram, ("<pad>", "</s>", "<unk>")),
    "llama": ("LlamaTokenizer", byte_pairs, ("<unk>", "<s>", "</s>")),
}  # fmt: skip
OLDER = ("bert", "distilbert", "mpnet", "roberta", "gpt2", "openai-gpt")
"""Classes that bertkit builds without tokenizer.json."""

BOOLEANS: list[Any] = [True, False]
VALUES: dict[str, list[Any]] = {
    **{f"{role}_token": ["the", "<s>", None] for role in
       ("bos", "eos", "unk", "sep", "pad", "cls", "mask")},
    **dict.fromkeys(("do_lower_case", "tokenize_chinese_chars", "strip_accents"), BOOLEANS),
    **dict.fromkeys(("keep_accents", "split_by_punct", "legacy", "trim_offsets"), BOOLEANS),
    "add_prefix_space": [True, False, None],
    **dict.fromkeys(("add_bos_token", "add_eos_token"), BOOLEANS),
    "additional_special_tokens": [["the"], ["<new>"], [TOKEN | {"__type": "AddedToken"}]],
    "extra_special_tokens": [["the", "a"], {"image_token": "the"}, []],
    "model_specific_special_tokens": [{"image_token": "the"}],
    "image_token": ["the", "<new>"],
    "added_tokens_decoder": [{}, "flags", "more"],
    "model_max_length": [8, 1e30, None],
    "max_len": [8],
    "model_input_names": [["input_ids", "attention_mask"],
                          ["input_ids", "token_type_ids", "attention_mask"]],
    "truncation_side": ["left", "right"],
    "padding_side": ["left"],
    "split_special_tokens": [True],
    "clean_up_tokenization_spaces": BOOLEANS,
    "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output": [True],
    "chat_template": ["{{ messages }}"],
    "response_template": ["x"],
    "response_schema": [{}],
    "chat_control_tokens": [["the"]],
    "processor_class": ["X"],
    "name_or_path": ["x"],
    "verbose": [True],
    "backend": ["tokenizers", "sentencepiece"],
    "files_loaded": [["x"]],
    "errors": ["strict", "ignore"],
    "extra_ids": [3, 10],
    "unk_id": [0, 2],
    "use_default_system_prompt": [True],
    "fix_mistral_regex": [True],
    "vocab": [{"the": 0}],
    "merges": [[]],
    "vocab_file": ["elsewhere.txt"],
    "tokenizer_file": ["elsewhere.json"],
    "tokenizer_object": ["x"],
    "gguf_file": ["x.gguf"],
    "post_processor": ["x"],
    "tokenizer_truncation": [{"direction": "left", "max_length": 6, "strategy": "longest_first",
                              "stride": 0}],
    "tokenizer_padding": [{"length": 64, "direction": "left", "pad_id": 0, "pad_token": "a",
                           "pad_type_id": 0, "pad_to_multiple_of": None}],
    "_json_truncation": [{"direction": "left", "max_length": 6, "strategy": "longest_first",
                          "stride": 0}],
    "_json_padding": [None],
    "_spm_precompiled_charsmap": ["x"],
    "init_inputs": [[{"the": 0}]],
    "do_basic_tokenize": [False],
    "never_split": [["The"]],
    "sp_model_kwargs": [{"enable_sampling": True}, {}],
    "pad_token_type_id": [1],
    "max_length": [4],
    "stride": [2],
    "truncation_strategy": ["only_first"],
    "pad_to_multiple_of": [8],
    "auto_map": [None],
}  # fmt: skip
INTERNAL = {"trust_remote_code", "tokenizer", "max_length", "tokenizer_config_file", "special"}
"""Arguments that transformers passes itself, independent of the file."""


def keys_of_transformers(name: str) -> set[str]:
    """Return the settings of a transformers class, found in its signature and code."""
    found = set()
    for base in getattr(transformers, name).__mro__:
        if not base.__module__.startswith("transformers.") or "__init__" not in vars(base):
            continue
        found |= {*inspect.signature(base.__init__).parameters}
        source = inspect.getsource(base.__init__)
        found |= {*re.findall(r'kwargs\.(?:pop|get|setdefault)\(\s*"(\w+)"', source)}
    loading = inspect.getsource(transformers.PreTrainedTokenizerBase._from_pretrained)
    found |= {*re.findall(r'init_kwargs(?:\.pop|\.get)\(\s*"(\w+)"', loading)}
    found |= {*re.findall(r'"(\w+)" in init_kwargs', loading)}
    found |= {*transformers.PreTrainedTokenizerBase.SPECIAL_TOKENS_ATTRIBUTES}
    return found - {"self", "args", "kwargs", "tokenizer_class"} - INTERNAL


@pytest.mark.parametrize("name", CLASSES)
def test_transformers_keys_are_covered(name: str) -> None:
    keys = keys_of_transformers(CLASSES[name][0])
    assert len(keys) > 20
    assert keys - {*KEYS.applied, *KEYS.irrelevant, *KEYS.neutral} == set()
    assert keys - VALUES.keys() == set()


@pytest.fixture(scope="module")
def originals(english: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a directory for each class with transformers, and another without tokenizer.json."""
    root = tmp_path_factory.mktemp("settings")
    for name, (class_name, build, specials) in CLASSES.items():
        vocabulary = build(english[:10], *specials)
        more = {"extra_ids": 5} if name == "t5" else {}
        tokenizer = getattr(transformers, class_name)(**vocabulary, **more)
        tokenizer.save_pretrained(root / name)
        settings = {"model_type": name, "transformers_version": "5.0.0"}
        (root / name / "config.json").write_text(json.dumps(settings), encoding="utf-8")
        if name == "bert":
            shutil.copytree(root / name, root / "fast")
            edit(root / "fast", CONFIG, "tokenizer_class", "PreTrainedTokenizerFast")
        if name in OLDER:
            shutil.copytree(root / name, root / f"{name}-older")
            if "merges" in vocabulary:
                in_two_files(root / f"{name}-older")
            else:
                (root / f"{name}-older" / "tokenizer.json").unlink()
                lines = "".join(f"{token}\n" for token in vocabulary["vocab"])
                (root / f"{name}-older" / "vocab.txt").write_text(lines, encoding="utf-8")
    return root


def edit(folder: Path, file: str, key: str, value: Any) -> None:
    path = folder / file
    content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if key == "added_tokens_decoder" and value:
        added = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]
        decoder = {str(token.pop("id")): token for token in added}
        for token in list(decoder.values()) if value == "flags" else ():
            token |= {"lstrip": not token["lstrip"], "rstrip": not token["rstrip"]}
        if value == "more":
            decoder["7"] = TOKEN | {"content": "the"}
        value = decoder
    content[key] = value
    path.write_text(json.dumps(content), encoding="utf-8")


def read_by_transformers(folder: Path, *, truncated: bool = True) -> Any:
    """Return the ids and segments of transformers, or None if it cannot load the directory."""
    try:
        peer = transformers.AutoTokenizer.from_pretrained(folder)
        found = []
        for texts in [(text,) for text in TEXTS] + PAIRS:
            batch = [[text] for text in texts]
            encoded = peer(*batch)
            ids = encoded["input_ids"][0]
            found.append((ids, encoded.get("token_type_ids", [[0] * len(ids)])[0]))
            found.append((peer(*batch, truncation=True, max_length=7)["input_ids"][0], []))
        return found
    # Another library can raise any error.
    except Exception:
        return None


def read_by_bertkit(folder: Path) -> Any:
    tokenizer, found = Tokenizer.load(folder), []
    for texts in [(text,) for text in TEXTS] + PAIRS:
        encoding = tokenizer.encode(*texts, max_length=10**6)
        found.append((encoding.ids.tolist(), encoding.types.tolist()))
        cut = tokenizer.encode(*texts, max_length=7, truncate="longest")
        found.append((cut.ids.tolist(), []))
    return found


def differences(folder: Path) -> Iterator[str]:
    """Yield where bertkit and transformers differ; nothing if either rejects the directory."""
    try:
        bertkit_output = read_by_bertkit(folder)
    except BertkitError:
        return
    hf_output = read_by_transformers(folder)
    if hf_output is None:
        return
    for (ids, types), (expected, segments) in zip(bertkit_output, hf_output, strict=True):
        if ids != expected or (segments and types != segments):
            yield f"{ids} {types} instead of {expected} {segments}"


KINDS = [*CLASSES, "fast", *(f"{name}-older" for name in OLDER)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("file", [CONFIG, SPECIALS])
@pytest.mark.parametrize("kind", KINDS)
def test_changed_key_matches_transformers_or_is_rejected(
    kind: str, file: str, originals: Path, tmp_path: Path
) -> None:
    assert list(differences(originals / kind)) == []
    assert read_by_transformers(originals / kind) is not None
    wrong = {}
    for key, values in VALUES.items():
        # A path that does not exist stops transformers from looking for the vocabulary.
        if "older" in kind and key in ("added_tokens_decoder", "tokenizer_file"):
            continue
        for number, value in enumerate(values):
            if file == SPECIALS and "token" not in key:
                continue
            folder = tmp_path / f"{key}-{number}"
            shutil.copytree(originals / kind, folder)
            edit(folder, file, key, value)
            found = list(differences(folder))
            if found:
                wrong[f"{key} = {value}"] = found[0]
    assert wrong == {}


PARTS: list[tuple[str, str, Any]] = [
    ("bert", "normalizer", {"type": "Lowercase"}),
    ("bert", "pre_tokenizer", {"type": "WhitespaceSplit"}),
    ("bert", "post_processor", {"type": "RobertaProcessing", "sep": ["[SEP]", 3],
     "cls": ["[CLS]", 2], "trim_offsets": True, "add_prefix_space": False}),
    ("roberta", "normalizer", {"type": "NFKC"}),
    ("roberta", "post_processor", {"type": "BertProcessing", "sep": ["</s>", 2],
     "cls": ["<s>", 0]}),
    ("xlm-roberta", "pre_tokenizer", {"type": "Metaspace", "replacement": "▁",
     "prepend_scheme": "always", "split": True}),
]  # fmt: skip
"""Parts of tokenizer.json that the class in transformers 5 does not use."""


@pytest.mark.parametrize(("kind", "part", "value"), PARTS)
def test_part_that_transformers_replaces_is_reported(
    kind: str, part: str, value: Any, originals: Path, tmp_path: Path, capsys: Any
) -> None:
    shutil.copytree(originals / kind, tmp_path / "model")
    assert list(differences(tmp_path / "model")) == []
    assert "warning" not in capsys.readouterr().err
    edit(tmp_path / "model", "tokenizer.json", part, value)
    read_by_bertkit(tmp_path / "model")
    assert f"bertkit uses its {part}, but transformers 5" in capsys.readouterr().err
    edit(tmp_path / "model", CONFIG, "tokenizer_class", "PreTrainedTokenizerFast")
    assert list(differences(tmp_path / "model")) == []
    assert "warning" not in capsys.readouterr().err


def test_dropout_of_merges_is_off(originals: Path, tmp_path: Path) -> None:
    shutil.copytree(originals / "roberta", tmp_path / "model")
    path = tmp_path / "model" / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["model"]["dropout"] = 0.9
    path.write_text(json.dumps(content), encoding="utf-8")
    assert list(differences(tmp_path / "model")) == []
    core = tokenizers.Tokenizer.from_file(str(path))
    random = {str(core.encode(TEXTS[0]).ids) for _ in range(9)}
    assert len(random) > 1  # the control


def test_comparison_detects_ignored_settings(originals: Path, tmp_path: Path) -> None:
    shutil.copytree(originals / "roberta", tmp_path / "model")
    before = read_by_bertkit(tmp_path / "model")
    edit(tmp_path / "model", CONFIG, "add_prefix_space", True)
    assert read_by_transformers(tmp_path / "model") != before
    assert list(differences(tmp_path / "model")) == []
