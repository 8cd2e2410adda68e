"""Bad input: commands print one clear message, exit with code 2, and change no files."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from bertkit import cli

Edit = Callable[[Path], None]


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()
    }


# ---- Text


TEXTS: dict[str, tuple[bytes | None, str]] = {
    "missing.txt": (None, "missing.txt: no such file"),
    "empty.txt": (b"", "empty.txt: the file is empty"),
    "blank.txt": (b" \n\n", "blank.txt: the file contains no text"),
    "binary.txt": (b"abc\ndef\0ghi", "binary.txt:2: binary file (zero byte at byte 7)"),
    "latin.txt": ("Ein Satz.\nKäse".encode("latin-1"), "latin.txt:2: not UTF-8 (0xe4 at byte 11)"),
    "wide.txt": ("text".encode("utf-16"), "wide.txt:1: expected UTF-8, got UTF-16"),
    "rows.jsonl": (b'{"text": "a"}\n{"txt": "b"}\n', "rows.jsonl:2: no field 'text'"),
    "cut.txt.gz": (b"\x1f\x8b\x08\x00", "cut.txt.gz: damaged or truncated"),
    "image.png": (b"\x89PNG", "image.png: unsupported file type"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_text_commands_reject_unreadable_file(
    name: str, world: Any, run_rejected: Any, tmp_path: Path
) -> None:
    content, sentence = TEXTS[name]
    if content is not None:
        (tmp_path / name).write_bytes(content)
    out = tmp_path / "out"
    assert sentence in run_rejected(
        "tokenizer", "train", tmp_path / name, "--out", out, "--size", 300
    )
    command = ("prepare", tmp_path / name, "--tokenizer", world.vocab, "--out", out)
    assert sentence in run_rejected(*command, "--processes", 1)
    assert not out.exists()


def test_tokenizer_train_rejects_too_small_vocabulary(
    world: Any, run_rejected: Any, tmp_path: Path
) -> None:
    message = run_rejected(
        "tokenizer", "train", world.texts, "--out", tmp_path / "vocab", "--size", 4
    )
    assert "size must be at least" in message
    assert not (tmp_path / "vocab").exists()


def test_prepare_rejects_vocabulary_without_special_tokens(
    world: Any, run_rejected: Any, tmp_path: Path
) -> None:
    (tmp_path / "vocab.txt").write_text("a\nb\n", encoding="utf-8")
    command = ("prepare", world.texts, "--tokenizer", tmp_path, "--out", tmp_path / "corpus")
    assert "vocab.txt" in run_rejected(*command)
    assert not (tmp_path / "corpus").exists()


# ---- Pretraining: settings


SETTINGS = [
    (["--model.hiden", "3"], "model.hiden: no such setting; did you mean 'hidden'?"),
    (["--train.stepz=3"], "train.stepz: no such setting; did you mean 'steps'?"),
    (["--trian.steps", "3"], "trian: no such setting; did you mean 'train'?"),
    (["--model.hidden", "wide"], "model.hidden: expected `int`, got `str`"),
    (["--model.heads", "3"], "hidden must be a multiple of heads (3), got 32"),
    (["--sampling.length", "65"], "sampling.length must be at most model.max_positions"),
    (["--sampling.first_length", "99"], "sampling.first_length must be at most"),
    (["--model.vocab", "7"], "model.vocab must be at least the tokenizer's"),
    (["--train.device", "warp"], "train.device: 'warp' cannot be used"),
    (["--train.device", "cuda:99"], "train.device: 'cuda:99' cannot be used"),
    (["--train.steps"], "--train.steps: a value is missing"),
    (["--train.steps.more", "1"], "train.steps.more: 'steps' is a value"),
    (["--resum"], "did you mean '--resume'?"),
    (["stray"], "'stray': not a setting"),
]


@pytest.mark.parametrize(("words", "sentence"), SETTINGS, ids=lambda value: str(value)[:30])
def test_pretrain_rejects_invalid_setting(
    words: list[str], sentence: str, world: Any, run_rejected: Any, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    message = run_rejected("pretrain", world.config, "--corpus", world.corpus, "--out", out, *words)
    assert sentence in message
    assert not out.exists()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "run.toml: no such file"),
        (b"[model\n", "run.toml: not valid TOML"),
        (b"\xff\xfe", "run.toml: cannot be read"),
        (b"[model]\nlayers = 1\n", "train: this setting is required"),
        (b"model = 3\n[train]\nsteps = 1\n", "model: expected a group of settings"),
        (b"", "this setting is required"),
    ],
)
def test_pretrain_rejects_invalid_run_file(
    content: bytes | None, sentence: str, world: Any, run_rejected: Any, tmp_path: Path
) -> None:
    path = tmp_path / "run.toml"
    if content is not None:
        path.write_bytes(content)
    out = tmp_path / "out"
    assert sentence in run_rejected("pretrain", path, "--corpus", world.corpus, "--out", out)
    assert not out.exists()


# ---- Pretraining: corpora and runs


def test_pretrain_rejects_single_document_for_next_sentences(
    world: Any, run_rejected: Any, english: list[str], tmp_path: Path
) -> None:
    (tmp_path / "one.txt").write_text(english[0], encoding="utf-8")
    corpus, out = tmp_path / "corpus", tmp_path / "run"
    made = ["prepare", tmp_path / "one.txt", "--tokenizer", world.vocab, "--out", corpus]
    assert cli.run([str(word) for word in made]) == 0
    message = run_rejected("pretrain", world.config, "--corpus", corpus, "--out", out)
    assert "requires at least 2 documents, got 1" in message
    assert not out.exists()


def lose_manifest(corpus: Path) -> None:
    (corpus / "manifest.json").unlink()


def cut_tokens(corpus: Path) -> None:
    path = corpus / "shard-00000.tokens"
    path.write_bytes(path.read_bytes()[:-2])


def lose_sentences(corpus: Path) -> None:
    (corpus / "shard-00000.sentences").unlink()


def truncate_manifest(corpus: Path) -> None:
    (corpus / "manifest.json").write_text('{"format": 1', encoding="utf-8")


def other_tokenizer(corpus: Path) -> None:
    path = corpus / "tokenizer" / "tokenizer.json"
    spec = json.loads(path.read_text(encoding="utf-8"))
    vocab = spec["model"]["vocab"]
    first, second = list(vocab)[10:12]
    vocab[first], vocab[second] = vocab[second], vocab[first]
    path.write_text(json.dumps(spec), encoding="utf-8")


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (lose_manifest, "not a corpus"),
        (cut_tokens, "shard-00000.tokens: expected "),
        (lose_sentences, "shard-00000.sentences: file not found"),
        (truncate_manifest, "not a valid manifest"),
        (other_tokenizer, "differs from the tokenizer in the manifest"),
    ],
)
def test_pretrain_rejects_modified_corpus(
    edit: Edit, sentence: str, world: Any, run_rejected: Any, tmp_path: Path
) -> None:
    corpus, out = tmp_path / "corpus", tmp_path / "run"
    shutil.copytree(world.corpus, corpus)
    edit(corpus)
    assert sentence in run_rejected("pretrain", world.config, "--corpus", corpus, "--out", out)
    assert not out.exists()


@pytest.fixture(scope="module")
def run(world: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two steps."""
    out = tmp_path_factory.mktemp("runs") / "run"
    words = ["pretrain", world.config, "--corpus", world.corpus, "--out", out]
    assert cli.run([str(w) for w in [*words, "--train.steps", "2"]]) == 0
    return out


def other_corpus(world: Any, folder: Path, size: int) -> Path:
    """Return a corpus with a vocabulary of another size or, if `size` is 300, fewer texts."""
    texts, vocab = world.texts, world.vocab
    if size != 300:
        vocab = folder / "vocab"
        words = ["tokenizer", "train", texts, "--out", vocab, "--size", size]
        assert cli.run([str(word) for word in words]) == 0
    else:
        texts = folder / "texts"
        shutil.copytree(world.texts, texts)
        (texts / "00.txt").unlink()
    words = ["prepare", texts, "--tokenizer", vocab, "--out", folder / "corpus", "--processes", 1]
    assert cli.run([str(word) for word in words]) == 0
    return folder / "corpus"


@pytest.mark.parametrize(
    ("size", "sentence"), [(280, "the tokenizer differs from"), (300, "the corpus differs from")]
)
def test_resume_rejects_different_corpus(
    size: int, sentence: str, run: Path, world: Any, run_rejected: Any, tmp_path: Path
) -> None:
    corpus = other_corpus(world, tmp_path, size)
    before = tree(run)
    words = ("pretrain", world.config, "--corpus", corpus, "--out", run, "--resume")
    assert sentence in run_rejected(*words, "--train.steps", "2")
    assert tree(run) == before


def test_pretrain_keeps_existing_run_unchanged(run: Path, world: Any, run_rejected: Any) -> None:
    before = tree(run)
    words = ("pretrain", world.config, "--corpus", world.corpus, "--out", run)
    assert "resume a stopped run with --resume" in run_rejected(*words, "--train.steps", "2")
    message = run_rejected(*words, "--resume", "--train.steps", "2", "--train.learning_rate", "1.0")
    assert "train.learning_rate (was 0.001): changed" in message
    assert "model.layers (was 1)" in run_rejected(*words, "--resume", "--model.layers", "2")
    assert tree(run) == before


def test_resume_rejects_directory_without_run(
    world: Any, run_rejected: Any, tmp_path: Path
) -> None:
    words = ("pretrain", world.config, "--corpus", world.corpus, "--resume", "--out")
    assert "contains no run to resume" in run_rejected(*words, tmp_path / "none")
    assert not (tmp_path / "none").exists()
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    assert "contains no run to resume" in run_rejected(*words, tmp_path / "file")
    assert (tmp_path / "file").read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"config": 3}'])
def test_resume_rejects_damaged_run_record(
    content: str, run: Path, world: Any, run_rejected: Any, tmp_path: Path
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    (copy / "run.json").write_text(content, encoding="utf-8")
    words = ("pretrain", world.config, "--corpus", world.corpus, "--out", copy, "--resume")
    assert re.search("run.json: (damaged|invalid JSON)", run_rejected(*words))


# ---- Model directories


def edit_config(**changes: Any) -> Edit:
    def edit(folder: Path) -> None:
        path = folder / "config.json"
        config = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps({**config, **changes}), encoding="utf-8")

    return edit


def edit_weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Edit:
    def edit(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        change(weights)
        save_file(weights, folder / "model.safetensors")

    return edit


def write(name: str, content: bytes) -> Edit:
    def edit(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return edit


def only_pickle(name: str) -> Edit:
    def edit(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / name)

    return edit


def only_index(content: bytes) -> Edit:
    def edit(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors.index.json").write_bytes(content)

    return edit


def shorten(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


QUERY = "bert.encoder.layer.0.attention.self.query.weight"
LAYER = "bert.encoder.layer.0.output.dense.weight"
FOLDERS: dict[str, tuple[Edit, str]] = {
    "missing weight": (edit_weights(lambda w: w.pop(LAYER)), f"missing {LAYER}"),
    "extra weight": (
        edit_weights(lambda w: w.update({"bert.extra.weight": torch.ones(1)})),
        "unknown bert.extra.weight",
    ),
    "reshaped weight": (
        edit_weights(lambda w: w.update({LAYER: torch.ones(3, 3)})),
        f"{LAYER} has shape 3×3, expected 16×32",
    ),
    "weights of one matrix apart": (
        edit_weights(lambda w: w.update({QUERY: torch.ones(16, 8)})),
        f"{QUERY} [16, 8], ",
    ),
    "a weight of no dimension": (
        edit_weights(lambda w: w.update({QUERY.replace("weight", "bias"): torch.ones(())})),
        "incompatible shapes",
    ),
    "truncated": (shorten, "model.safetensors: truncated or invalid"),
    "empty weights": (write("model.safetensors", b""), "model.safetensors: truncated or invalid"),
    "pickle .bin": (
        only_pickle("pytorch_model.bin"),
        "pytorch_model.bin: not a readable state dict",
    ),
    "pickle .pt": (only_pickle("model.pt"), "model.pt: not a readable state dict"),
    "no weights": (only_pickle("model.old"), "no model.safetensors"),
    "remote code": (edit_config(auto_map={"AutoModel": "x.Y"}), "auto_map requires remote code"),
    "code of another than GTE's": (
        edit_config(model_type="new", auto_map={"AutoModel": "other/code--modeling.NewModel"}),
        "auto_map requires remote code",
    ),
    "unknown family": (edit_config(model_type="berd"), "did you mean 'bert'?"),
    "family of no kind": (edit_config(model_type=["bert"]), "model_type = ['bert']"),
    "too many layers": (edit_config(num_hidden_layers=10**9), "layers: expected `int` <= 1000"),
    "a word for a number": (edit_config(hidden_size="wide"), "hidden: expected `int`"),
    "labels without numbers": (
        edit_config(id2label={"a": "b"}),
        "id2label must be an object with numbers as keys",
    ),
    "heads of no kind": (edit_config(bertkit={"heads": [1]}), "bertkit.heads must be a list"),
    "bertkit of no kind": (edit_config(bertkit=3), "bertkit.heads must be a list"),
    "config cut": (write("config.json", b'{"model_type": "be'), "config.json: invalid JSON"),
    "config too deep": (write("config.json", b"[" * 100_000), "config.json: invalid JSON"),
    "config binary": (write("config.json", b"\xff\x00"), "config.json: invalid JSON"),
    "config a list": (write("config.json", b"[]"), "config.json: expected a JSON object, got list"),
    "no config": (lambda folder: (folder / "config.json").unlink(), "no model found"),
    "tokenizer cut": (write("tokenizer.json", b'{"version'), "tokenizer.json"),
    "index of nothing": (only_index(b"{}"), "not a valid index"),
    "index that leaves the folder": (
        only_index(b'{"weight_map": {"a": "../a.safetensors"}}'),
        "is not a file in this directory",
    ),
    "modules of no kind": (write("modules.json", b"{}"), "not a list of modules"),
    "unknown module": (
        write("modules.json", b'[{"path": "", "type": "mine.Code"}]'),
        "module 'mine.Code' is not supported",
    ),
    "module that leaves the folder": (
        write("modules.json", b'[{"path": "../x", "type": "Transformer"}]'),
        "is outside of the model directory",
    ),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_commands_reject_invalid_model_directory(
    name: str, world: Any, run_rejected: Any, tmp_path: Path
) -> None:
    edit, sentence = FOLDERS[name]
    folder = tmp_path / "model"
    shutil.copytree(world.model, folder)
    edit(folder)
    before = tree(folder)
    assert sentence in run_rejected("info", folder)
    assert sentence in run_rejected("predict", folder, "a text")
    assert tree(folder) == before


def test_info_rejects_vocabulary_of_another_model(
    world: Any, run_rejected: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(world.model, folder)
    edit_config(vocab_size=20)(folder)
    edit_weights(
        lambda w: w.update({"bert.embeddings.word_embeddings.weight": torch.ones(20, 16)})
    )(folder)
    assert "use the model's tokenizer" in run_rejected("info", folder)


@pytest.mark.parametrize("name", ["nowhere/at/all", "-x/y", "/not/here"])
def test_embed_rejects_missing_model(name: str, run_rejected: Any) -> None:
    run_rejected("embed", "--", name, "a text")


# ---- Labeled files


GOOD = "text\tlabel\na fine day\tyes\na grim day\tno\n"
LABELLED: dict[str, tuple[str | None, list[str], str]] = {
    "missing file": (None, [], "bad.tsv: no such file"),
    "empty file": ("", [], "bad.tsv: the file is empty"),
    "only a header": ("text\tlabel\n", [], "bad.tsv: only a header line"),
    "ragged": ("text\tlabel\na\tyes\nb\n", [], "bad.tsv:3: expected 2 columns"),
    "no label": ("text\tlabel\na\tyes\nb\t\n", [], "bad.tsv:3: no label"),
    "no such column": (GOOD, ["--label-column", "labl"], "no column 'labl'; did you mean 'label'?"),
    "one column": ("text\na\nb\n", [], "no column has a known name for the label"),
}


@pytest.mark.parametrize("role", ["train", "dev"])
@pytest.mark.parametrize("name", LABELLED)
def test_finetune_rejects_invalid_labeled_file(
    name: str, role: str, world: Any, run_rejected: Any, tmp_path: Path
) -> None:
    content, words, sentence = LABELLED[name]
    good, bad, out = tmp_path / "good.tsv", tmp_path / "bad.tsv", tmp_path / "out"
    good.write_text(GOOD, encoding="utf-8")
    if content is not None:
        bad.write_text(content, encoding="utf-8")
    train, dev = (bad, good) if role == "train" else (good, bad)
    command = ("finetune", "classify", "--model", world.model, "--train", train, "--dev", dev)
    assert sentence in run_rejected(*command, "--out", out, *words)
    assert not out.exists()


def test_finetune_rejects_labels_that_do_not_match(
    world: Any, run_rejected: Any, tmp_path: Path
) -> None:
    files = {
        "good": GOOD,
        "unseen": "text\tlabel\na\tyes\nb\tyess\n",
        "single": "text\tlabel\na\tyes\nb\tyes\n",
        "number": "text\tlabel\na\t1.5\nb\t2\n",
        "pairs": "sentence1\tsentence2\tlabel\na\tb\tyes\nc\td\tno\n",
    }
    paths = {}
    for name, content in files.items():
        paths[name] = tmp_path / f"{name}.tsv"
        paths[name].write_text(content, encoding="utf-8")
    out = tmp_path / "out"

    def message(train: str, dev: str, *words: object) -> str:
        command = ("finetune", "classify", "--model", world.model, "--out", out, *words)
        return str(run_rejected(*command, "--train", paths[train], "--dev", paths[dev]))

    unseen = message("good", "unseen")
    assert "unseen.tsv:3: label 'yess' is not in the training file; did you mean 'yes'?" in unseen
    assert "only one label, 'yes'" in message("single", "good")
    assert "good.tsv:2: label 'yes' is not a number" in message("number", "good")
    lone = message("pairs", "good")
    assert "good.tsv:2: expected a pair, got a single text" in lone
    assert "max_length must be at most 32 tokens, got 99" in message(
        "good", "good", "--max-length", 99
    )
    assert not out.exists()
    assert "unseen.tsv:3" in run_rejected("evaluate", world.model, paths["unseen"])
    assert "no column 'txt'" in run_rejected(
        "evaluate", world.model, paths["good"], "--text-column", "txt"
    )
    out.mkdir()
    (out / "mine").write_text("mine", encoding="utf-8")
    assert "already exists" in message("good", "good")
    assert tree(out) == {"mine": b"mine"}


# ---- Long texts


LONG = "a day of rain " * 40


@pytest.mark.parametrize("command", ["embed", "predict"])
def test_long_text_is_rejected_or_shortened(
    command: str, world: Any, run_rejected: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "tokens, but the limit is 32" in run_rejected(command, world.model, LONG)
    answers = []
    for long in ("truncate", "window"):
        assert cli.run([command, str(world.model), LONG, "--long", long]) == 0
        out, err = capsys.readouterr()
        answers.append(json.loads(out))
        if long == "truncate":
            assert "truncated" in out + err
    assert answers[0] != answers[1]


def test_predict_rejects_long_pair_and_unknown_policy(world: Any, run_rejected: Any) -> None:
    words = ("predict", world.model, "short", "--pair", LONG)
    assert "tokens, but the limit is 32" in run_rejected(*words)
    assert "truncate" in run_rejected("predict", world.model, "a", "--long", "truncat")


# ---- Missing heads


def test_predict_rejects_missing_head(world: Any, run_rejected: Any) -> None:
    assert "has no mlm head" in run_rejected(
        "predict", world.model, "a [MASK]", "--pipeline", "fill-mask"
    )
    assert "has no nsp head" in run_rejected(
        "predict", world.model, "a", "--pair", "b", "--pipeline", "next-sentence"
    )
