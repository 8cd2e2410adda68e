"""Tokenizers of directories with a SentencePiece model, compared with SentencePiece itself."""

from __future__ import annotations

import io
import re
import shutil
from functools import cache
from pathlib import Path

import pytest
import sentencepiece
from tests.extensions.generation.test_marian_tokenizer import ODD, sentences
from tests.factories import tiny_folder

import bertkit
from bertkit.errors import TokenizerError
from bertkit.families import DEBERTA, XLM_ROBERTA
from bertkit.storage import write_json
from bertkit.text.tokenizer import Tokenizer

transformers = pytest.importorskip("transformers", reason="pip install 'bertkit[dev]'")

FILES = {"deberta-v2": "spm.model", "xlm-roberta": "sentencepiece.bpe.model"}
PIECES = {"pad_piece": "[PAD]", "bos_piece": "[CLS]", "eos_piece": "[SEP]", "unk_piece": "[UNK]"}
SPECIALS = {
    "deberta-v2": {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3, **PIECES},
    "xlm-roberta": {"unk_id": 0, "bos_id": 1, "eos_id": 2},
}
CONTROL = re.compile(r"\[CLS\]|</?s>|<unk>|<pad>")


@cache
def trained(family: str, rule: str, texts: tuple[str, ...]) -> bytes:
    """Return a SentencePiece model that is trained on the texts."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=model, vocab_size=600,
        normalization_rule_name=rule, minloglevel=2, **SPECIALS[family],
    )  # fmt: skip
    return model.getvalue()


def write_folder(folder: Path, family: str, texts: tuple[str, ...], rule: str = "nmt_nfkc") -> Path:
    """Write config.json, and a SentencePiece model that is trained on the texts."""
    folder.mkdir()
    (folder / FILES[family]).write_bytes(trained(family, rule, texts))
    write_json(folder / "config.json", {"model_type": family})
    return folder


@pytest.fixture(scope="module")
def texts(english: list[str]) -> tuple[str, ...]:
    return tuple(sentences(english)[:1500])


@pytest.fixture(scope="module", params=FILES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(family: str, texts: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp(family) / "model", family, texts)


@pytest.mark.parametrize("rule", ["nmt_nfkc", "nmt_nfkc_cf", "identity"])
def test_tokens_match_sentencepiece(
    family: str, rule: str, texts: tuple[str, ...], tmp_path: Path
) -> None:
    folder = write_folder(tmp_path / "model", family, texts, rule)
    tokenizer = Tokenizer.load(folder)
    model = sentencepiece.SentencePieceProcessor(model_file=str(folder / FILES[family]))
    # The ids of XLM-R are those of fairseq: the padding token is inserted.
    shift = int(family == "xlm-roberta")
    upper = [text.upper() for text in texts[:100]]
    for text in (*texts[:300], *upper, *(odd for odd in ODD if not CONTROL.search(odd))):
        ids = tokenizer.encode(text).ids.tolist()
        expected = [i + shift if i != model.unk_id() else tokenizer.unk for i in model.encode(text)]
        assert ids == [tokenizer.cls, *expected, tokenizer.sep], text
        assert ids != [tokenizer.cls, *model.encode(f"{text} the"), tokenizer.sep]  # the control


def test_ids_match_transformers(folder: Path, texts: tuple[str, ...]) -> None:
    hf_tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer, mask = Tokenizer.load(folder), hf_tokenizer.mask_token
    assert tokenizer.mask == hf_tokenizer.mask_token_id
    # transformers 5 omits the normalization of DeBERTa's model, so "…" is an unknown token.
    plain = [text for text in texts if text.isascii()]
    for text, pair in zip(plain[:200], plain[200:400], strict=True):
        masked = f"{text} {mask} {pair}"
        assert tokenizer.encode(masked).ids.tolist() == hf_tokenizer(masked)["input_ids"]
        expected = hf_tokenizer(text, pair)
        assert tokenizer.encode(text, pair).ids.tolist() == expected["input_ids"]
        types = expected.get("token_type_ids", [0] * len(expected["input_ids"]))
        assert tokenizer.encode(text, pair).types.tolist() == types


def test_saved_tokenizer_has_the_same_ids(
    folder: Path, texts: tuple[str, ...], tmp_path: Path
) -> None:
    tokenizer = Tokenizer.load(folder)
    tokenizer.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert again.fingerprint == tokenizer.fingerprint
    hf_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in (text for text in texts[:100] if text.isascii()):
        ids = tokenizer.encode(text).ids.tolist()
        assert again.encode(text).ids.tolist() == ids == hf_tokenizer(text)["input_ids"]


def test_model_loads_without_tokenizer_json(folder: Path, family: str, tmp_path: Path) -> None:
    expected = Tokenizer.load(folder)
    families = {"deberta-v2": DEBERTA, "xlm-roberta": XLM_ROBERTA}
    model = tiny_folder(tmp_path / "model", expected, "mlm", family=families[family])
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (model / name).unlink()
    shutil.copy(folder / FILES[family], model)
    assert bertkit.load(model).tokenizer.fingerprint == expected.fingerprint


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"do_lower_case": True}, "do_lower_case = True contradicts"),
        ({"split_by_punct": True}, "split_by_punct = True contradicts"),
        ({"unk_token": "[NONE]"}, r"no unk token \(\[NONE\]\)"),
        ({"tokenizer_class": "AlbertTokenizer"}, r"'AlbertTokenizer' is not supported with spm"),
    ],
)
def test_unsupported_setting_is_rejected(
    settings: dict[str, object], message: str, texts: tuple[str, ...], tmp_path: Path
) -> None:
    folder = write_folder(tmp_path / "model", "deberta-v2", texts)
    write_json(folder / "tokenizer_config.json", {"do_lower_case": False, "vocab_type": "spm"})
    Tokenizer.load(folder)
    write_json(folder / "tokenizer_config.json", settings)
    with pytest.raises(TokenizerError, match=message):
        Tokenizer.load(folder)


def test_other_models_of_the_same_file_are_rejected(texts: tuple[str, ...], tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", "xlm-roberta", texts)
    write_json(folder / "config.json", {"model_type": "camembert"})
    with pytest.raises(TokenizerError, match=r"'CamembertTokenizer' is not supported with sent"):
        Tokenizer.load(folder)
    write_json(folder / "config.json", {"model_type": "xlm-roberta"})
    other = write_folder(tmp_path / "other", "deberta-v2", texts)
    shutil.copy(other / "spm.model", folder / FILES["xlm-roberta"])
    with pytest.raises(TokenizerError, match=r"bpe\.model: must begin with <unk>, <s>, </s>"):
        Tokenizer.load(folder)
