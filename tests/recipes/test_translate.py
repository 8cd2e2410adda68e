"""Training, evaluation, and export of translation models."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import sacrebleu
import torch
import transformers
from safetensors.torch import load_file

import bertkit
from bertkit.config import override
from bertkit.errors import BertkitError, CheckpointError, DataError
from bertkit.extensions.generation.bleu import TranslationScore, evaluate_translation
from bertkit.extensions.generation.decoding import Decoding
from bertkit.extensions.generation.prepare_pairs import prepare_pairs
from bertkit.recipes.average import average
from bertkit.recipes.pretrain import pretrain
from bertkit.recipes.vocabulary import train_vocabulary

SETTINGS: dict[str, Any] = {
    "family": "marian",
    "objective": "translate",
    "model": {"layers": 2, "hidden": 64, "heads": 4, "intermediate": 128, "max_positions": 64,
              "dropout": 0.0, "attention_dropout": 0.0, "scale_embedding": True},
    "sampling": {"pairs": "none", "length": 32, "held_out": 0.1},
    "train": {"steps": 250, "batch_size": 32, "learning_rate": 5e-3, "warmup_steps": 20,
              "precision": "fp32", "evaluate_every": 250, "save_every": 50,
              "label_smoothing": 0.1},
}  # fmt: skip
LSTMS: dict[str, Any] = {
    **SETTINGS,
    "family": "lstm",
    "model": {"layers": 2, "hidden": 16, "max_positions": 64, "dropout": 0.2,
              "recurrent": {"attention": "bahdanau", "direction": "both"}},
}  # fmt: skip
NUMBERS = {"en": ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"],
           "de": ["eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"],
}  # fmt: skip


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create pairs of German numbers and reversed English numbers."""
    directory = tmp_path_factory.mktemp("translate")
    generator = torch.Generator().manual_seed(0)
    for part, count in (("train", 600), ("dev", 40)):
        rows = [
            torch.randint(0, 9, (int(torch.randint(2, 7, (1,), generator=generator)),),
                          generator=generator).tolist()
            for _ in range(count)
        ]  # fmt: skip
        for language, order in (("de", 1), ("en", -1)):
            lines = [" ".join(NUMBERS[language][n] for n in row[::order]) for row in rows]
            path = directory / f"{part}.{language}.txt"
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    files = [directory / "train.de.txt", directory / "train.en.txt"]
    train_vocabulary(files, out=directory / "v", kind="unigram", use="translate", size=40)
    prepare_pairs(
        source=files[0], target=files[1], tokenizer=directory / "v", out=directory / "pairs"
    )
    return directory


@pytest.fixture(scope="module")
def run(directory: Path) -> tuple[Path, dict[str, float]]:
    torch.set_num_threads(1)
    return directory / "run", pretrain(SETTINGS, corpus=directory / "pairs", out=directory / "run")


def test_translation_model_learns_and_matches_sacrebleu(
    run: tuple[Path, dict[str, float]], directory: Path
) -> None:
    folder, scores = run
    assert scores["lm_accuracy"] > 0.9
    found = evaluate_translation(folder, directory / "dev.de.txt", directory / "dev.en.txt")
    assert found.bleu > 80
    assert (found.sentences, found.cut) == (40, 0)
    texts = (directory / "dev.de.txt").read_text(encoding="utf-8").splitlines()
    right = (directory / "dev.en.txt").read_text(encoding="utf-8").splitlines()
    written = [answer.text for answer, *_ in bertkit.pipeline("generate", folder)(texts)]
    assert found.bleu == sacrebleu.corpus_bleu(written, [right]).score
    assert found.chrf == sacrebleu.corpus_chrf(written, [right]).score
    assert "tok:13a" in found.signatures[0]
    backwards = evaluate_translation(folder, directory / "dev.en.txt", directory / "dev.de.txt")
    assert backwards.bleu < 20  # Control.


def test_average_returns_the_mean_of_checkpoints(
    run: tuple[Path, dict[str, float]], directory: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run[0], folder)
    average(folder, out=tmp_path / "mean", last=2)
    files = [path / "model.safetensors" for path in sorted((folder / "checkpoints").iterdir())[-2:]]
    first, second = map(load_file, files)
    mean = load_file(tmp_path / "mean" / "model.safetensors")
    assert any(not torch.equal(first[name], second[name]) for name in mean)
    for name, weight in mean.items():
        exact = (first[name].double() + second[name].double()) / 2
        assert torch.equal(weight, exact.float()), name
    found = evaluate_translation(
        tmp_path / "mean", directory / "dev.de.txt", directory / "dev.en.txt"
    )
    assert found.bleu > 60
    with pytest.raises(CheckpointError, match=r"cannot average 99 of"):
        average(folder, out=tmp_path / "more", last=99)
    files[0].write_bytes(files[1].read_bytes())
    with pytest.raises(CheckpointError, match="damaged"):
        average(folder, out=tmp_path / "more", last=2)
    assert not (tmp_path / "more").exists()


def test_translations_match_hugging_face(
    run: tuple[Path, dict[str, float]], directory: Path
) -> None:
    folder, _ = run
    hf_model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    translate = bertkit.pipeline("generate", folder)
    texts = (directory / "dev.de.txt").read_text(encoding="utf-8").splitlines()[:10]
    for text, (answer, *_) in zip(texts, translate(texts, Decoding(num_beams=3)), strict=True):
        ids = torch.from_numpy(translate.tokenizer.encode(text).ids)[None]
        written = hf_model.generate(ids, num_beams=3, max_new_tokens=30)[0].tolist()
        tokens = [i for i in written if i not in (translate.tokenizer.pad, translate.tokenizer.eos)]
        assert translate.target.decode(tokens) == answer.text


def test_translations_match_ctranslate2(
    run: tuple[Path, dict[str, float]], directory: Path, tmp_path: Path
) -> None:
    """CTranslate2 starts from a zero vector, transformers from the padding embedding."""
    folder, _ = run
    weight = bertkit.load(folder).model.encoder.embedding.tokens.weight
    assert not weight[bertkit.load(folder).tokenizer.pad].any()
    assert weight[:-1].any(1).all()
    converter = pytest.importorskip("ctranslate2.converters")
    import ctranslate2

    with warnings.catch_warnings(action="ignore"):  # The tokenizer recommends another package.
        converter.TransformersConverter(str(folder)).convert(str(tmp_path / "ct2"))
    translator = ctranslate2.Translator(str(tmp_path / "ct2"), compute_type="float32")
    translate = bertkit.pipeline("generate", folder)
    texts = (directory / "dev.de.txt").read_text(encoding="utf-8").splitlines()[:20]
    rows = [
        translate.tokenizer.pieces(encoding.ids)
        for encoding in translate.tokenizer.encode_batch(texts)
    ]
    found = translator.translate_batch(rows, beam_size=3)
    for translation, (answer, *_) in zip(
        found, translate(texts, Decoding(num_beams=3)), strict=True
    ):
        assert "".join(translation.hypotheses[0]).replace("▁", " ").strip() == answer.text


@pytest.mark.parametrize("settings", [SETTINGS, LSTMS], ids=["marian", "lstm"])
def test_resumed_run_matches_an_uninterrupted_run(
    directory: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    first = override(settings, [("train.schedule", "constant"), ("train.steps", "6")])
    first = override(first, [("train.save_every", "3"), ("train.evaluate_every", "6")])
    whole = pretrain(first, corpus=directory / "pairs", out=tmp_path / "whole")
    pretrain(first, corpus=directory / "pairs", out=tmp_path / "parts")
    for checkpoint in (tmp_path / "parts" / "checkpoints").glob("*6"):
        shutil.rmtree(checkpoint)
    again = pretrain(first, corpus=directory / "pairs", out=tmp_path / "parts", resume=True)
    assert again == whole
    whole_weights, resumed_weights = (
        (tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "parts")
    )
    assert whole_weights == resumed_weights


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([("objective", "next")], "no corpus here|no manifest|manifest"),
        ([("family", "gpt2")], "objective = .translate. requires an encoder with a decoder"),
        ([("decoder.hidden", "32")], "decoder.hidden must be 64, as in the encoder, got 32"),
        ([("decoder.attention.causal", "false")], "attention.causal"),
        ([("train.label_smoothing", "1.0")], "label_smoothing"),
    ],
)
def test_pretrain_rejects_invalid_translation_settings(
    directory: Path, tmp_path: Path, changes: list[tuple[str, str]], message: str
) -> None:
    with pytest.raises(BertkitError, match=message):
        pretrain(override(SETTINGS, changes), corpus=directory / "pairs", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_bleu_by_length_matches_each_group(
    run: tuple[Path, dict[str, float]], directory: Path, tmp_path: Path
) -> None:
    sides = [
        (directory / f"train.{name}.txt").read_text(encoding="utf-8").splitlines()[:120]
        for name in ("de", "en")
    ]
    files = [tmp_path / "de.txt", tmp_path / "en.txt"]

    def evaluate(rows: list[tuple[str, str]]) -> TranslationScore:
        for file, texts in zip(files, zip(*rows, strict=True), strict=True):
            file.write_text("\n".join(texts) + "\n", encoding="utf-8")
        return evaluate_translation(run[0], *files)

    pairs = list(zip(*sides, strict=True))
    scores = evaluate(pairs)
    assert list(scores.bleu_by_length) == ["2", "3", "4", "5", "6"]
    four = evaluate([pair for pair in pairs if len(pair[0].split()) == 4])
    assert four.bleu_by_length == {"4": four.bleu} == {"4": scores.bleu_by_length["4"]}
    assert scores.scores["bleu_4"] == four.bleu


def test_evaluation_rejects_empty_files(run: tuple[Path, dict[str, float]], tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    with pytest.raises(DataError, match="the file is empty"):
        evaluate_translation(run[0], tmp_path / "empty.txt", tmp_path / "empty.txt")


def test_evaluation_rejects_references_of_another_length(
    run: tuple[Path, dict[str, float]], directory: Path
) -> None:
    with pytest.raises(DataError, match=r"has 40 lines, but .* has 600"):
        evaluate_translation(run[0], directory / "dev.de.txt", directory / "train.en.txt")
