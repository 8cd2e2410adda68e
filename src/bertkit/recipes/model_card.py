"""Model card of a fine-tuned model: its data, scores, usage and settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertkit.recipes.final_test import read_test
from bertkit.recipes.metadata import (
    data_name,
    front_matter,
    is_own_format,
    model_name,
    read_settings,
)
from bertkit.storage import write_text
from bertkit.tasks.confusion import MOST_LABELS, NO_LABEL
from bertkit.training.epochs import ADAPTER_DIRECTORY

FILE = "README.md"

EXAMPLES = {
    "answer": '("Who wrote it?", "It was written by Ada.")',
    "choose": '("What falls?", ["rain", "the sky"])',
    "similarity": '("How are you?", "Are you well?")',
    "respond": '("How are you?", ["Fine, thanks.", "At eight."])',
}
"""Example input for each task whose input is not a single text."""

COMMANDS = {
    "chat": "bertkit chat {}",
    "dpo": "bertkit chat {}",
    "seq2seq": 'echo "A text." | bertkit generate {}',
}
"""Command that runs a model of each generative task."""

AUTO = {
    "classify": "AutoModelForSequenceClassification",
    "choose": "AutoModelForMultipleChoice",
    "respond": "AutoModelForMultipleChoice",
    "answer": "AutoModelForQuestionAnswering",
    "similarity": "SentenceTransformer",
    "tag": "AutoModelForTokenClassification",
    "summarize": "AutoModelForTokenClassification",
    "chat": "AutoModelForCausalLM",
    "dpo": "AutoModelForCausalLM",
    "seq2seq": "AutoModelForSeq2SeqLM",
}
"""Class of transformers or sentence-transformers that loads the models of each task."""


def write_card(folder: Path, run: Mapping[str, Any], *, num_candidates: int = 1) -> None:
    """Write the model card of a fine-tuned model.

    Args:
        folder: Directory of the model.
        run: Content of its scores.json.
        num_candidates: Number of combinations of settings from which the model was selected on dev.
    """
    task = run["task"]
    name = task["name"]
    # A tagger has the same scores on columns of words as on raw text.
    # test: tests/data/test_word_columns.py::test_columns_and_joined_text_have_equal_features
    scores = {k: v for k, v in run["dev"].items() if k != "epoch"}
    lines = [
        *front_matter(folder, run),
        f"# {folder.name}",
        "",
        f"`{model_name(run['model'])}`, fine-tuned by bertkit for the task `{name}`.",
        "",
        "## Data",
        "",
        *(_data(part, about) for part, about in run["data"].items()),
        "",
        "## Scores on dev",
        "",
        f"Epoch {run['dev']['epoch']} of {len(run['epochs'])}, the best by {run['metric']}. "
        f"{_selected(run['metric'])} selected on dev, so expect slightly lower scores on new data."
        + f" Its settings were also selected on dev, from {num_candidates} combinations."
        * (num_candidates > 1),
        "",
        *score_table(scores),
        "",
        *_labels(run),
        *_calibration(run.get("calibration")),
        "`errors.html` in the run directory lists the worst predictions.",
        "",
        *_test(read_test(folder)),
        "## Use",
        "",
        *_use(name, folder.name),
        "",
        *_other_tools(name, task["options"], read_settings(folder)),
        *_adapters(folder, run["settings"].get("lora", {})),
        "",
        "## Settings",
        "",
        *settings_lines({**run["settings"], **task["options"]}),
    ]
    write_text(folder / FILE, "\n".join(lines) + "\n")


def _data(part: str, about: Mapping[str, Any]) -> str:
    held = about.get("held_out")
    return (
        f"- {part}: {data_name(about)}, {about['rows']:,} examples"
        + (f" ({_held_out(part, held)})" if held else "")
        + f", sha256 {about['sha256'][:16]}…"
    )


def _held_out(part: str, held: Mapping[str, Any]) -> str:
    origin = held["from"].removeprefix("this file, ") if part == "train" else "held out of train"
    return f"{origin}: fraction {held['share']:g}, seed {held['seed']}"


def _labels(run: Mapping[str, Any]) -> list[str]:
    """Return tables of the scores of each label, and of the confusion matrix if it is small."""
    if not (scores := run.get("by_label")):
        return []
    rows = [
        f"| {_cell(label)} | {row['precision']:.3f} | {row['recall']:.3f} | {row['f1']:.3f} | "
        f"{row['support']:,} |"
        for label, row in scores.items()
    ]
    lines = ["| label | precision | recall | f1 | support |", "|---|---|---|---|---|", *rows, ""]
    matrix = run.get("confusion")
    if matrix is None or len(matrix["labels"]) > MOST_LABELS:
        return lines
    names = [NO_LABEL if label is None else _cell(label) for label in matrix["labels"]]
    counts = [
        f"| {name} | {' | '.join(f'{count:,}' for count in row)} |"
        for name, row in zip(names, matrix["counts"], strict=True)
    ]
    head = [f"| expected ↓, predicted → | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    return [*lines, *head, *counts, ""]


def _calibration(about: Mapping[str, float] | None) -> list[str]:
    if about is None:
        return []
    return [
        f"Confidences are calibrated: a temperature of {about['temperature']:.2f}, fitted on dev, "
        f"reduces the expected calibration error on dev from {about['error_before']:.3f} to "
        f"{about['error']:.3f}. Other libraries do not apply the temperature.",
        "",
    ]


def _cell(text: str) -> str:
    """Escape a label for a cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|")


def _test(scores: Mapping[str, float]) -> list[str]:
    if not scores:
        return []
    return [
        "## Scores on test",
        "",
        "The test set was used only once, to score the selected epoch.",
        "",
        *score_table(scores),
        "",
    ]


def _adapters(folder: Path, lora: Mapping[str, Any]) -> list[str]:
    if not lora.get("rank"):
        return []
    note = "; `adapter/` contains them in peft format" * (folder / ADAPTER_DIRECTORY).exists()
    return ["", f"The LoRA adapters are merged{note}."]


def settings_lines(values: Mapping[str, Any], group: str = "") -> list[str]:
    """Return a list item for each setting, with its dotted name and its value.

    Args:
        values: The settings.
        group: Prefix of the names, such as "lora.".
    """
    lines: list[str] = []
    for name, value in values.items():
        inner = isinstance(value, Mapping)
        lines += settings_lines(value, f"{name}.") if inner else [f"- {group}{name} = {value}"]
    return lines


def _use(task: str, folder: str) -> list[str]:
    if task in COMMANDS:
        return ["```bash", COMMANDS[task].format(folder), "```"]
    example = EXAMPLES.get(task, '"A text."')
    return [
        "```python",
        "import bertkit",
        "",
        f'pipeline = bertkit.pipeline("{task}", "{folder}")',
        f"pipeline({example})",
        "```",
    ]


def _selected(metric: str) -> str:
    return "The epoch and the threshold were" if metric.startswith("best_") else "The epoch was"


def score_table(scores: Mapping[str, float]) -> list[str]:
    """Return the lines of a Markdown table of scores."""
    rows = [f"| {name} | {value:.4f} |" for name, value in scores.items()]
    return ["| score | |", "|---|---|", *rows]


def _other_tools(name: str, options: Mapping[str, Any], settings: Mapping[str, Any]) -> list[str]:
    if name not in AUTO:
        return ["This task is not part of bertkit; loading the model requires its code."]
    if is_own_format(settings):
        return ["No other library loads this directory."]
    lines = [f"In transformers, `{AUTO[name]}` loads this directory and computes the same logits."]
    if name == "similarity":
        lines = [
            f"`bertkit embed` computes embeddings. In sentence-transformers, `{AUTO[name]}` loads "
            "this directory and computes the same embeddings."
        ]
    architectures = str(settings.get("architectures"))
    # Causal models score each choice separately.
    if AUTO[name] == AUTO["choose"] and "ForSequenceClassification" in architectures:
        lines = [
            f"In transformers, `{AUTO['classify']}` loads this directory. It computes the same "
            "score for each choice if the input is the text followed by this choice."
        ]
    if options.get("contrastive"):
        lines = [
            "`bertkit embed` and `SentenceTransformer` load this directory and compute the same "
            "embeddings. The weights `heads.vector.out` are the linear classifier of the labels. "
            "Its input is the embedding before normalization."
        ]
    if options.get("both_orders"):
        lines = [
            f"In transformers, `{AUTO[name]}` loads this directory and computes the logits of a "
            "pair (A, B); add the logits of (B, A)."
        ]
    if options.get("crf"):
        lines = [
            f"In transformers, `{AUTO[name]}` loads this directory and computes the same "
            "emissions, but without the CRF, so its labels may differ."
        ]
    return lines
