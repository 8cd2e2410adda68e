"""Readers of conversations and of preferences.

A row of a conversation file is {"messages": [{"role": ..., "content": ...}, ...]}. A row of a
preference file also contains a chosen and a rejected answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from bertkit.data.row_readers import Source, has_records, read_records
from bertkit.errors import DataError
from bertkit.extensions.generation.chat_format import Message, check_messages


@dataclass(frozen=True)
class Conversation:
    """Messages of a conversation, and the location of its row in the file."""

    messages: tuple[Message, ...]
    where: str


@dataclass(frozen=True)
class Preference:
    """Messages of a conversation, with a better and a worse answer by the assistant."""

    messages: tuple[Message, ...]
    chosen: str
    rejected: str
    where: str


R = TypeVar("R")


def read_conversations(source: Source) -> list[Conversation]:
    """Read conversations to train on.

    Raises:
        DataError: If a row is not a valid conversation or has no message of the assistant.
    """
    return _rows(source, conversation, "conversations")


def read_preferences(source: Source) -> list[Preference]:
    """Read conversations with a chosen and a rejected answer.

    Raises:
        DataError: If a row is not a valid conversation with two different answers.
    """
    return _rows(source, preference, "preferences")


def _rows(source: Source, convert: Callable[[dict[str, object], str], R], name: str) -> list[R]:
    if isinstance(source, Path) and not has_records(source) and source.exists():
        raise DataError(f"{source}: {name} must be in a .jsonl or .jsonl.gz file; convert the file")
    read = read_records(lambda where, row: convert(row, where), source)
    if not read:
        raise DataError(f"{source}: contains no {name}; use another file")
    return read


def conversation(row: dict[str, object], where: str) -> Conversation:
    """Convert a row {"messages": [...]} to a conversation.

    Raises:
        DataError: If the messages are missing or invalid, or contain no message of the assistant.
    """
    messages = _messages(row, where)
    if not any(message.role == "assistant" for message in messages):
        raise DataError(f"{where}: no message of the assistant to train on; remove the row")
    return Conversation(messages, where)


def preference(row: dict[str, object], where: str) -> Preference:
    """Convert a row with the fields "messages" or "prompt", "chosen", and "rejected".

    The field "prompt" contains a single message of the user.

    Raises:
        DataError: If a field is missing or invalid, or the two answers are equal.
    """
    if "prompt" in row and "messages" in row:
        raise DataError(f"{where}: messages cannot be combined with prompt; remove one of them")
    if "prompt" in row:
        message = {"role": "user", "content": _text(row, "prompt", where)}
        row = {**row, "messages": [message]}
    messages = _messages(row, where)
    chosen, rejected = (_text(row, name, where) for name in ("chosen", "rejected"))
    if messages[-1].role == "assistant":
        raise DataError(
            f"{where}: the last message must not be the assistant's, because chosen and rejected "
            "are its answers; remove the last message"
        )
    if chosen == rejected:
        raise DataError(f"{where}: chosen and rejected are equal; remove the row")
    return Preference(messages, chosen, rejected, where)


def _text(row: dict[str, object], name: str, where: str) -> str:
    text = row.get(name)
    if not isinstance(text, str):
        reason = f"{name} is not a string" if name in row else f'no field "{name}"'
        raise DataError(
            f'{where}: {reason}; use {{"messages": [...], "chosen": "...", "rejected": "..."}}'
        )
    if not text.strip():
        raise DataError(f"{where}: {name} is empty; remove the row")
    return text


def _messages(row: dict[str, object], where: str) -> tuple[Message, ...]:
    if "messages" not in row:
        raise DataError(f'{where}: no field "messages"; use {{"messages": [{{"role": "user", ...')
    try:
        messages = msgspec.convert(row["messages"], tuple[Message, ...])
    except msgspec.ValidationError as error:
        raise DataError(
            f"{where}: messages: {error}; each message must have a role (system, user or "
            "assistant) and a content"
        ) from None
    check_messages(messages, where)
    return messages
