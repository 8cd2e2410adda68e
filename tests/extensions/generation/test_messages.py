"""Conversations and preferences from files; errors contain the line number."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertkit.errors import DataError
from bertkit.extensions.generation.chat_format import Message
from bertkit.extensions.generation.messages import read_conversations, read_preferences

GOOD = '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}'


def test_read_conversations_returns_messages_and_lines(tmp_path: Path) -> None:
    path = tmp_path / "talk.jsonl"
    path.write_text(f"{GOOD}\n{GOOD}\n")
    first, second = read_conversations(path)
    assert first.messages == (Message("user", "a"), Message("assistant", "b"))
    assert second.where == f"{path}:2"


@pytest.mark.parametrize(
    ("row", "message"),
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
def test_read_conversations_rejects_invalid_row(row: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "talk.jsonl"
    path.write_text(f"{GOOD}\n{row}\n")
    with pytest.raises(DataError, match=message) as error:
        read_conversations(path)
    assert f"{path}:2" in str(error.value)


def test_read_conversations_rejects_other_file_types(tmp_path: Path) -> None:
    path = tmp_path / "talk.tsv"
    path.write_text("a\tb\n")
    with pytest.raises(DataError, match=r"\.jsonl"):
        read_conversations(path)


PROMPT = '"messages": [{"role": "user", "content": "a"}]'
PAIR = f'{{{PROMPT}, "chosen": "b", "rejected": "c"}}'


def test_read_preferences_accepts_messages_and_prompts(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text(f'{PAIR}\n{{"prompt": "a", "chosen": "b", "rejected": "c", "id": 3}}\n')
    first, second = read_preferences(path)
    assert first.messages == second.messages == (Message("user", "a"),)
    assert (first.chosen, first.rejected) == (second.chosen, second.rejected) == ("b", "c")
    assert second.where == f"{path}:2"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"chosen": "b", "rejected": "c"}', 'no field "messages"'),
        (f'{{{PROMPT}, "rejected": "c"}}', 'no field "chosen"'),
        (f'{{{PROMPT}, "chosen": "c"}}', 'no field "rejected"'),
        (f'{{{PROMPT}, "chosen": "b", "rejected": 3}}', "rejected is not a string"),
        (f'{{{PROMPT}, "chosen": "b", "rejected": " "}}', "rejected is empty; remove the row"),
        (f'{{{PROMPT}, "chosen": "", "rejected": "c"}}', "chosen is empty; remove the row"),
        (f'{{{PROMPT}, "chosen": "b", "rejected": "b"}}', "chosen and rejected are equal"),
        ('{"prompt": "", "chosen": "b", "rejected": "c"}', "prompt is empty"),
        (f'{{{PROMPT}, "prompt": "a", "chosen": "b", "rejected": "c"}}', "cannot be combined with"),
        (PAIR.replace("user", "bot"), "bot"),
        (PAIR.replace("user", "assistant"), "the last message must not be the assistant's"),
        (PAIR.replace(PROMPT, '"messages": []'), "must contain at least one message"),
        ("[]", "expected a JSON object, got list"),
    ],
)
def test_read_preferences_rejects_invalid_row(row: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text(f"{PAIR}\n{row}\n")
    with pytest.raises(DataError, match=message) as error:
        read_preferences(path)
    assert f"{path}:2" in str(error.value)
