"""The guides name every setting with its default, and none that is not there."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import get_args, get_type_hints

import msgspec
import pytest

from bertkit.config import Settings
from bertkit.extensions.classic.recurrent_config import RecurrentConfig
from bertkit.extensions.generation.objectives import DenoisingConfig
from bertkit.extensions.serving.limits import Limits
from bertkit.models.config import TransformerConfig
from bertkit.objectives.distill import Terms
from bertkit.recipes import finetune
from bertkit.recipes import model_card as card
from bertkit.recipes.pretrain_config import PretrainConfig
from bertkit.recipes.run_file import FREE
from bertkit.tasks import TASKS, find

GUIDES = Path(__file__).parents[2] / "docs" / "guide"
GUIDE = (GUIDES / "pretrain.md").read_text(encoding="utf-8")
DISTILL = (GUIDES / "distill.md").read_text(encoding="utf-8")
SERVE = (GUIDES / "serve.md").read_text(encoding="utf-8")
TUNING = (GUIDES / "fine-tuning.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `([\w.]+)` \| ([^|]+) \| ([^|]+) \|$", re.M)


def documented(page: str) -> dict[str, str]:
    """The settings that the page's tables explain, each with the default as written."""
    rows = [row for row in ROW.findall(page) if row[2].strip()]
    assert len({name for name, *_ in rows}) == len(rows), "a setting is explained twice"
    return {name: default.strip() for name, default, _ in rows}


def settings() -> dict[str, str]:
    """The settings there are, each with its default as TOML has it."""
    fields = {field.name: field.default for field in msgspec.structs.fields(PretrainConfig)}
    found = {name: _written(fields[name]) for name in ("family", "objective")}
    found["decoder"] = _written(fields["decoder"])  # its settings are those of `model`
    hints = {**get_type_hints(DenoisingConfig), **get_type_hints(PretrainConfig)}
    groups = {n: hint for n, hint in hints.items() if n != "decoder"}
    groups["model"] = TransformerConfig | RecurrentConfig
    for group, hint in groups.items():
        for kind in get_args(hint) or (hint,):  # one that may be left out is a union with None
            if isinstance(kind, type) and issubclass(kind, Settings):
                found |= {f"{group}.{name}": default for name, default in defaults(kind).items()}
    return {
        **found,
        "model.vocab": "the tokenizer's",
        "model.pad_id": "the tokenizer's",
    }  # read_config fills it in


def defaults(kind: type[Settings]) -> dict[str, str]:
    """The settings of one group and of the groups in it, each with its default as TOML has it."""
    found: dict[str, str] = {}
    hints = get_type_hints(kind)
    for field in msgspec.structs.fields(kind):
        options = (hints[field.name], *get_args(hints[field.name]))
        groups = [o for o in options if isinstance(o, type) and issubclass(o, Settings)]
        if not groups or len(options) > 1:  # variants, or a group that may be left out
            found[field.name] = _written(field.default)
        for group in groups:
            inner = defaults(group)
            assert not {f"{field.name}.{name}" for name in inner} & set(found), "one name, twice"
            found |= {f"{field.name}.{name}": default for name, default in inner.items()}
    return found


def section(page: str, title: str) -> str:
    """What stands below a heading, down to the next one; "" where there is no such heading."""
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", page, re.M | re.S)
    return found[1] if found else ""


def _written(default: object) -> str:
    if default is msgspec.NODEFAULT:
        return "required"
    return "none" if default is None else f"`{json.dumps(msgspec.to_builtins(default))}`"


def test_every_setting_is_documented_with_its_default() -> None:
    assert documented(GUIDE) == settings()


def test_every_setting_of_fine_tuning_is_documented_with_its_default() -> None:
    assert documented(section(TUNING, "Settings of every task")) == defaults(finetune.Finetune)


def test_every_term_of_distillation_is_documented_with_its_default() -> None:
    assert documented(section(DISTILL, "Terms")) == defaults(Terms)


def test_every_limit_of_a_server_is_documented_with_its_default() -> None:
    assert documented(section(SERVE, "Limits")) == defaults(Limits)


@pytest.mark.parametrize("name", TASKS)
def test_every_option_of_a_task_is_documented_with_its_default(name: str) -> None:
    assert documented(section(TUNING, f"Options of `{name}`")) == defaults(find(name).Options)


def test_no_options_are_documented_of_a_task_that_is_not_there() -> None:
    assert set(re.findall(r"^### Options of `(\w+)`$", TUNING, re.M)) <= set(TASKS)


def test_the_table_of_tasks_has_each_with_its_class_and_policies() -> None:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section(TUNING, "The tasks").splitlines()
        if line.startswith("| `")
    ]
    told = {row[0].strip("`"): (row[5].strip("`"), row[6].replace("`", "")) for row in rows}
    assert told == {name: (card.AUTO[name], ", ".join(find(name).long)) for name in TASKS}


@pytest.mark.parametrize(("page", "free"), [(GUIDE, FREE), (TUNING, finetune.FREE)])
def test_what_may_change_on_resume_is_documented(page: str, free: tuple[str, ...]) -> None:
    sentence = re.search(r"may\s+differ when a run is resumed: (.*?)\.\s", page, re.S)
    assert sentence is not None
    assert tuple(re.findall(r"`(\w+)`", sentence[1])) == free


def test_a_setting_left_out_or_made_up_is_caught() -> None:
    row = "| `train.max_grad_norm` | `1.0` | Largest norm of the gradient. |\n"
    assert documented(row) == {"train.max_grad_norm": "`1.0`"}
    assert documented(row) != settings()
    assert documented("| `train.max_grad_norm` | `1.0` |  |\n") == {}


def test_a_section_ends_at_the_next_heading() -> None:
    page = "## one\n| `a` | `1` | A. |\n### two\n| `b` | `2` | B. |\n"
    assert documented(section(page, "one")) == {"a": "`1`"}
    assert documented(section(page, "two")) == {"b": "`2`"}
    assert section(page, "three") == ""
