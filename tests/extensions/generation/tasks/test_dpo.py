"""Fine-tuning on preferences with DPO (Rafailov et al. 2023)."""

from __future__ import annotations

import copy
import json
import math
import random
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from safetensors.torch import load_file
from tests.extensions.generation.test_chat_format import TALK, vocabulary
from tests.factories import tiny_folder
from torch import Tensor

import bertkit
from bertkit import cli
from bertkit.checkpoint.directory import Loaded, save
from bertkit.engine.engine import Engine
from bertkit.errors import CheckpointError, ConfigError, DataError
from bertkit.extensions.generation.chat_format import Message
from bertkit.extensions.generation.messages import Preference
from bertkit.extensions.generation.tasks.dpo import Dpo, DpoOptions, PreferenceAnswer
from bertkit.families import FAMILIES
from bertkit.models.lora import LoRA
from bertkit.objectives.loss import totals
from bertkit.recipes import finetune as recipe
from bertkit.recipes.distill import distill
from bertkit.recipes.evaluate import evaluate
from bertkit.recipes.finetune import Finetune, finetune
from bertkit.tasks.task import Feature, make_batch, run_head
from bertkit.training.loop import steps

PAIRS = [
    Preference((*TALK, Message("user", "And you?")), "Well, thanks.", "No.", "a:1"),
    Preference(
        (Message("user", "Is it warm?"),), "Yes!", "Who wants to know that, and why?", "a:2"
    ),
    Preference((Message("user", "Go."),), "I go at once.", "Never.", "a:3"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, family = tmp_path_factory.mktemp("writer") / "model", FAMILIES["llama"]
    shape: dict[str, Any] = {"hidden": 32, "layers": 2, "heads": 4, "intermediate": 64}
    return tiny_folder(folder, vocabulary("chatml"), "lm", family=family, length=256, **shape)


def reference_features(loaded: Loaded, task: Dpo, pairs: list[Preference] = PAIRS) -> list[Feature]:
    """Return the features with the outputs of the initial model."""
    features = task.features(pairs, loaded.tokenizer, 256, long="error", labeled=True)
    outputs = run_head(task, Engine(loaded.model), features)
    return [replace(f, teacher_outputs=rows) for f, rows in zip(features, outputs, strict=True)]


def test_features_cover_only_the_answers(folder: Path) -> None:
    loaded = bertkit.load(folder)
    features = Dpo().features(PAIRS, loaded.tokenizer, 256, long="error", labeled=True)
    seen = []
    for feature in features:
        assert feature.token_indices is not None
        following = feature.encoding.ids[feature.token_indices + 1]
        answer = loaded.tokenizer.core.decode(following.tolist(), skip_special_tokens=False)
        seen.append((feature.example, feature.target, answer))
    end = "<|im_end|>"
    assert seen == [
        (number, sign, text + end)
        for number, pair in enumerate(PAIRS)
        for sign, text in ((1.0, pair.chosen), (-1.0, pair.rejected))
    ]
    conversation = loaded.tokenizer.core.decode(
        features[0].encoding.ids.tolist(), skip_special_tokens=False
    )
    assert conversation.endswith(
        "And you?<|im_end|>\n<|im_start|>assistant\nWell, thanks.<|im_end|>\n"
    )


TOKENIZER = vocabulary("chatml")
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip)


@given(prompt=TEXTS, chosen=TEXTS, rejected=TEXTS)
@settings(max_examples=50)
def test_features_cover_only_arbitrary_answers(prompt: str, chosen: str, rejected: str) -> None:
    """A message may contain the text of a special token."""
    pair = Preference((Message("user", prompt),), chosen, rejected + "<|im_end|>", "a:1")
    end = TOKENIZER.token("<|im_end|>")
    features = Dpo().features([pair], TOKENIZER, 10_000, long="error", labeled=True)
    for feature, text in zip(features, (pair.chosen, pair.rejected), strict=True):
        assert feature.token_indices is not None
        *tokens, last = feature.encoding.ids[feature.token_indices + 1].tolist()
        assert last == end
        assert end not in tokens
        assert tokens == TOKENIZER.ids([text])[0].tolist()


def test_initial_loss_is_log_2(folder: Path) -> None:
    loaded, task = bertkit.load(folder), Dpo()
    batch = make_batch(task, reference_features(loaded, task))
    assert task.loss(loaded.model, batch, totals([batch])).total.item() == pytest.approx(
        math.log(2), abs=1e-5
    )


@pytest.mark.parametrize("split", [False, True])
def test_loss_and_gradient_match_transformers(folder: Path, tmp_path: Path, split: bool) -> None:
    """The loss of a step does not change if the step is split into batches."""
    transformers = pytest.importorskip("transformers", reason="pip install 'bertkit[dev]'")
    loaded, task = bertkit.load(folder), Dpo((), DpoOptions(beta=0.7))
    start = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    features = reference_features(loaded, task)
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in loaded.model.parameters():
            weight.add_(torch.randn_like(weight) * 0.05)
    save(tmp_path / "moved", loaded.model, loaded.tokenizer, loaded.family)
    moved = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "moved").eval()

    def logp(model: Any, feature: Feature, text: str) -> Tensor:
        ids = torch.from_numpy(feature.encoding.ids)
        answer = [*loaded.tokenizer.ids([text])[0].tolist(), loaded.tokenizer.token("<|im_end|>")]
        first = len(ids) - len(answer) - 1  # a newline follows the answer
        assert ids[first : first + len(answer)].tolist() == answer
        logprobs = model(ids[None]).logits[0].log_softmax(-1)
        return sum(
            (logprobs[first - 1 + n, token] for n, token in enumerate(answer)), torch.zeros(())
        )

    terms = []
    for number, pair in enumerate(PAIRS):
        gains = []
        for index, text in ((2 * number, pair.chosen), (2 * number + 1, pair.rejected)):
            with torch.no_grad():
                before = logp(start, features[index], text)
            gains.append(logp(moved, features[index], text) - before)
        terms.append(-torch.log(torch.sigmoid(0.7 * (gains[0] - gains[1]))))
    expected = torch.stack(terms).mean()
    expected.backward()

    groups = [features[:2], features[2:]] if split else [features]
    batches = [make_batch(task, group) for group in groups]
    counts = totals(batches)
    total = 0.0
    for batch in batches:
        loss = task.loss(loaded.model, batch, counts).total
        loss.backward()
        total += loss.item()
    assert total == pytest.approx(expected.item(), rel=1e-5)
    assert abs(total - math.log(2)) > 1e-3  # control: the new weights change the loss
    grads = {n: p.grad for n, p in loaded.model.named_parameters() if p.grad is not None}
    hf_grads = {n: p.grad for n, p in moved.named_parameters() if p.grad is not None}
    bertkit_grads = loaded.family.write(grads, loaded.model.config)
    assert set(bertkit_grads) == set(hf_grads)
    for name, grad in hf_grads.items():
        torch.testing.assert_close(bertkit_grads[name], grad, atol=2e-6, rtol=1e-4)


def test_scores_match_margins() -> None:
    """The margins are 2, -1, and 0; a margin of 0 counts as wrong."""
    rewards = ((3.0, 1.0), (0.0, 1.0), (0.5, 0.5))
    answers = [PreferenceAnswer(*pair, True) for pair in rewards]
    log_probability = sum(-math.log(1 + math.exp(-margin)) for margin in (2.0, -1.0, 0.0)) / 3
    expected = {"accuracy": 1 / 3, "margin": 1 / 3, "log_probability": log_probability}
    assert Dpo().score(answers, PAIRS) == pytest.approx(expected)
    without_reference = [PreferenceAnswer(*pair, False) for pair in rewards]
    assert Dpo().score(without_reference, PAIRS) == {"chosen_more_likely": pytest.approx(1 / 3)}
    record = Dpo().error_record(answers[1], PAIRS[1])
    assert (record.expected, record.answered) == ("Yes!", f"{PAIRS[1].rejected} (by 1.000)")
    assert [Dpo().error_record(a, PAIRS[0]).severity for a in answers] == [0.0, 1.0, 0.0]


def test_features_truncate_or_reject_too_long_pairs(folder: Path) -> None:
    tokenizer = bertkit.load(folder).tokenizer
    with pytest.raises(DataError, match=r"a:1: .* \d+ tokens, but the maximum length is 40; s"):
        Dpo().features(PAIRS, tokenizer, 40, long="truncate", labeled=True)
    cut = Dpo().features(PAIRS[1:2], tokenizer, 75, long="truncate", labeled=True)
    assert [feature.truncated for feature in cut] == [False, True]


def write_pairs(path: Path, seed: int, count: int, *, shuffled: bool) -> Path:
    """Write pairs that prefer lowercase answers; `shuffled` reverses every second pair."""
    rng = random.Random(seed)
    rows = []
    for number in range(count):
        word = "".join(rng.choices("abcdefghij", k=4))
        pair = [word, word.upper()]
        if shuffled and number % 2:
            pair.reverse()
        prompt = "".join(rng.choices("klmnop", k=3))
        rows.append({"prompt": prompt, "chosen": pair[0], "rejected": pair[1]})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


SETTINGS = Finetune(epochs=2, batch_size=8, learning_rate=2e-3, weight_decay=0.0, precision="fp32")


@pytest.mark.parametrize("lora", [LoRA(), LoRA(rank=4)], ids=["whole", "lora"])
def test_finetune_learns_the_preference(folder: Path, tmp_path: Path, lora: LoRA) -> None:
    """Accuracy is measured on unseen pairs; shuffled preferences are the control."""
    settings = structs.replace(SETTINGS, lora=lora, learning_rate=1e-2 if lora.rank else 2e-3)
    results = {}
    for shuffled in (False, True):
        out = tmp_path / f"out-{shuffled}"
        results[shuffled] = finetune(
            "dpo",
            folder,
            train=write_pairs(tmp_path / "train.jsonl", 0, 64, shuffled=shuffled),
            dev=write_pairs(tmp_path / "dev.jsonl", 1, 32, shuffled=shuffled),
            out=out,
            settings=settings,
        )
    assert results[False]["accuracy"] == 1.0
    assert results[False]["margin"] > 20 * abs(results[True]["margin"])
    assert results[True]["accuracy"] == pytest.approx(0.5, abs=0.15)
    out = tmp_path / "out-False"
    assert not (out / "checkpoints").exists()
    test = write_pairs(tmp_path / "test.jsonl", 2, 32, shuffled=False)
    # Margins require the initial model, which the directory does not contain.
    scores = evaluate(str(out), test)
    assert set(scores) == {"chosen_more_likely", "rows", "truncated"}
    assert "bertkit chat" in (out / "README.md").read_text(encoding="utf-8")
    assert (out / "adapter").exists() == bool(lora.rank)


@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=pytest.mark.bf16)])
def test_resumed_run_matches_uninterrupted_run(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: Any
) -> None:
    settings = structs.replace(SETTINGS, save_minutes=0.0, precision=precision)
    rows = write_pairs(tmp_path / "train.jsonl", 0, 32, shuffled=False)
    whole, out = tmp_path / "whole", tmp_path / "stopped"
    run = partial(finetune, "dpo", folder, train=rows, dev=rows, settings=settings)
    uninterrupted = run(out=whole)
    first = json.loads((whole / "journal.jsonl").read_text().splitlines()[0])
    assert first["loss"] == pytest.approx(math.log(2), abs=1e-5)

    def stopping(*args: Any, **kwargs: Any) -> Any:
        for step in steps(*args, **kwargs):
            yield step
            if step.number == 6:
                raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(recipe, "steps", stopping)
        with pytest.raises(KeyboardInterrupt):
            run(out=out)
    start_file = out / "checkpoints/start.safetensors"
    assert set(load_file(start_file)) == {"train", "dev"}
    before = start_file.read_bytes()
    start_file.unlink()
    with pytest.raises(CheckpointError, match=r"start\.safetensors: missing"):
        run(out=out, resume=True)
    start_file.write_bytes(before[:-8])
    with pytest.raises(CheckpointError, match=r"start\.safetensors: truncated or invalid"):
        run(out=out, resume=True)
    start_file.write_bytes(before)
    assert run(out=out, resume=True) == uninterrupted
    files = [directory / "model.safetensors" for directory in (out, whole)]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_dpo_command_trains_and_rejects_equal_answers(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = write_pairs(tmp_path / "rows.jsonl", 0, 8, shuffled=False)
    command = ["finetune", "dpo", "--model", str(folder), "--train", str(rows), "--dev", str(rows)]
    command += ["--epochs", "1", "--beta", "0.3", "--out", str(tmp_path / "out")]
    assert cli.run(command) == 0
    out = capsys.readouterr().out
    assert {"accuracy", "margin", "log_probability", "epoch"} == set(json.loads(out))
    config = json.loads((tmp_path / "out/config.json").read_text(encoding="utf-8"))
    assert config["bertkit"]["task"] == {"name": "dpo", "options": {"beta": 0.3}}
    rows.write_text('{"prompt": "a", "chosen": "b", "rejected": "b"}\n')
    command[-1] = str(tmp_path / "other")
    assert cli.run(command) == 2
    message = capsys.readouterr().err
    assert f"{rows}:1: chosen and rejected are equal; remove the row" in message
    assert not (tmp_path / "other").exists()


def test_finetune_keeps_loaded_model_and_distill_rejects_result(
    folder: Path, tmp_path: Path
) -> None:
    loaded, out, student = bertkit.load(folder), tmp_path / "out", tmp_path / "student"
    before = copy.deepcopy(loaded.model.state_dict())
    finetune("dpo", loaded, train=PAIRS, dev=PAIRS, out=out, settings=SETTINGS)
    assert all(torch.equal(w, before[name]) for name, w in loaded.model.state_dict().items())
    with pytest.raises(ConfigError, match="dpo uses the initial model as its reference"):
        distill(str(out), train=PAIRS, dev=PAIRS, layers=1, out=student)
    assert not student.exists()
