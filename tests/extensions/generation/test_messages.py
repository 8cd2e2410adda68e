"""Conversations from files: what is wrong is said with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertkit.errors import DataError
from bertkit.extensions.generation.chat_format import Message
from bertkit.extensions.generation.messages import read_conversations, read_preferences

GOOD = '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}'


def test_rows_are_read(tmp_path: Path) -> None:
    path = tmp_path / "talk.jsonl"
    path.write_text(f"{GOOD}\n{GOOD}\n")
    first, second = read_conversations(path)
    assert first.messages == (Message("user", "a"), Message("assistant", "b"))
    assert second.where == f"{path}:2"


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ('{"text": "a"}', 'no field "messages"'),
        ('{"messages": []}', "must contain at least one message"),
        ('{"messages": [{"role": "user", "content": "a"}]}', "no message of the assistant"),
        ('{"messages": [{"role": "bot", "content": "a"}]}', "bot"),
        ('{"messages": [{"role": "user"}]}', "content"),
        ('{"messages": "a"}', "messages"),
        ("{", "JSON"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(row: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "talk.jsonl"
    path.write_text(f"{GOOD}\n{row}\n")
    with pytest.raises(DataError, match=said) as error:
        read_conversations(path)
    assert f"{path}:2" in str(error.value)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "talk.tsv"
    path.write_text("a\tb\n")
    with pytest.raises(DataError, match=r"\.jsonl"):
        read_conversations(path)


ASKED = '"messages": [{"role": "user", "content": "a"}]'
PAIR = f'{{{ASKED}, "chosen": "b", "rejected": "c"}}'


def test_preferences_are_read(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text(f'{PAIR}\n{{"prompt": "a", "chosen": "b", "rejected": "c", "id": 3}}\n')
    first, second = read_preferences(path)
    assert first.messages == second.messages == (Message("user", "a"),)
    assert (first.chosen, first.rejected) == (second.chosen, second.rejected) == ("b", "c")
    assert second.where == f"{path}:2"


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ('{"chosen": "b", "rejected": "c"}', 'no field "messages"'),
        (f'{{{ASKED}, "rejected": "c"}}', 'no field "chosen"'),
        (f'{{{ASKED}, "chosen": "c"}}', 'no field "rejected"'),
        (f'{{{ASKED}, "chosen": "b", "rejected": 3}}', "rejected is not a string"),
        (f'{{{ASKED}, "chosen": "b", "rejected": " "}}', "rejected is empty; remove the row"),
        (f'{{{ASKED}, "chosen": "", "rejected": "c"}}', "chosen is empty; remove the row"),
        (f'{{{ASKED}, "chosen": "b", "rejected": "b"}}', "chosen and rejected are equal"),
        ('{"prompt": "", "chosen": "b", "rejected": "c"}', "prompt is empty"),
        (
            f'{{{ASKED}, "prompt": "a", "chosen": "b", "rejected": "c"}}',
            "messages cannot be combined with prompt",
        ),
        (PAIR.replace("user", "bot"), "bot"),
        (PAIR.replace("user", "assistant"), "the last message must not be the assistant's"),
        (PAIR.replace(ASKED, '"messages": []'), "must contain at least one message"),
        ("[]", "expected a JSON object, got list"),
    ],
)
def test_what_is_wrong_with_a_pair_is_named_with_its_line(
    row: str, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text(f"{PAIR}\n{row}\n")
    with pytest.raises(DataError, match=said) as error:
        read_preferences(path)
    assert f"{path}:2" in str(error.value)
