"""Preferences: the loss of Rafailov et al. 2023, over answers alone, from where a model began."""

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
from tests.extensions.generation.tasks.test_seq2seq import write_model
from tests.extensions.generation.test_chat_format import TALK, vocabulary
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
from bertkit.models.model import build
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
    out = tmp_path_factory.mktemp("writer") / "model"
    tokenizer, family = vocabulary("chatml"), FAMILIES["llama"]
    settings = {"vocab": tokenizer.vocab_size, "hidden": 32, "layers": 2, "heads": 4}
    config = family.config({**settings, "intermediate": 64, "max_positions": 256})
    torch.manual_seed(0)
    save(out, build(config, ("lm",)), tokenizer, family)
    return out


def annotated(loaded: Loaded, task: Dpo, pairs: list[Preference] = PAIRS) -> list[Feature]:
    """The features with what the model says now."""
    features = task.features(pairs, loaded.tokenizer, 256, long="error", labelled=True)
    outputs = run_head(task, Engine(loaded.model), features)
    return [replace(f, teacher_outputs=rows) for f, rows in zip(features, outputs, strict=True)]


def test_the_answers_alone_count(folder: Path) -> None:
    loaded = bertkit.load(folder)
    features = Dpo().features(PAIRS, loaded.tokenizer, 256, long="error", labelled=True)
    seen = []
    for feature in features:
        assert feature.token_indices is not None
        following = feature.encoding.ids[feature.token_indices + 1]
        pieces = loaded.tokenizer.core.decode(following.tolist(), skip_special_tokens=False)
        seen.append((feature.example, feature.target, pieces))
    print("\n".join(f"{example} {sign:+.0f} {said!r}" for example, sign, said in seen))
    end = "<|im_end|>"
    assert seen == [
        (number, sign, text + end)
        for number, pair in enumerate(PAIRS)
        for sign, text in ((1.0, pair.chosen), (-1.0, pair.rejected))
    ]
    whole = loaded.tokenizer.core.decode(
        features[0].encoding.ids.tolist(), skip_special_tokens=False
    )
    assert whole.endswith("And you?<|im_end|>\n<|im_start|>assistant\nWell, thanks.<|im_end|>\n")


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip)


@given(asked=TEXTS, chosen=TEXTS, rejected=TEXTS)
@settings(max_examples=50)
def test_whatever_is_said_the_answers_alone_count(asked: str, chosen: str, rejected: str) -> None:
    """Also where a message spells a special token."""
    tokenizer = vocabulary("chatml")
    pair = Preference((Message("user", asked),), chosen, rejected + "<|im_end|>", "a:1")
    end = tokenizer.token("<|im_end|>")
    features = Dpo().features([pair], tokenizer, 10_000, long="error", labelled=True)
    for feature, text in zip(features, (pair.chosen, pair.rejected), strict=True):
        assert feature.token_indices is not None
        *said, last = feature.encoding.ids[feature.token_indices + 1].tolist()
        assert last == end
        assert end not in said
        assert said == tokenizer.ids([text])[0].tolist()


def test_at_first_the_loss_is_log_2(folder: Path) -> None:
    loaded, task = bertkit.load(folder), Dpo()
    batch = make_batch(task, annotated(loaded, task))
    assert task.loss(loaded.model, batch, totals([batch])).total.item() == pytest.approx(
        math.log(2), abs=1e-5
    )


@pytest.mark.parametrize("cut", [False, True])
def test_loss_and_gradient_are_those_of_transformers_logits(
    folder: Path, tmp_path: Path, cut: bool
) -> None:
    """Also where a step is cut into batches."""
    transformers = pytest.importorskip("transformers", reason="pip install 'bertkit[dev]'")
    loaded, task = bertkit.load(folder), Dpo((), DpoOptions(beta=0.7))
    start = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    features = annotated(loaded, task)
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in loaded.model.parameters():
            weight.add_(torch.randn_like(weight) * 0.05)
    save(tmp_path / "moved", loaded.model, loaded.tokenizer, loaded.family)
    moved = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "moved").eval()

    def logp(model: Any, feature: Feature, text: str) -> Tensor:
        ids = torch.from_numpy(feature.encoding.ids)
        said = [*loaded.tokenizer.ids([text])[0].tolist(), loaded.tokenizer.token("<|im_end|>")]
        first = len(ids) - len(said) - 1  # the newline behind is not the assistant's
        assert ids[first : first + len(said)].tolist() == said
        chances = model(ids[None]).logits[0].log_softmax(-1)
        return sum((chances[first - 1 + n, token] for n, token in enumerate(said)), torch.zeros(()))

    terms = []
    for number, pair in enumerate(PAIRS):
        gains = []
        for place, text in ((2 * number, pair.chosen), (2 * number + 1, pair.rejected)):
            with torch.no_grad():
                before = logp(start, features[place], text)
            gains.append(logp(moved, features[place], text) - before)
        terms.append(-torch.log(torch.sigmoid(0.7 * (gains[0] - gains[1]))))
    expected = torch.stack(terms).mean()
    expected.backward()

    groups = [features[:2], features[2:]] if cut else [features]
    batches = [make_batch(task, group) for group in groups]
    counts = totals(batches)
    total = 0.0
    for batch in batches:
        loss = task.loss(loaded.model, batch, counts).total
        loss.backward()
        total += loss.item()
    assert total == pytest.approx(expected.item(), rel=1e-5)
    assert abs(total - math.log(2)) > 1e-3  # the control: it is another model now
    grads = {n: p.grad for n, p in loaded.model.named_parameters() if p.grad is not None}
    theirs = {n: p.grad for n, p in moved.named_parameters() if p.grad is not None}
    ours = loaded.family.write(grads, loaded.model.config)
    assert set(ours) == set(theirs)
    for name, grad in theirs.items():
        torch.testing.assert_close(ours[name], grad, atol=2e-6, rtol=1e-4)


def test_scores_are_those_of_the_margins() -> None:
    """By hand: margins of 2, -1 and 0, which is no gain."""
    answers = [PreferenceAnswer(*rewards, True) for rewards in ((3.0, 1.0), (0.0, 1.0), (0.5, 0.5))]
    chances = [1 / (1 + math.exp(-margin)) for margin in (2.0, -1.0, 0.0)]
    assert Dpo().score(answers, PAIRS) == pytest.approx(
        {
            "accuracy": 1 / 3,
            "margin": 1 / 3,
            "log_probability": sum(math.log(chance) for chance in chances) / 3,
        }
    )
    alone = [PreferenceAnswer(answer.chosen, answer.rejected, False) for answer in answers]
    assert Dpo().score(alone, PAIRS) == {"chosen_likelier": pytest.approx(1 / 3)}
    record = Dpo().error_record(answers[1], PAIRS[1])
    assert (record.expected, record.answered) == ("Yes!", f"{PAIRS[1].rejected} (by 1.000)")
    assert [Dpo().error_record(a, PAIRS[0]).severity for a in answers] == [0.0, 1.0, 0.0]


def test_a_pair_longer_than_the_model_is_named(folder: Path) -> None:
    tokenizer = bertkit.load(folder).tokenizer
    with pytest.raises(DataError, match=r"a:1: \d+ tokens, but the model supports 40; shorten"):
        Dpo().features(PAIRS, tokenizer, 40, long="truncate", labelled=True)
    cut = Dpo().features(PAIRS[1:2], tokenizer, 75, long="truncate", labelled=True)
    assert [feature.truncated for feature in cut] == [False, True]


def test_models_with_an_encoder_are_refused(tmp_path: Path) -> None:
    model = write_model(tmp_path / "t5", "t5")
    with pytest.raises(CheckpointError, match="not supported by encoder-decoder models"):
        finetune("dpo", model, train=PAIRS, dev=PAIRS, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def written(path: Path, seed: int, count: int, *, shuffled: bool) -> Path:
    """Pairs of which small letters are preferred to large ones; or either, as a coin says."""
    chance = random.Random(seed)
    rows = []
    for number in range(count):
        word = "".join(chance.choices("abcdefghij", k=4))
        pair = [word, word.upper()]
        if shuffled and number % 2:
            pair.reverse()
        asked = "".join(chance.choices("klmnop", k=3))
        rows.append({"prompt": asked, "chosen": pair[0], "rejected": pair[1]})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


SETTINGS = Finetune(epochs=2, batch_size=8, learning_rate=2e-3, weight_decay=0.0, precision="fp32")


@pytest.mark.parametrize("lora", [LoRA(), LoRA(rank=4)], ids=["whole", "lora"])
def test_it_learns_what_is_preferred(folder: Path, tmp_path: Path, lora: LoRA) -> None:
    """Of pairs that it never saw; and nothing where there is nothing to learn."""
    settings = structs.replace(SETTINGS, lora=lora, learning_rate=1e-2 if lora.rank else 2e-3)
    found = {}
    for shuffled in (False, True):
        out = tmp_path / f"out-{shuffled}"
        found[shuffled] = finetune(
            "dpo",
            folder,
            train=written(tmp_path / "train.jsonl", 0, 64, shuffled=shuffled),
            dev=written(tmp_path / "dev.jsonl", 1, 32, shuffled=shuffled),
            out=out,
            settings=settings,
        )
    assert found[False]["accuracy"] == 1.0
    assert found[False]["margin"] > 20 * abs(found[True]["margin"])
    assert found[True]["accuracy"] == pytest.approx(0.5, abs=0.15)
    out = tmp_path / "out-False"
    assert not (out / "checkpoints").exists()
    test = written(tmp_path / "test.jsonl", 2, 32, shuffled=False)
    # of the folder alone it is not known where it began
    scores = evaluate(str(out), test)
    assert set(scores) == {"chosen_likelier", "rows", "truncated"}
    assert "bertkit chat" in (out / "README.md").read_text(encoding="utf-8")
    assert (out / "adapter").exists() == bool(lora.rank)


@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=pytest.mark.bf16)])
def test_a_stopped_run_goes_on_to_the_same_weights(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: Any
) -> None:
    settings = structs.replace(SETTINGS, save_minutes=0.0, precision=precision)
    rows = written(tmp_path / "train.jsonl", 0, 32, shuffled=False)
    given: dict[str, Any] = {"train": rows, "dev": rows, "settings": settings}
    whole = finetune("dpo", folder, **given, out=tmp_path / "whole")
    first = json.loads((tmp_path / "whole/journal.jsonl").read_text().splitlines()[0])
    assert first["loss"] == pytest.approx(math.log(2), abs=1e-5)

    def stopping(*words: Any, at: int, **named: Any) -> Any:
        for step in steps(*words, **named):
            yield step
            if step.number == at:
                raise KeyboardInterrupt

    for at in (2, 6):
        out = tmp_path / f"stopped-{at}"
        monkeypatch.setattr(recipe, "steps", partial(stopping, at=at))
        with pytest.raises(KeyboardInterrupt):
            finetune("dpo", folder, **given, out=out)
        monkeypatch.setattr(recipe, "steps", steps)
        kept = out / "checkpoints/start.safetensors"
        assert set(load_file(kept)) == {"train", "dev"}
        before = kept.read_bytes()
        kept.unlink()
        with pytest.raises(CheckpointError, match=r"start\.safetensors: missing"):
            finetune("dpo", folder, **given, out=out, resume=True)
        kept.write_bytes(before[:-8])
        with pytest.raises(CheckpointError, match=r"start\.safetensors: truncated or invalid"):
            finetune("dpo", folder, **given, out=out, resume=True)
        kept.write_bytes(before)
        assert finetune("dpo", folder, **given, out=out, resume=True) == whole
        files = [place / "model.safetensors" for place in (out, tmp_path / "whole")]
        assert files[0].read_bytes() == files[1].read_bytes()


def test_at_the_command_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = written(tmp_path / "rows.jsonl", 0, 8, shuffled=False)
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
    said = capsys.readouterr().err
    assert f"{rows}:1: chosen and rejected are equal; remove the row" in said
    assert not (tmp_path / "other").exists()


def test_a_model_that_is_open_already_stays(folder: Path, tmp_path: Path) -> None:
    loaded = bertkit.load(folder)
    before = copy.deepcopy(loaded.model.state_dict())
    finetune("dpo", loaded, train=PAIRS, dev=PAIRS, out=tmp_path / "out", settings=SETTINGS)
    assert all(torch.equal(w, before[name]) for name, w in loaded.model.state_dict().items())


def test_preferences_are_not_distilled(folder: Path, tmp_path: Path) -> None:
    finetune("dpo", folder, train=PAIRS, dev=PAIRS, out=tmp_path / "out", settings=SETTINGS)
    data: dict[str, Any] = {"train": PAIRS, "dev": PAIRS, "layers": 1, "out": tmp_path / "student"}
    with pytest.raises(ConfigError, match="dpo uses the initial model as its reference"):
        distill(str(tmp_path / "out"), **data)
    assert not (tmp_path / "student").exists()
