"""Conversations from a file: rows {"messages": [{"role": ..., "content": ...}, ...]}; and those
with two answers, of which one was preferred.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from bertkit.data.row_readers import Source, each_record, has_records
from bertkit.errors import DataError
from bertkit.extensions.generation.chat_format import Message, check


@dataclass(frozen=True)
class Conversation:
    """Messages, and where they stand."""

    messages: tuple[Message, ...]
    where: str


@dataclass(frozen=True)
class Preference:
    """Messages that the assistant is to answer, its better answer, and a worse one."""

    messages: tuple[Message, ...]
    chosen: str
    rejected: str
    where: str


R = TypeVar("R")


def read_conversations(source: Source) -> list[Conversation]:
    """Read conversations.

    Raises:
        DataError: If a row is no conversation, or the assistant says nothing.
    """
    return _rows(source, conversation, "conversations")


def read_preferences(source: Source) -> list[Preference]:
    """Read conversations with two answers.

    Raises:
        DataError: If a row is no conversation with two answers.
    """
    return _rows(source, preference, "preferences")


def _rows(source: Source, made: Callable[[dict[str, object], str], R], name: str) -> list[R]:
    if isinstance(source, Path) and not has_records(source) and source.exists():
        raise DataError(f"{source}: {name} are read from .jsonl files, also .gz")
    read = each_record(lambda where, row: made(row, where), source)
    if not read:
        raise DataError(f"{source}: no {name}")
    return read


def conversation(row: dict[str, object], where: str) -> Conversation:
    """Raises: DataError for a row that has no messages of the three roles."""
    messages = _messages(row, where)
    if not any(message.role == "assistant" for message in messages):
        raise DataError(
            f"{where}: the assistant says nothing, so that nothing is learned; remove the row"
        )
    return Conversation(messages, where)


def preference(row: dict[str, object], where: str) -> Preference:
    """Of a row {"messages" or "prompt", "chosen", "rejected"}; a prompt is what the user says.

    Raises: DataError for a row that lacks one of them, or has nothing to prefer.
    """
    if "prompt" in row and "messages" in row:
        raise DataError(f"{where}: both messages and a prompt; leave out one of them")
    if "prompt" in row:
        said = {"role": "user", "content": _text(row, "prompt", where)}
        row = {**row, "messages": [said]}
    messages = _messages(row, where)
    chosen, rejected = (_text(row, name, where) for name in ("chosen", "rejected"))
    if messages[-1].role == "assistant":
        raise DataError(
            f"{where}: the last message is the assistant's, and chosen and rejected are what it "
            "says next; end with the user's"
        )
    if chosen == rejected:
        raise DataError(f"{where}: chosen and rejected are the same; remove the row")
    return Preference(messages, chosen, rejected, where)


def _text(row: dict[str, object], name: str, where: str) -> str:
    text = row.get(name)
    if not isinstance(text, str):
        lacks = f"{name} is no text" if name in row else f'no field "{name}"'
        raise DataError(
            f'{where}: {lacks}; write {{"messages": [...], "chosen": "...", "rejected": "..."}}'
        )
    if not text.strip():
        raise DataError(f"{where}: {name} is empty; remove the row")
    return text


def _messages(row: dict[str, object], where: str) -> tuple[Message, ...]:
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
    return messages
