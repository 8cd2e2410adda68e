"""Fine-tuning of causal models with special tokens and an LM loss."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file
from tests.factories import tiny_elmo, tiny_folder

import bertkit
from bertkit.data.multiple_choice import ChoiceQuestion
from bertkit.errors import ConfigError, DataError
from bertkit.extensions.generation.families.gpt2 import GPT2
from bertkit.extensions.generation.families.llama import LLAMA
from bertkit.extensions.generation.families.openai_gpt import OPENAI_GPT
from bertkit.families import Family
from bertkit.models.lora import LoRA
from bertkit.objectives.loss import totals
from bertkit.recipes.evaluate import evaluate
from bertkit.recipes.finetune import Finetune, finetune
from bertkit.tasks.choose import Choose
from bertkit.tasks.classify import Classify
from bertkit.tasks.labeled_text import ClassifyOptions, LabelExample
from bertkit.tasks.task import make_batch
from bertkit.text.causal_format import DELIMITER, EXTRACT, START
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.vocabulary_training import train
from bertkit.training.epochs import Epochs
from bertkit.training.task_model import LM_WEIGHT, load_for_finetuning

MORE: dict[str, dict[str, Any]] = {
    "openai-gpt": {"intermediate": 64},
    "gpt2": {},
    "llama": {"head.lm_tied": False},
}
FAMILIES = [pytest.param(family, id=family.name) for family in (OPENAI_GPT, GPT2, LLAMA)]
ROWS = [
    ("a fine film", "good"),
    ("a dull film", "bad"),
    ("fine and funny", "good"),
    ("so dull", "bad"),
]
LABELLED = [LabelExample(text, None, label) for text, label in ROWS * 4]
PAIRS = [LabelExample(text, other, label) for (text, label), (other, _) in itertools.pairwise(ROWS)]
FAST = Finetune(epochs=25, learning_rate=1e-2, batch_size=4, precision="fp32")
ONCE = replace(FAST, epochs=1)


@pytest.fixture(scope="module")
def tokenizer(english: list[str]) -> Tokenizer:
    return train(english[:30], kind="bpe", size=400, use="write")


def folder_of(family: Family, tokenizer: Tokenizer, directory: Path) -> Path:
    more = MORE[family.name]
    return tiny_folder(directory, tokenizer, "lm", family=family, length=24, spread=0.1, **more)


def task(**options: Any) -> Classify:
    return Classify(
        ("bad", "good"), ClassifyOptions(regression=False, multi_label=False, **options)
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_loading_adds_only_special_tokens(
    family: Family, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    folder = folder_of(family, tokenizer, tmp_path)
    before = bertkit.load(folder).model.state_dict()
    loaded, weight = load_for_finetuning(folder, task(), None)
    assert weight == LM_WEIGHT
    assert loaded.model.config.vocab == loaded.tokenizer.vocab_size == tokenizer.vocab_size + 4
    after = loaded.model.state_dict()
    for name, old in before.items():
        assert torch.equal(after[name][: len(old)], old), name
    rows = after["encoder.embedding.tokens.weight"][tokenizer.vocab_size :]
    old = before["encoder.embedding.tokens.weight"]
    assert 0.5 < rows.std() / old.std() < 2.0
    assert len({*rows[:, 0].tolist()}) == 4
    again, _ = load_for_finetuning(loaded, task(), 0.5)
    assert again.model is not loaded.model
    assert again.model.config.vocab == loaded.model.config.vocab


@pytest.mark.parametrize("family", FAMILIES)
def test_saved_causal_classifier_predicts_training_labels(
    family: Family, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    folder, out = folder_of(family, tokenizer, tmp_path / "m"), tmp_path / "out"
    dev = LABELLED[:4]
    scores = finetune("classify", folder, train=LABELLED, dev=dev, out=out, settings=FAST)
    assert scores["accuracy"] == 1.0
    ask = bertkit.pipeline("classify", out)
    assert [answer.label for answer in ask([text for text, _ in ROWS])] == [
        label for _, label in ROWS
    ]
    assert evaluate(str(out), dev)["accuracy"] == 1.0
    alone = ask("a fine film").scores
    assert ask(["so dull", "a fine film"])[1].scores == pytest.approx(alone, abs=1e-6)
    loaded = bertkit.load(out)
    assert [*loaded.model.heads] == ["classify"]
    tokens = loaded.tokenizer.pieces(loaded.tokenizer.encode("a film").ids)
    assert tokens == [START, "a", *tokenizer.pieces(tokenizer.ids([" film"])[0]), EXTRACT]
    assert loaded.settings["pad_token_id"] == loaded.tokenizer.pad
    assert "lm_head.weight" not in load_file(out / "model.safetensors")
    with pytest.raises(DataError, match="the limit is 24"):
        ask("a fine film " * 20)
    assert ask("a fine film " * 20, long="truncate").truncated
    assert not ask("a fine film " * 20, long="window").truncated


def test_adapters_are_merged_if_special_tokens_are_added(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """New special tokens force a merge; a model that has them keeps a separate adapter."""
    folder, out = folder_of(GPT2, tokenizer, tmp_path / "m"), tmp_path / "out"
    settings = replace(FAST, lora=LoRA(rank=4), learning_rate=3e-2)
    dev = LABELLED[:4]
    scores = finetune("classify", folder, train=LABELLED, dev=dev, out=out, settings=settings)
    assert scores["accuracy"] == 1.0
    assert evaluate(str(out), dev)["accuracy"] == 1.0
    assert not (out / "adapter").exists()
    assert "`adapter/`" not in (out / "README.md").read_text(encoding="utf-8")
    again = tmp_path / "again"
    once = replace(settings, epochs=1)
    finetune("classify", out, train=LABELLED, dev=dev, out=again, settings=once)
    assert (again / "adapter").is_dir()
    assert "`adapter/`" in (again / "README.md").read_text(encoding="utf-8")


def test_resumed_run_reaches_the_same_weights(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of(GPT2, tokenizer, tmp_path / "m")
    rest: dict[str, Any] = {"train": LABELLED, "dev": LABELLED[:4]}
    settings = Finetune(
        epochs=2, learning_rate=5e-3, batch_size=4, precision="fp32", save_minutes=0
    )
    finetune("classify", folder, out=tmp_path / "whole", settings=settings, **rest)
    scored = 0

    def stop(self: Any, number: int, epoch: int) -> None:
        nonlocal scored
        scored += 1
        if scored == 2:
            raise KeyboardInterrupt
        score(self, number, epoch)

    score = Epochs.score
    monkeypatch.setattr(Epochs, "score", stop)
    with pytest.raises(KeyboardInterrupt):
        finetune("classify", folder, out=tmp_path / "cut", settings=settings, **rest)
    monkeypatch.undo()
    finetune("classify", folder, out=tmp_path / "cut", settings=settings, resume=True, **rest)
    expected, resumed = (load_file(tmp_path / n / "model.safetensors") for n in ("whole", "cut"))
    assert all(torch.equal(expected[name], resumed[name]) for name in expected)


def test_lm_weight_changes_the_trained_weights(tokenizer: Tokenizer, tmp_path: Path) -> None:
    folder = folder_of(GPT2, tokenizer, tmp_path / "m")
    learned = []
    for number, weight in enumerate((0.0, 0.5, None)):
        settings = Finetune(
            epochs=1, learning_rate=5e-3, batch_size=4, precision="fp32", lm_weight=weight
        )
        out = tmp_path / str(number)
        finetune("classify", folder, train=LABELLED, dev=LABELLED[:4], out=out, settings=settings)
        learned.append(load_file(out / "model.safetensors")["transformer.wte.weight"])
    assert not torch.allclose(learned[0], learned[1])
    assert torch.equal(learned[1], learned[2])


def test_pair_logits_are_summed_over_both_orders(tokenizer: Tokenizer, tmp_path: Path) -> None:
    folder, out = folder_of(GPT2, tokenizer, tmp_path / "m"), tmp_path / "out"
    options = {"both_orders": True}
    finetune("classify", folder, train=PAIRS, dev=PAIRS, out=out, settings=ONCE, options=options)
    ask = bertkit.pipeline("classify", out)
    model, read = ask.loaded.model, ask.loaded.tokenizer.encode
    assert "add the logits of (B, A)" in (out / "README.md").read_text("utf-8")
    forward, backward = ask([("a fine film", "so dull"), ("so dull", "a fine film")])
    assert forward.scores == pytest.approx(backward.scores, abs=1e-5)
    assert not forward.truncated
    logits = []
    for pair in (("a fine film", "so dull"), ("so dull", "a fine film")):
        (row,) = ask.engine.run([read(*pair)], lambda m, b: m(b)["classify"])
        logits.append(row[0])
    assert DELIMITER in ask.loaded.tokenizer.pieces(read("a", "b").ids)
    total = np.exp(logits[0] + logits[1])
    assert [*forward.scores.values()] == pytest.approx((total / total.sum()).tolist(), abs=1e-5)
    assert np.abs(logits[0] - logits[1]).max() > 1e-4  # Control: orders differ.
    assert ask(("fine " * 30, "film"), long="truncate").truncated
    assert model.causal


def test_pair_loss_uses_logits_of_both_orders(tokenizer: Tokenizer, tmp_path: Path) -> None:
    loaded, _ = load_for_finetuning(folder_of(GPT2, tokenizer, tmp_path), task(pairs=True), 0.0)
    summed_task = task(pairs=True, both_orders=True)
    features = summed_task.features(PAIRS, loaded.tokenizer, 24, long="error", labeled=True)
    assert [f.example for f in features] == [0, 0, 1, 1, 2, 2]
    batch = make_batch(summed_task, features)
    model = loaded.model.eval()
    found = summed_task.loss(model, batch, totals([batch])).total
    logits, targets = [], []
    for first, second in zip(features[::2], features[1::2], strict=True):
        rows = [model(make_batch(summed_task, [item]))["classify"][0] for item in (first, second)]
        logits.append(rows[0] + rows[1])
        targets.append(first.target)
    expected = torch.nn.functional.cross_entropy(torch.stack(logits), torch.tensor(targets))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_choice_model_matches_hugging_face(
    family: Family, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    folder, out = folder_of(family, tokenizer, tmp_path / "m"), tmp_path / "out"
    rows = [
        ChoiceQuestion("a film", ("it is fine", "it is dull"), 0),
        ChoiceQuestion("a film", ("so dull", "so fine"), 1),
    ] * 4
    finetune(Choose, folder, train=rows, dev=rows[:2], out=out, settings=FAST)
    ask = bertkit.pipeline("choose", out)
    answer = ask(("a film", ["it is fine", "it is dull"]))
    assert answer.index == 0
    assert "`AutoModelForSequenceClassification` loads" in (out / "README.md").read_text("utf-8")
    transformers = pytest.importorskip("transformers", reason="pip install 'bertkit[dev]'")
    hf_model = transformers.AutoModelForSequenceClassification.from_pretrained(out).eval()
    encode = transformers.AutoTokenizer.from_pretrained(out)
    read = encode(["a film"] * 2, ["it is fine", "it is dull"], padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = hf_model(read["input_ids"], attention_mask=read["attention_mask"]).logits[:, 0]
    assert logits.softmax(0).tolist() == pytest.approx(answer.scores, abs=1e-5)


def test_lm_weight_requires_a_causal_model(
    tiny: Path, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    settings = Finetune(lm_weight=0.5)
    rest: dict[str, Any] = {"train": LABELLED, "dev": LABELLED, "out": tmp_path / "out"}
    with pytest.raises(ConfigError, match="lm_weight requires a causal model") as error:
        finetune("classify", tiny, settings=settings, **rest)
    assert "(bert) and classify; remove lm_weight" in str(error.value)
    assert not (tmp_path / "out").exists()
    loaded, weight = load_for_finetuning(tiny, task(), None)
    assert weight == 0.0
    assert [*loaded.model.heads] == ["classify"]
    with pytest.raises(DataError, match="both_orders: requires pairs"):
        finetune("classify", tiny, options={"both_orders": True}, **rest)


def test_respond_fine_tunes_on_dialogues(tokenizer: Tokenizer, tmp_path: Path) -> None:
    folder, out = folder_of(GPT2, tokenizer, tmp_path / "m"), tmp_path / "out"
    turns = [[["is it fine", "it is fine"], ["so dull", "no"]], [["a film", "so funny"]]]
    rows = tmp_path / "dialogues.json"
    rows.write_text(json.dumps([{"dialogue": turn} for turn in turns]), encoding="utf-8")
    finetune("respond", folder, train=rows, dev=rows, out=out, settings=ONCE)
    answer = bertkit.pipeline("respond", out)(("is it fine", ["it is fine", "so funny"]))
    assert len(answer.scores) == 2


def test_lm_weight_requires_an_lm_head(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """A Llama classifier is saved without its LM head."""
    folder, out = folder_of(LLAMA, tokenizer, tmp_path / "m"), tmp_path / "out"
    rest: dict[str, Any] = {"train": LABELLED, "dev": LABELLED[:4]}
    finetune("classify", folder, out=out, settings=ONCE, **rest)
    loaded, weight = load_for_finetuning(out, task(), None)
    assert (weight, [*loaded.model.heads]) == (0.0, ["classify"])
    with pytest.raises(ConfigError, match="does not contain an LM head"):
        load_for_finetuning(out, task(), 0.5)
    finetune("classify", out, out=tmp_path / "again", settings=ONCE, **rest)


def test_random_weights_keep_config_and_head(tokenizer: Tokenizer, tmp_path: Path) -> None:
    folder, task = folder_of(GPT2, tokenizer, tmp_path / "gpt"), Classify(("a", "b"))
    models = []
    for model, random_weights in ((folder, False), (folder, True), (bertkit.load(folder), True)):
        torch.manual_seed(1)
        models.append(load_for_finetuning(model, task, 0.0, random_weights=random_weights)[0])
    pretrained, random, again = (loaded.model for loaded in models)
    assert random.config == pretrained.config
    assert models[1].tokenizer.fingerprint == models[0].tokenizer.fingerprint
    for name, weight in random.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], weight, rtol=0, atol=0)
        if name.startswith("heads.classify."):
            torch.testing.assert_close(pretrained.state_dict()[name], weight, rtol=0, atol=0)
    name = "encoder.embedding.tokens.weight"
    assert (random.state_dict()[name] - pretrained.state_dict()[name]).abs().mean() > 0.01


def test_random_weights_reject_frozen_word_features(tmp_path: Path) -> None:
    rows = [{"text": text, "label": label} for text, label in ROWS]
    data: dict[str, Any] = {"train": rows, "dev": rows, "out": tmp_path / "out"}
    finetune("classify", tiny_elmo(tmp_path / "elmo"), **data, epochs=1)
    data["out"] = tmp_path / "again"
    with pytest.raises(ConfigError, match="random_weights is not supported with frozen features"):
        finetune("classify", tmp_path / "out", **data, random_weights=True)
    assert not (tmp_path / "again").exists()
