"""Attention of translation models, such as LSTMs trained to reverse sequences."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.extensions.generation.tasks.test_seq2seq import write_model

import bertkit
from bertkit import cli
from bertkit.errors import CheckpointError, DataError
from bertkit.extensions.generation.alignment import alignment
from bertkit.extensions.generation.bleu import evaluate_translation
from bertkit.extensions.generation.decode_view import decoder_steps
from bertkit.extensions.generation.decoding import Decoding
from bertkit.extensions.generation.prepare_pairs import prepare_pairs
from bertkit.extensions.generation.stepper import Request
from bertkit.extensions.serving.served import ServedModel
from bertkit.recipes.vocabulary import train_vocabulary
from bertkit.view.arrays import decoded

LETTERS = "abcdefgh"
SETTINGS = [
    "model.layers=1", "model.hidden=64", "model.dropout=0.0", "train.batch_size=32",
    "train.learning_rate=1e-2", "train.warmup_steps=20", "train.label_smoothing=0.0",
    "train.evaluate_every=200", "train.save_every=200",
]  # fmt: skip


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with pairs of letter sequences and reversed sequences."""
    directory, numbers = tmp_path_factory.mktemp("reverse"), random.Random(0)
    for part, count in (("train", 1500), ("dev", 60)):
        rows = [numbers.choices(LETTERS, k=numbers.randint(2, 6)) for _ in range(count)]
        for name, step in (("source", 1), ("target", -1)):
            text = "".join(" ".join(row[::step]) + "\n" for row in rows)
            (directory / f"{part}.{name}.txt").write_text(text, encoding="utf-8")
    files = directory / "train.source.txt", directory / "train.target.txt"
    train_vocabulary([files[0]], out=directory / "v", kind="unigram", use="translate", size=20)
    options = {"tokenizer": directory / "v", "out": directory / "pairs"}
    prepare_pairs(source=files[0], target=files[1], **options)
    return directory


def trained_model(directory: Path, attention: str, steps: int = 200) -> Path:
    """Train a model with `bertkit pretrain`, unless it exists."""
    torch.set_num_threads(1)
    out = directory / f"{attention}-{steps}"
    if not out.exists():
        more = [f"model.recurrent.attention={attention}", f"train.steps={steps}"]
        more += ["model.recurrent.direction=both"]
        command = ["pretrain", "lstm-small", "--corpus", f"{directory}/pairs", "--out", str(out)]
        assert cli.run([*command, *SETTINGS, *more]) == 0
    return out


@pytest.mark.parametrize("attention", ["luong", "bahdanau"])
def test_model_reverses_and_attends_right_to_left(directory: Path, attention: str) -> None:
    folder = trained_model(directory, attention)
    files = directory / "dev.source.txt", directory / "dev.target.txt"
    for beams in (1, 3):
        score = evaluate_translation(folder, *files, decoding=Decoding(num_beams=beams))
        assert score.bleu > 90
        assert (score.sentences, score.cut) == (60, 0)
    assert evaluate_translation(folder, files[0], files[0]).bleu < 20  # control
    result = alignment(folder, "a b c d e")
    assert result.source == ["▁a", "▁b", "▁c", "▁d", "▁e", "</s>"]
    assert result.target == ["▁e", "▁d", "▁c", "▁b", "▁a", "</s>"]
    assert result.weights.shape == (6, 6)
    np.testing.assert_allclose(result.weights.sum(1), 1, atol=1e-6)
    # The state of a letter can also encode the previous letter.
    best = result.weights[:5].argmax(1)
    assert (np.diff(best) <= 0).all()
    assert best[0] - best[4] >= 3


def test_alignment_accepts_given_translation(directory: Path) -> None:
    loaded = bertkit.load(trained_model(directory, "luong"))
    generated, given = alignment(loaded, "a b c"), alignment(loaded, "a b c", "c b a")
    np.testing.assert_array_equal(generated.weights, given.weights)
    forced = alignment(bertkit.pipeline("generate", loaded), "a b c", "h")
    assert forced.target == ["▁h", "</s>"]
    assert forced.weights.shape == (2, 4)
    for text, translation, message in (
        (" ", None, "text: must not be empty"),
        ("a b", "a " * 40, "translation: it has 40 tokens, but the model supports"),
        ("a " * 300, None, "the model supports"),
    ):
        with pytest.raises(DataError, match=message):
            alignment(loaded, text, translation)


def test_decoder_steps_match_alignment(directory: Path) -> None:
    loaded = bertkit.load(trained_model(directory, "luong"))
    steps = decoder_steps(bertkit.pipeline("generate", loaded), "a b c", beams=2)
    assert steps.written == "c b a"
    assert (steps.model.layers, steps.model.heads, len(steps.attention)) == (1, 1, 1)
    weights = decoded(steps.mean[0])
    np.testing.assert_allclose(weights, alignment(loaded, "a b c").weights, atol=1e-3)


def test_truncated_translation_has_no_eos_token(directory: Path) -> None:
    loaded = bertkit.load(trained_model(directory, "luong"))
    assert alignment(loaded, "a b c").target[-1] == "</s>"
    loaded.model.heads["lm"].bias.data[loaded.tokenizer.eos] = -1e4  # EOS is never generated
    result = alignment(loaded, "a b c")
    assert "</s>" not in result.target
    assert result.weights.shape == (len(result.target), 4)
    request = Request(np.array([0]), np.arange(4))
    stepper = bertkit.pipeline("generate", loaded).stepper
    assert len(result.target) == stepper.max_new_tokens(request)


def test_command_prints_weights_or_saves_figure(
    directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = str(trained_model(directory, "luong")), tmp_path / "a.svg"
    expected = alignment(folder, "a b c", "c b a")
    capsys.readouterr()
    assert cli.run(["view", "align", folder, "a b c", "--translation", "c b a"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["source"], printed["target"]) == (expected.source, expected.target)
    np.testing.assert_allclose(printed["weights"], expected.weights, atol=1e-4)
    assert cli.run(["view", "align", folder, "a b c", "--out", str(out)]) == 0
    assert capsys.readouterr().err == f"{out}: 4 source tokens, 4 target tokens\n"
    opacities = re.findall(r'fill-opacity="([\d.]+)"', out.read_text(encoding="utf-8"))
    np.testing.assert_allclose(list(map(float, opacities)), expected.weights.flatten(), atol=1e-3)
    for options, message in (
        (["--out", str(out)], "already exists"),
        (["--out", str(tmp_path / "a.png")], "the suffix must be .svg"),
    ):
        assert cli.run(["view", "align", folder, "a b c", *options]) == 2
        assert message in capsys.readouterr().err
    assert cli.run(["view", "align", str(trained_model(directory, "none", steps=20)), "a b c"]) == 2
    assert "the decoder does not attend" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("attention", ["none", "context"])
def test_alignment_rejects_decoder_without_attention(directory: Path, attention: str) -> None:
    folder = trained_model(directory, attention, steps=20)
    with pytest.raises(CheckpointError, match="the decoder does not attend to the source"):
        alignment(folder, "a b c")
    with pytest.raises(CheckpointError, match="does not attend"):
        decoder_steps(bertkit.pipeline("generate", folder), "a b c")
    assert "decode" not in ServedModel(str(folder), "fp32").pipelines
    assert "decode" in ServedModel(str(trained_model(directory, "luong")), "fp32").pipelines


def test_command_translates_line_by_line(
    directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = trained_model(directory, "luong")
    (tmp_path / "text.txt").write_text("a b c\n\nd e f g\n", encoding="utf-8")
    capsys.readouterr()
    assert cli.run(["generate", str(folder), "--file", str(tmp_path / "text.txt")]) == 0
    assert capsys.readouterr().out == "c b a\n\ng f e d\n"
    command = ["generate", str(folder), "--file", str(tmp_path / "text.txt")]
    assert cli.run([*command, "--num-beams", "3", "--num-return-sequences", "2", "--scores"]) == 0
    first, empty, _ = map(json.loads, capsys.readouterr().out.splitlines())
    assert first[0]["text"] == "c b a"
    assert first[0]["score"] > first[1]["score"]
    assert empty == []
    assert cli.run([*command, "--stream"]) == 2
    assert "--stream: not supported by a translation model" in capsys.readouterr().err
    writer = bertkit.pipeline("generate", folder)
    ((given,),) = writer(["a b c"], prefix="h")
    assert given.text.startswith("h")


@pytest.mark.parametrize(("family", "forced"), [("bart", False), ("bart", True), ("t5", False)])
def test_alignment_matches_cross_attention_of_transformers(
    family: str, forced: bool, tmp_path: Path
) -> None:
    """The decoder's input is the start token and the labels of transformers' tokenizer."""
    transformers = pytest.importorskip("transformers", reason="pip install 'bertkit[dev]'")
    folder = write_model(tmp_path / "model", family)
    if forced:
        path = folder / "generation_config.json"
        settings = json.loads(path.read_text(encoding="utf-8"))
        settings["forced_bos_token_id"] = bertkit.Tokenizer.load(folder).bos
        path.write_text(json.dumps(settings), encoding="utf-8")
    text, translation = "the cat sat on the mat", "a cat slept"
    result = alignment(folder, text, translation)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, attn_implementation="eager")
    labels = tokenizer(text_target=translation, return_tensors="pt")["input_ids"]
    source = tokenizer(text, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        output = model.eval()(input_ids=source, labels=labels, output_attentions=True)
    expected = torch.stack(output.cross_attentions).mean((0, 2))[0].numpy()
    assert result.target == tokenizer.convert_ids_to_tokens(labels[0].tolist())
    assert (result.target[0] == "<s>") == (family == "bart")
    np.testing.assert_allclose(result.weights, expected, atol=1e-5)
