"""Settings: unknown keys, paths, and spelling suggestions."""

import inspect
import json
import re
import tomllib
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

import bertkit
from bertkit.config import (
    Settings,
    as_toml,
    decode,
    document_keywords,
    explained,
    override,
    paths,
    plain,
    read_toml,
    with_keywords,
)
from bertkit.errors import ConfigError, format_message
from bertkit.families import FAMILIES
from bertkit.models.config import TransformerConfig
from bertkit.models.model import build
from bertkit.recipes.finetune import Finetune
from bertkit.recipes.pretrain_config import complete, config_class
from bertkit.recipes.run_file import Train
from bertkit.tasks import TASKS, find
from bertkit.tasks.task import Reading

MODEL = {"vocab": 100, "hidden": 32, "layers": 1, "heads": 2, "intermediate": 64}
RUN = {"model": MODEL, "train": {"steps": 10}}
RUN_SETTINGS = config_class(RUN)


def test_decode_restores_plain_settings() -> None:
    config = decode(RUN_SETTINGS, RUN)
    assert decode(RUN_SETTINGS, plain(config)) == config


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (("model.hiden", "3"), r"model\.hiden: no such setting; did you mean 'hidden'\?"),
        (("train.stepz", "3"), r"train\.stepz: no such setting; did you mean 'steps'\?"),
        (("modell.hidden", "3"), r"modell: no such setting; did you mean 'model'\?"),
        (("model.hidden", "wide"), r"model\.hidden: expected `int`, got `str`"),
        (("model.layers", "0"), r"model\.layers: expected `int` >= 1"),
        (("model.heads", "3"), r"model: hidden must be a multiple of heads \(3\), got 32"),
        (("sampling.length", "600"), r"sampling\.length must be at most model\.max_positions"),
        (("masking.unit", "letter"), r"masking\.unit: invalid enum value 'letter'; known: "),
        (("train.precision", "fp8"), r"train\.precision: invalid enum value 'fp8'"),
        (("train.momentum", "0.9"), r'train: momentum requires optimizer = "muon"'),
        (("train.adamw_learning_rate", "0.1"), r"train: adamw_learning_rate requires optimizer"),
        (("train.adamw_weight_decay", "0.0"), r"train: adamw_weight_decay requires optimizer"),
        (("train.embedding_learning_rate", "0"), r"train\.embedding_learning_rate: expected"),
        (("train.embedding_learning_rate", "high"), r"rate: expected `float`, got `str`$"),
        (
            ("masking.first_share", "0.5"),
            r"masking: first_share and schedule require first_mlm_probability",
        ),
        (("sampling.first_share", "0.5"), r"sampling: first_share requires first_length"),
        (("train.decay_steps", "5"), r'train: decay_steps requires schedule = "wsd"'),
        (("train.z_loss", "-1"), r"train\.z_loss: expected `float` >= 0"),
        (("train.average_steps", "11"), r"train: average_steps must be at most the 10 steps"),
        (("train.eps", "0"), r"train\.eps: expected `float` > 0"),
        (("train.max_grad_norm", "-1"), r"train\.max_grad_norm: expected `float` >= 0"),
        (("train.max_grad_norm", "inf"), r"train\.max_grad_norm: expected a finite number"),
        (("train.learning_rate", "inf"), r"train\.learning_rate: expected a finite number"),
        (("train.betas", "[0.9, nan]"), r"train\.betas\[1\]: expected `float` >= 0"),
    ],
)
def test_decode_reports_invalid_setting(setting: tuple[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        decode(RUN_SETTINGS, override(RUN, [setting]))


def test_decode_reports_missing_setting() -> None:
    with pytest.raises(ConfigError, match=r"train\.steps: this setting is required"):
        decode(RUN_SETTINGS, {"model": MODEL, "train": {}})


def test_override_parses_toml_and_keeps_original() -> None:
    changed = override(RUN, [("train.learning_rate", "3e-4"), ("sampling.pairs", "sop")])
    assert changed["train"] == {"steps": 10, "learning_rate": 3e-4}
    assert changed["sampling"] == {"pairs": "sop"}
    assert RUN["train"] == {"steps": 10}


def test_override_rejects_paths_through_values() -> None:
    with pytest.raises(ConfigError, match=r"train\.steps\.more: 'steps' is a value"):
        override(RUN, [("train.steps.more", "1")])


def test_read_toml_reports_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: no such file"):
        read_toml(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("[model\n")
    with pytest.raises(ConfigError, match=r"bad\.toml: not valid TOML: .*line 1"):
        read_toml(tmp_path / "bad.toml")


CONFIGS = sorted(
    path
    for path in (Path(__file__).parent.parent / "configs").glob("*.toml")
    # tests/extensions/classic/test_pretrain_elmo.py covers these.
    if read_toml(path).get("family") != "elmo"
)
# Layers, hidden size, heads, and millions of parameters, from papers and checkpoints.
SHAPES = {
    "bert-tiny": (2, 128, 2, 4.4),
    "bert-mini": (4, 256, 4, 11.2),
    "bertkit-mini": (4, 256, 4, 16.2),  # with ModernBERT's vocabulary
    "bertkit-small": (4, 512, 8, 38.9),  # with ModernBERT's vocabulary
    "bertkit-base": (12, 768, 12, 126.0),  # with ModernBERT's vocabulary
    "bert-small": (4, 512, 8, 28.8),
    "bert-base": (12, 768, 12, 109.5),
    "bert-base-gpu": (12, 768, 12, 109.5),
    "bert-large": (24, 1024, 16, 335.1),
    "roberta-base": (12, 768, 12, 124.6),
    "albert-base": (12, 768, 12, 11.7),
    "distilbert-base": (6, 768, 12, 67.0),
    "tinybert-4": (4, 312, 12, 14.4),
    "minilm-6": (6, 384, 12, 22.7),
    "electra-small": (12, 256, 4, 13.5),
    "transformer-small": (3, 256, 8, 16.5),  # without its decoder
    "lstm-small": (2, 256, 1, 3.1),  # without its decoder
    "t5-mini": (4, 256, 4, 11.4),  # without its decoder
    "bart-mini": (4, 256, 4, 16.2),  # without its decoder
    "lstm-lm": (2, 256, 1, 13.9),  # with GPT-2's vocabulary
    "gpt-mini": (4, 256, 4, 16.2),  # with GPT-2's vocabulary
    "modernbert-base": (22, 768, 12, 149.6),
}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_run_files_have_expected_sizes(path: Path) -> None:
    data = read_toml(path)
    family = FAMILIES[data.get("family", "bert")]
    model = complete(data, vocab=family.vocab, pad=1).model
    layers, hidden, heads, millions = SHAPES[path.stem]
    assert (model.layers, model.hidden, model.heads) == (layers, hidden, heads)
    with torch.device("meta"):
        heads = ("pooler",) if isinstance(model, TransformerConfig) else ()
        parameters = sum(p.numel() for p in build(model, heads).parameters())
    assert round(parameters / 1e6, 1) == millions


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_run_file_settings_round_trip(path: Path) -> None:
    """Otherwise a run could not be resumed, because resuming compares `run.json`."""
    config = complete(read_toml(path), vocab=100, pad=1)
    assert plain(config) == json.loads(json.dumps(plain(config)))
    assert decode(type(config), plain(config)) == config
    assert complete(tomllib.loads(as_toml(config)), vocab=100, pad=1) == config


@pytest.mark.parametrize("name", TASKS)
def test_task_options_round_trip(name: str) -> None:
    options = find(name).Options()
    assert plain(options) == json.loads(json.dumps(plain(options)))


def test_sizes_have_run_files() -> None:
    assert {path.stem for path in CONFIGS} == set(SHAPES)


def test_explained_returns_attribute_docstrings() -> None:
    descriptions = explained(Train)
    assert descriptions["batch_size"] == "Number of samples per step."
    assert descriptions["precision"].startswith("Mixed precision (bf16")
    assert set(descriptions) <= set(Train.__struct_fields__)

    class Longer(Train, frozen=True):
        undocumented: int = 2
        more: int = 3
        """How much
        more."""

    assert explained(Longer)["more"] == "How much more."
    assert "undocumented" not in explained(Longer)
    assert explained(Longer)["batch_size"] == "Number of samples per step."
    made = msgspec.defstruct("made", [("x", int, 1)], bases=(Settings,), frozen=True)
    assert explained(made) == {}


def test_document_keywords_lists_settings() -> None:
    @document_keywords(Finetune, Reading)
    def fit(**keywords: object) -> None:
        """Fit it.

        Raises: nothing.
        """

    doc = str(fit.__doc__)
    assert doc.startswith("Fit it.\n\nRaises: nothing.\n\nKeywords (")
    assert max(map(len, doc.splitlines())) <= 96
    assert doc.split("\n\n")[-1] == str(bertkit.finetune.__doc__).split("\n\n")[-1]
    words = " ".join(doc.split())
    for kind in (Finetune, Reading):
        for name, default in paths(kind).items():
            assert re.search(
                rf" {re.escape(name)} \(\S[^:]*\) = {re.escape(repr(default))}: ", words
            )
        for meaning in explained(kind).values():
            assert format_message(meaning) in words
    assert "learning_rate (Optional[float]) = None: Peak learning rate" in words
    assert "lora.rank (int) = 0: Rank of the adapters" in words
    # Python help uses keyword names.
    assert "--resume" not in words


def test_with_keywords_merges_settings_and_keywords() -> None:
    class Some(Settings, frozen=True):
        a: int = 1
        b: str = "x"

    class Others(Settings, frozen=True):
        c: float = 0.5

    given = Some(a=2)
    assert with_keywords("f", {Some: given, Others: None}, {}) == [given, Others()]
    assert with_keywords("f", {Some: given, Others: {"c": 1}}, {"b": "y"}) == [
        Some(a=2, b="y"),
        Others(c=1.0),
    ]
    assert with_keywords("f", {Some: {"a": 3}}, {"a": np.int64(4)}) == [Some(a=4)]
    with pytest.raises(ConfigError, match=r"^a: expected `int`, got `str`"):
        with_keywords("f", {Some: Some(a="x")}, {})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^f: expected Some or a dict, got Others"):
        with_keywords("f", {Some: Others()}, {})
    with pytest.raises(ConfigError, match=r"^zz: f has no such setting; known: 'a', 'b', 'c'"):
        with_keywords("f", {Some: None, Others: None}, {"zz": 1})
    with pytest.raises(ConfigError, match=r"^a: expected `int`, got `str`"):
        with_keywords("f", {Some: None}, {"a": Path("b")})


def test_with_keywords_accepts_arrays_and_rejects_strings() -> None:
    options = find("classify").Options
    (made,) = with_keywords("finetune", {options: None}, {"thresholds": np.array([0.25, 0.5])})
    assert made.thresholds == (0.25, 0.5)
    with pytest.raises(ConfigError, match="finetune: expected ClassifyOptions or a dict, got str"):
        with_keywords("finetune", {options: "epochs"}, {})  # type: ignore[dict-item]


def test_finetune_help_lists_task_options() -> None:
    doc = inspect.getdoc(bertkit.finetune) or ""
    listed = " ".join(doc.partition("Tasks and their options:")[2].partition("\n\n")[0].split())
    expected = [
        f"{name}: {', '.join(paths(find(name).Options)) or 'no options'}" for name in sorted(TASKS)
    ]
    assert listed == " ".join(expected)
