"""Names from other libraries and bertkit's names for them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bertkit
from bertkit import cli
from bertkit.config import decode, with_keywords
from bertkit.errors import BertkitError, ConfigError
from bertkit.extensions.generation.pipeline import Generate
from bertkit.extensions.search.searcher import Searcher
from bertkit.models.config import TransformerConfig
from bertkit.pipelines import PIPELINES, EmbedTokens
from bertkit.recipes.finetune import Finetune
from bertkit.synonyms import SETTINGS, TASKS, UNNEEDED, check_keywords, suggestion
from bertkit.tasks.classify import Classify
from bertkit.tasks.task import Reading

FINETUNE = {
    # transformers.TrainingArguments
    "num_train_epochs": "epochs",
    "per_device_train_batch_size": "batch_size",
    "per_device_eval_batch_size": "max_batch_tokens",
    "warmup_ratio": "warmup",
    "warmup_steps": "warmup",
    "max_steps": "epochs",
    "fp16": "precision",
    "bf16": "precision",
    "torch_dtype": "precision",
    "no_cuda": "device",
    "use_cpu": "device",
    "report_to": "track",
    "metric_for_best_model": "metric",
    "load_best_model_at_end": "metric",
    "save_steps": "save_minutes",
    "data_seed": "seed",
    "early_stopping": "patience",
    "early_stopping_patience": "patience",
    # sentence-transformers, simpletransformers, SetFit
    "max_seq_length": "max_length",
    "train_batch_size": "batch_size",
    "num_epochs": "epochs",
    # scikit-learn
    "random_state": "seed",
    "class_weight": "class_weights",
    "max_iter": "epochs",
    "n_iter_no_change": "patience",
    "learning_rate_init": "learning_rate",
    # peft, datasets, Keras
    "peft_config": "lora",
    "lora_r": "lora",
    "text_column_name": "text_column",
    "label_column_name": "label_column",
    "lr": "learning_rate",
    "problem_type": "multi_label",
}


@pytest.mark.parametrize(("name", "bertkit_name"), FINETUNE.items())
def test_finetune_suggests_its_name(name: str, bertkit_name: str) -> None:
    groups: Any = {Finetune: None, Classify.Options: None, Reading: None}
    with pytest.raises(
        ConfigError, match=rf"^{name}: finetune has .* did you mean '{bertkit_name}'\?$"
    ):
        with_keywords("finetune", groups, {name: 1})


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("gradient_accumulation_steps", "max_batch_tokens"),
        ("gradient_checkpointing", "max_batch_tokens"),
        ("eval_strategy", "after each epoch"),
        ("lr_scheduler_type", "linearly"),
        ("num_labels", "labels"),
    ],
)
def test_finetune_explains_unneeded_settings(name: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=rf"remove it: .*{reason}"):
        with_keywords("finetune", {Finetune: None}, {name: 1})


MODEL = "no-such-model"
CALLS: dict[str, tuple[Callable[..., Any], str]] = {
    "batch_size": (lambda **k: bertkit.embed(MODEL, ["a"], **k), "by number of tokens"),
    "normalize_embeddings": (lambda **k: bertkit.embed(MODEL, ["a"], **k), "model directory"),
    "prompt_name": (lambda **k: bertkit.embed(MODEL, ["a"], **k), "did you mean 'prompt'"),
    "pooling_mode": (lambda **k: bertkit.pipeline("embed", MODEL, **k), "mean 'pooling'"),
    "torch_dtype": (lambda **k: bertkit.pipeline("embed", MODEL, **k), "mean 'precision'"),
    "trust_remote_code": (lambda **k: bertkit.load(MODEL, **k), "no code"),
    "vocab_size": (lambda **k: bertkit.train_vocabulary(["a"], out="b", **k), "mean 'size'"),
    "output_dir": (lambda **k: bertkit.pretrain({}, corpus="a", **k), "mean 'out'"),
    "eval_dataset": (
        lambda **k: bertkit.finetune("classify", MODEL, train=[], out="a", **k),
        "mean 'dev'",
    ),
    "num_proc": (lambda **k: bertkit.clean(["a"], out="b", **k), "mean 'processes'"),
}


@pytest.mark.parametrize("name", CALLS)
def test_functions_suggest_a_parameter(name: str) -> None:
    call, hint = CALLS[name]
    with pytest.raises(ConfigError, match=rf"^{name}: \w+ has no such parameter; .*{hint}"):
        call(**{name: 1})


def test_pipelines_suggest_a_parameter(tiny: Path) -> None:
    embed = bertkit.pipeline("embed", tiny)
    with pytest.raises(ConfigError, match=r"^batch_size: Embed has no such parameter; remove it"):
        embed(["a"], batch_size=8)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("kind", "name", "bertkit_name"),
    [(EmbedTokens, "hidden_layer", "layer"), (Generate, "max_new_tokens", "decoding"),
     (Generate, "temperature", "decoding"), (Generate, "stop_strings", "stop"),
     (Searcher, "k", "top"), (Searcher, "score_threshold", "min_score")],
)  # fmt: skip
def test_calls_of_pipelines_suggest_a_parameter(kind: Any, name: str, bertkit_name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{name}: {kind.__name__} .*mean '{bertkit_name}'\?$"):
        kind.__call__(None, "a", **{name: 3})


def test_calls_with_wrong_arguments_are_type_errors() -> None:
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'out'"):
        bertkit.clean(["a"])  # type: ignore[call-arg]


def test_checked_functions_keep_their_signature() -> None:
    def function(a: int, /, *, top: int = 1) -> int:
        return a + top

    checked = check_keywords(function)
    assert inspect.signature(checked) == inspect.signature(function)
    assert checked(1, top=2) == 3
    with pytest.raises(ConfigError, match=r"^a: .* has no such parameter; known: 'top'$"):
        checked(a=1)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("data", "hint"),
    [
        ({"lora": 8}, r'^lora: expected a group of settings; use lora=\{"rank": 8\}$'),
        ({"lora": 16.5}, r'use lora=\{"alpha": 16.5\}$'),
        ({"lora": "yes"}, r'use lora=\{"rank": \.\.\.\}$'),
        ({"lora": None}, r'use lora=\{"rank": \.\.\.\}$'),
    ],
)
def test_value_instead_of_group_is_rejected(data: Any, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint):
        with_keywords("finetune", {Finetune: None}, data)


def test_variant_instead_of_group_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r'^positions: .*; use positions=\{"kind": "rotary"\}$'):
        decode(TransformerConfig, {"positions": "rotary"})


def test_options_of_other_libraries_are_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--model", "m", "--train", "a", "--dev", "b", "--out", "c"]
    for name, bertkit_name in (("num-train-epochs", "epochs"), ("early_stopping", "patience")):
        assert cli.run(["finetune", "classify", *given, f"--{name}", "3"]) == 2
        assert f"Did you mean --{bertkit_name}?" in capsys.readouterr().err


def test_names_have_one_meaning() -> None:
    assert not [name for name, others in SETTINGS.items() if name in others.split()]
    assert suggestion("batch_size", ["texts"]).startswith("remove it: ")
    assert suggestion("batch_size", ["batch_sizes"]).startswith("remove it: ")
    assert suggestion("padding", ["text"]) == f"remove it: {UNNEEDED['padding']}"


@pytest.mark.parametrize("name", TASKS)
def test_task_names_of_transformers_are_accepted(name: str, tiny: Path) -> None:
    def result(task: str) -> str:
        try:
            return type(bertkit.pipeline(task, tiny)).__name__
        except BertkitError as error:
            return str(error)

    # Other names are pipelines of transformers, which convert the results.
    if name not in PIPELINES:
        assert result(name) == result(TASKS[name])
    assert "unknown pipeline" not in result(name)


def test_unsupported_task_name_is_rejected(tiny: Path) -> None:
    with pytest.raises(ConfigError, match="unknown pipeline 'image-classification'"):
        bertkit.pipeline("image-classification", tiny)
