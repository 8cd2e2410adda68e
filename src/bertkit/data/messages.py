"""Conversations from a file: rows {"messages": [{"role": ..., "content": ...}, ...]}."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from bertkit.data.paths import suffix
from bertkit.data.readers import json_object, numbered
from bertkit.errors import DataError
from bertkit.text.chat import Message, check


@dataclass(frozen=True)
class Conversation:
    """Messages, and where they stand."""

    messages: tuple[Message, ...]
    where: str


def read_conversations(path: Path) -> list[Conversation]:
    """Raises: DataError naming file and line, also for one in which the assistant says nothing."""
    if suffix(path) != ".jsonl" and path.exists():
        raise DataError(f"{path}: conversations are read from .jsonl files, also .gz")
    read = [
        conversation(json_object(raw.encode(), f"{path}:{line}"), f"{path}:{line}")
        for line, raw in numbered(path)
    ]
    if not read:
        raise DataError(f"{path}: no conversations")
    return read


def conversation(row: dict[str, object], where: str) -> Conversation:
    """Raises: DataError for a row that has no messages of the three roles."""
    if "messages" not in row:
        raise DataError(f'{where}: no field "messages"; write {{"messages": [{{"role": "user", ...')
    try:
        messages = msgspec.convert(row["messages"], tuple[Message, ...])
    except msgspec.ValidationError as error:
        raise DataError(
            f"{where}: messages: {error}; a message has a role (system, user or assistant) and "
            "its content"
        ) from None
    check(messages, where)
    if not any(message.role == "assistant" for message in messages):
        raise DataError(
            f"{where}: the assistant says nothing, so that nothing is learned; remove the row"
        )
    return Conversation(messages, where)
