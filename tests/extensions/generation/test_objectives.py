"""Generative objectives: settings that they reject, and test sets of translation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import bertkit
from bertkit import cli
from bertkit.config import decode, merged
from bertkit.errors import ConfigError, DataError
from bertkit.extensions.generation import objectives
from bertkit.extensions.generation.bleu import evaluate_translation
from bertkit.extensions.generation.prepare_pairs import prepare_pairs
from bertkit.recipes.pretrain_config import PretrainConfig, config_class
from bertkit.recipes.vocabulary import train_vocabulary

MODEL: dict[str, Any] = {"vocab": 100, "hidden": 32, "layers": 1, "heads": 2, "intermediate": 64}
CAUSAL = {**MODEL, "attention": {"causal": True}}
RUN = {"model": MODEL, "sampling": {"pairs": "none"}, "train": {"steps": 10}}
NEXT = {**RUN, "model": CAUSAL, "objective": "next"}
GENERATOR = {"hidden": 16, "heads": 2, "intermediate": 32}
SPANS = {**RUN, "decoder": CAUSAL, "objective": "spans"}


def read(run: dict[str, Any], settings: dict[str, Any]) -> PretrainConfig:
    """Return the settings of a run of a Transformer, with changes."""
    data = merged(run, settings)
    return decode(config_class(data), data)


@pytest.mark.parametrize(
    ("run", "settings", "message"),
    [
        (NEXT, {"masking": {"unit": "word"}}, r"masking\.unit is not supported with .* 'next'"),
        (NEXT, {"masking": {"first_mlm_probability": 0.3}}, r"masking\.first_mlm_probability"),
        (NEXT, {"generator": GENERATOR}, "generator is not supported"),
        (NEXT, {"sampling": {"cross_documents": True}}, r"sampling\.cross_documents is not supp"),
        (NEXT, {"sampling": {"short_seq_probability": 0.0}}, r"sampling\.short_seq_probability is"),
        (NEXT, {"teacher": {"model": "m"}}, "teacher is not supported with objective = 'next'"),
        (NEXT, {"model": {"attention": {"causal": False}}}, "requires a causal model, .*; use"),
        (NEXT, {"decoder": CAUSAL}, "got an encoder with a decoder; use translate or spans"),
        (SPANS, {"decoder": None}, "requires an encoder with a decoder, .*; use mask"),
        (SPANS, {"sampling": {"first_length": 16}}, r"sampling\.first_length is not supported"),
        (SPANS, {"sampling": {"cross_documents": True}}, r"sampling\.cross_documents is not supp"),
        (SPANS, {"corruption": {"permute": True}}, r"corruption\.permute is not .* with .*'spans'"),
        (SPANS, {"corruption": {"rate": 0.0}}, r"corruption\.rate: expected `float` > 0"),
    ],
)
def test_objective_rejects_a_setting(
    run: dict[str, Any], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        read(run, settings)


@pytest.mark.parametrize(
    ("run", "settings"),
    [
        (NEXT, {"train": {"z_loss": 0.1}}),
        (NEXT, {"train": {"first_window": 8}}),
        (NEXT, {"masking": {"unit": "token"}}),
        (NEXT, {"sampling": {"first_length": 16}}),
        (SPANS, {"objective": "infill", "corruption": {"permute": True}}),
    ],
)
def test_objective_accepts_a_setting(run: dict[str, Any], settings: dict[str, Any]) -> None:
    assert read(run, settings).heads == ("lm",)


# ---- The experiment "translation"

TINY = {
    "model": {"layers": 1, "hidden": 16},
    "train": {"steps": 4, "batch_size": 8, "warmup_steps": 1},
}
WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def changes(settings: dict[str, Any], name: str = "settings") -> list[str]:
    """Return settings as words of a command line."""
    words: list[str] = []
    for key, value in settings.items():
        path = f"{name}.{key}"
        words += changes(value, path) if isinstance(value, dict) else [f"{path}={value}"]
    return words


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared pairs in `pairs`, and `test.tsv`: sequences of number words and their reversals."""
    folder = tmp_path_factory.mktemp("translation")
    rows = [[WORDS[n * step % 9] for n in range(1, 3 + step % 4)] for step in range(200)]
    lines = [" ".join(row) + "\t" + " ".join(row[::-1]) for row in rows]
    for name, part in (("train", lines[60:]), ("test", lines[:60])):
        (folder / f"{name}.tsv").write_text("\n".join(["source\ttarget", *part]), encoding="utf-8")
    (folder / "text.txt").write_text("\n".join(" ".join(row) for row in rows), encoding="utf-8")
    (folder / "names.tsv").write_text("de\ttarget\n1\t2\n", encoding="utf-8")
    options: dict[str, Any] = {"kind": "unigram", "use": "translate", "size": 25}
    train_vocabulary([folder / "text.txt"], out=folder / "v", **options)
    prepare_pairs(file=folder / "train.tsv", tokenizer=folder / "v", out=folder / "pairs")
    return folder


@pytest.fixture(scope="module")
def trained(pairs: Path) -> tuple[Path, dict[str, Any]]:
    """Output directory and result of the experiment."""
    settings = {**TINY, "corpus": pairs / "pairs", "test": "test.tsv"}
    out = pairs / "out"
    words = ["experiment", "translation", *changes(settings), "--data", str(pairs)]
    assert cli.run([*words, "--out", str(out)]) == 0
    return out, json.loads((out / "experiment.json").read_text("utf-8"))["result"]


def test_variants_differ_in_architecture(trained: tuple[Path, dict[str, Any]]) -> None:
    out, result = trained
    assert list(result) == ["lstm", "lstm-attention", "transformer"]
    configs = [bertkit.load(out / name / "seed-0").model.config for name in result]
    assert [config.is_sequential for config in configs] == [True, True, False]
    recurrent = [config.recurrent for config in configs[:2]]  # type: ignore[attr-defined]
    found = [(config.direction, config.attention) for config in recurrent]
    assert found == [("backward", "none"), ("both", "luong")]


def test_test_scores_match_evaluate_translation(
    trained: tuple[Path, dict[str, Any]], pairs: Path, tmp_path: Path
) -> None:
    out, result = trained
    rows = (pairs / "test.tsv").read_text(encoding="utf-8").splitlines()[1:]
    files = [tmp_path / "source.txt", tmp_path / "target.txt"]
    columns = zip(*(row.split("\t") for row in rows), strict=True)
    for file, texts in zip(files, columns, strict=True):
        file.write_text("\n".join(texts) + "\n", encoding="utf-8")
    for name, scores in result.items():
        expected = evaluate_translation(out / name / "seed-0", *files)
        assert scores["test_bleu"]["mean"] == expected.bleu
        assert scores["test_chrf"]["mean"] == expected.chrf
        by_length = {n: s["mean"] for n, s in scores.items() if n.startswith("test_bleu_")}
        assert by_length == {f"test_bleu_{n}": s for n, s in expected.bleu_by_length.items()}


def test_page_and_table_show_test_scores(trained: tuple[Path, dict[str, Any]]) -> None:
    page = (trained[0] / "experiment.html").read_text("utf-8")
    assert page.index("lm_loss on dev") < page.index("bleu on test") < page.index("test_bleu_2-3")


def test_resume_scores_only_another_test_set(
    trained: tuple[Path, dict[str, Any]],
    pairs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out, result = trained
    scored: list[int] = []
    score = objectives.score_translations

    def record(generate: Any, sources: list[str], references: list[str]) -> Any:
        scored.append(len(sources))
        return score(generate, sources, references)

    monkeypatch.setattr(objectives, "score_translations", record)
    rows = (pairs / "test.tsv").read_text(encoding="utf-8").splitlines()
    (tmp_path / "test.tsv").write_text("\n".join(rows[:31]), encoding="utf-8")
    settings = {**TINY, "corpus": pairs / "pairs"}
    for folder, expected in ((pairs, []), (tmp_path, [30, 30, 30])):
        words = changes({**settings, "test": folder / "test.tsv"})
        again = bertkit.experiment("translation", *words, out=out, resume=True)
        assert scored == expected
        assert (again == result) == (not expected)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"test": "none.tsv"}, DataError, "none.tsv: no such file"),
        ({"test": "names.tsv"}, DataError, "names.tsv: no column 'source'; known: 'de', 'target'"),
        ({"test": 0.1}, ConfigError, "lstm: test: expected a file, got float"),
        ({"test": "test.tsv", "config": "elmo-tiny"}, ConfigError, "test is not .* 'elmo'; remove"),
    ],
)
def test_invalid_test_set_is_rejected_before_work(
    settings: dict[str, Any], error: type[Exception], message: str, pairs: Path, tmp_path: Path
) -> None:
    plan = {
        "recipe": "pretrain",
        "settings": {"config": "lstm-small", "corpus": str(pairs / "pairs"), **settings},
        "variants": {"lstm": {}},
    }
    with pytest.raises(error, match=message):
        bertkit.experiment(plan, data=pairs, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_test_set_is_rejected_without_test_scores(tmp_path: Path) -> None:
    config = read(NEXT, {})
    with pytest.raises(ConfigError, match="test is not supported with objective = 'next'; remove"):
        config.read_test(tmp_path / "test.tsv")
