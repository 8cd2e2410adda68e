"""Tags or labels learned on a frozen ELMo: Peters et al. 2018, section 3.2.

The ELMo reads every text once and does not learn; what learns is the weighted sum of its layers
(equation 1), a BiLSTM over it and the task's head.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from msgspec import structs

from bertkit import tasks
from bertkit.checkpoint.formats import open_format
from bertkit.config import Count, Positive, Seed, Settings, plain
from bertkit.console import say
from bertkit.errors import ConfigError
from bertkit.extensions.classic.elmo_task import (
    Network,
    new_network,
    read_states,
    save_elmo_task,
    stored,
    vectors_beside,
    word_features,
)
from bertkit.extensions.classic.fit import fit
from bertkit.extensions.classic.word_models import ElmoFormat
from bertkit.extensions.classic.words import Words
from bertkit.recipes.final_test import read_test, score_test
from bertkit.storage import refuse_used
from bertkit.tasks.examples import RowsLike, check_examples
from bertkit.tasks.held_out import take_rows
from bertkit.tasks.task import Reading
from bertkit.text.word_vectors import Vectors


class Learning(Settings, frozen=True):
    """How the network on top learns."""

    epochs: Count = 10
    batch_size: Count = 32
    """Texts a step."""
    learning_rate: Positive = 1e-3
    """Learning rate of Adam."""
    seed: Seed = 0


def finetune_elmo(
    model: str | Path,
    *,
    task: Literal["tag", "classify"] = "tag",
    train: RowsLike,
    dev: RowsLike | float,
    test: RowsLike | float | None = None,
    out: Path | str,
    vectors: Path | None = None,
    crf: bool = False,
    settings: Learning | None = None,
    network: Network | None = None,
    reading: Reading | None = None,
) -> dict[str, Any]:
    """Tags or labels from a frozen ELMo: the weights of its layers are learned with a BiLSTM.

    `out` becomes a folder that answers as a fine-tuned model does, with the ELMo in it.
    Returns: the scores of the best epoch on dev, and the mixture: the weight of each layer, which
    add up to 1, and what their sum is multiplied by. The same settings give the same scores.
    Raises: CheckpointError for another model, ConfigError when `out` exists, DataError naming file
    and line; before any work.

    Args:
        model: The folder of an ELMo.
        task: tag: entities, or a tag for each word. classify: labels of texts, or a number.
        train: Labelled examples to learn from.
        dev: Examples that select the best epoch and are scored: a file, or the fraction of train to
            hold out, such as 0.1.
        test: Examples, or a fraction of train, that only the selected epoch is scored on, once.
        out: The folder of what is made; it must not exist yet.
        vectors: Word vectors (GloVe or word2vec text, also .gz) that the BiLSTM reads beside the
            layers, as in the paper.
        crf: Whether a CRF scores whole sequences of tags.
    """
    settings, network, out = settings or Learning(), network or Network(), Path(out)
    refuse_used(out)
    opened = open_format(model)
    if not isinstance(opened, ElmoFormat):
        raise opened.mismatch("an ELMo", f"fine-tune it with `bertkit finetune {task}`")
    folder = opened.path
    if crf and task != "tag":
        raise ConfigError(f"crf: {task} has none; leave it out")
    kind = tasks.find(task)
    options = structs.replace(kind.Options(), crf=True) if crf else kind.Options()
    data = take_rows(kind, train, dev, test, reading, options=options, seed=settings.seed)
    learn, check, held = data["train"], data["dev"], data.get("test")
    made = kind.from_examples(learn.examples, options)
    for rows in (check, *([held] if held else [])):
        check_examples(made, rows.examples)
    words, known = Words(folder), None if vectors is None else Vectors.load(vectors)
    read = [word_features(words, made, rows.examples, labelled=True) for rows in (learn, check)]
    states = read_states(words, [*read[0], *read[1]])
    say(f"{states.shape[1]:,} words read, {states.nbytes / 1e6:,.0f} MB of states")
    beside = None
    if known is not None:
        beside = vectors_beside(known, [*learn.examples, *check.examples])
        missing = (~beside.any(1)).float().mean().item()
        say(f"{missing:.1%} of the words have no vector")
    first = sum(len(feature.encoding) - 2 for feature in read[0])
    torch.manual_seed(settings.seed)
    features, head = new_network(made, states, network, first, beside)
    scores = fit(
        features,
        head,
        made,
        stored(made, read[0]),
        stored(made, read[1], first),
        check.examples,
        name=task,
        epochs=settings.epochs,
        batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
        seed=settings.seed,
    )
    result = {
        "model": str(model),
        **({} if vectors is None else {"vectors": str(vectors)}),
        "train": {"file": learn.file, "rows": len(learn.examples)},
        "dev": {"file": check.file, "rows": len(check.examples)},
        "settings": {**plain(settings), **plain(network)},
        "metric": made.metric,
        "scores": scores,
        "mixture": features.mixture(features.rows),
    }
    save_elmo_task(out, folder, made, features, head, network, result, vectors, reading)
    if held is not None:
        score_test(out, kind, held, "cpu")
    return {**result, **read_test(out)}
