"""The model card: what a fine-tuned folder was made from, how well it does, how to use it."""

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
"""How each task is asked, where it is not by a text."""

COMMANDS = {
    "chat": "bertkit chat {}",
    "dpo": "bertkit chat {}",
    "seq2seq": 'echo "A text." | bertkit generate {}',
}
"""How tasks are asked whose models write."""

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
"""The class of transformers for each task; of sentence-transformers, for vectors."""


def write_card(folder: Path, run: Mapping[str, Any], *, num_candidates: int = 1) -> None:
    """Write the model card of a fine-tuned model.

    Args:
        folder: Directory of the model.
        run: Content of its scores.json.
        num_candidates: Number of combinations of settings that dev selected the model from.
    """
    task = run["task"]
    name = task["name"]
    # Scores of a tagger are equal for columns and for raw text.
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
        f"{_chosen(run['metric'])} chosen on these same rows, so expect a little less on others."
        + f" Dev also selected its settings from {num_candidates} combinations."
        * (num_candidates > 1),
        "",
        *_scores(scores),
        "",
        *_labels(run),
        *_calibration(run.get("calibration")),
        "`errors.html` of the run lists the worst answers.",
        "",
        *_test(read_test(folder)),
        "## Use",
        "",
        *_use(name, folder.name),
        "",
        *_elsewhere(name, task["options"], read_settings(folder)),
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
        + (f" ({_drawn(part, held)})" if held else "")
        + f", sha256 {about['sha256'][:16]}…"
    )


def _drawn(part: str, held: Mapping[str, Any]) -> str:
    what = held["from"].removeprefix("this file, ") if part == "train" else "held out of train"
    return f"{what}: a share of {held['share']:g}, seed {held['seed']}"


def _labels(run: Mapping[str, Any]) -> list[str]:
    """Scores of each label, and the confusion matrix where it is small."""
    if not (scores := run.get("by_label")):
        return []
    rows = [
        f"| {_cell(label)} | {one['precision']:.3f} | {one['recall']:.3f} | {one['f1']:.3f} | "
        f"{one['support']:,} |"
        for label, one in scores.items()
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
    head = [f"| expected, and answered: | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    return [*lines, *head, *counts, ""]


def _calibration(about: Mapping[str, float] | None) -> list[str]:
    if about is None:
        return []
    return [
        f"Confidences are calibrated: a temperature of {about['temperature']:.2f}, fitted on dev, "
        f"takes the expected calibration error there from {about['error_before']:.3f} to "
        f"{about['error']:.3f}. Other programs that open the folder do not know it.",
        "",
    ]


def _cell(text: str) -> str:
    """A label as a cell of a table in Markdown."""
    return " ".join(text.split()).replace("|", "\\|")


def _test(scores: Mapping[str, float]) -> list[str]:
    if not scores:
        return []
    return [
        "## Scores on test",
        "",
        "These rows chose nothing: they were scored once, at the end.",
        "",
        *_scores(scores),
        "",
    ]


def _adapters(folder: Path, lora: Mapping[str, Any]) -> list[str]:
    if not lora.get("rank"):
        return []
    alone = (
        "; `adapter/` holds them alone, as peft reads them" * (folder / ADAPTER_DIRECTORY).exists()
    )
    return ["", f"Its adapters (LoRA) are merged{alone}."]


def settings_lines(values: Mapping[str, Any], group: str = "") -> list[str]:
    """Return a line for each setting, named by its path."""
    lines: list[str] = []
    for name, value in values.items():
        inner = isinstance(value, Mapping)
        lines += settings_lines(value, f"{name}.") if inner else [f"- {group}{name} = {value}"]
    return lines


def _use(task: str, folder: str) -> list[str]:
    if task in COMMANDS:
        return ["```bash", COMMANDS[task].format(folder), "```"]
    asked = EXAMPLES.get(task, '"A text."')
    return [
        "```python",
        "import bertkit",
        "",
        f'ready = bertkit.pipeline("{task}", "{folder}")',
        f"ready({asked})",
        "```",
    ]


def _chosen(metric: str) -> str:
    return "The epoch and the threshold were" if metric.startswith("best_") else "The epoch was"


def _scores(scores: Mapping[str, float]) -> list[str]:
    rows = [f"| {name} | {value:.4f} |" for name, value in scores.items()]
    return ["| score | |", "|---|---|", *rows]


def _elsewhere(name: str, options: Mapping[str, Any], settings: Mapping[str, Any]) -> list[str]:
    if name not in AUTO:
        return ["This task comes from outside bertkit; opening the folder needs its code."]
    if is_own_format(settings):
        return ["No other library loads this directory."]
    lines = [f"In transformers, `{AUTO[name]}` opens this folder and gives the same logits."]
    if name == "similarity":
        lines = [
            f"`bertkit embed` makes vectors with it. In sentence-transformers, `{AUTO[name]}` "
            "opens this folder and makes the same ones."
        ]
    architectures = str(settings.get("architectures"))
    if AUTO[name] == AUTO["choose"] and "ForSequenceClassification" in architectures:  # causal
        lines = [
            f"In transformers, `{AUTO['classify']}` opens this folder and gives the same score of "
            "each choice, read alone behind its text."
        ]
    if options.get("contrastive"):
        lines = [
            "`bertkit embed` makes its vectors, and `SentenceTransformer` opens this folder and "
            "makes the same. The linear layer that gives labels from them, as they are before they "
            "are normalized, is `heads.vector.out` in its weights."
        ]
    if options.get("both_orders"):
        lines = [
            f"In transformers, `{AUTO[name]}` opens this folder and gives the logits of a pair in "
            "one order: add those of the other."
        ]
    if options.get("crf"):
        lines = [
            f"In transformers, `{AUTO[name]}` opens this folder and gives the same emissions, but "
            "it knows no CRF: its labels may differ."
        ]
    return lines
