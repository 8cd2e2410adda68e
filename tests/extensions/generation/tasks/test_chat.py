"""Fine-tuning on conversations, with a loss on the assistant's tokens only."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.extensions.generation.tasks.test_dpo import PAIRS
from tests.extensions.generation.tasks.test_seq2seq import write_model
from tests.extensions.generation.test_chat_format import TALK, vocabulary
from tests.factories import tiny_folder

import bertkit
from bertkit.engine.engine import Engine
from bertkit.errors import CheckpointError, DataError
from bertkit.extensions.generation.messages import Conversation
from bertkit.extensions.generation.tasks.chat import Chat
from bertkit.families import FAMILIES
from bertkit.objectives.loss import totals
from bertkit.recipes.finetune import finetune
from bertkit.tasks.task import by_example, group, make_batch, run_head

EXAMPLES = [Conversation(tuple(TALK), "a:1"), Conversation(tuple(TALK[:2]), "a:2")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, family = tmp_path_factory.mktemp("writer"), FAMILIES["llama"]
    shape: dict[str, Any] = {"hidden": 64, "layers": 2, "heads": 4, "intermediate": 128}
    return tiny_folder(folder, vocabulary("chatml"), "lm", family=family, length=256, **shape)


def test_loss_and_scores_use_only_assistant_tokens(folder: Path) -> None:
    loaded, task = bertkit.load(folder), Chat()
    features = task.features(EXAMPLES, loaded.tokenizer, 256, long="truncate", labeled=True)
    batch = make_batch(task, features)
    with torch.no_grad():
        loss = task.loss(loaded.model, batch, totals([batch])).total
        logits = loaded.model(batch)["lm"].log_softmax(-1)
    assert batch.token_indices is not None
    following = batch.ids[batch.token_indices + 1]
    expected = -logits[torch.arange(len(following)), following].mean()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    num_tokens = sum(len(m.content) for m in TALK if m.role == "assistant") + 2  # two end tokens
    assert len(following) == num_tokens + len(TALK[1].content) + 1

    outputs = run_head(task, Engine(loaded.model), features)
    answers = task.answers(by_example(EXAMPLES, group(features), outputs), torch.nn.Identity())
    scores = task.score(answers, EXAMPLES)
    assert scores["log_probability"] == pytest.approx(-expected.item(), rel=1e-5)
    assert scores["perplexity"] == pytest.approx(math.exp(expected.item()), rel=1e-5)


def test_features_reject_assistant_message_after_maximum_length(folder: Path) -> None:
    loaded = bertkit.load(folder)
    with pytest.raises(DataError, match=r"a:1: the assistant's first message starts after 20"):
        Chat().features(EXAMPLES, loaded.tokenizer, 20, long="truncate", labeled=True)


@pytest.mark.parametrize(("task", "rows"), [("chat", EXAMPLES), ("dpo", PAIRS)])
def test_finetune_rejects_encoder_decoder_model(task: str, rows: Any, tmp_path: Path) -> None:
    model = write_model(tmp_path / "t5", "t5")
    with pytest.raises(CheckpointError, match="not supported by encoder-decoder models"):
        finetune(task, model, train=rows, dev=rows, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
