"""Splitting of labeled rows into train, dev and test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.config import Settings
from bertkit.console import quietly, say
from bertkit.data.labels import label_sort_key
from bertkit.data.shuffling import Permutation, Purpose, generator
from bertkit.errors import ConfigError, DataError
from bertkit.tasks.examples import Examples, RowsLike, find_error, take
from bertkit.tasks.task import E, Reading, Task


def take_rows(
    kind: type[Task[Any, Any]],
    train: RowsLike,
    dev: RowsLike | float,
    test: RowsLike | float | None,
    reading: Reading | None,
    *,
    options: Settings,
    seed: int,
) -> dict[str, Examples]:
    """Return the examples of train, dev, and test. Hold dev and test out of train if necessary.

    Args:
        kind: Class of the task.
        train: Rows to train on.
        dev: Rows on which every epoch is scored, or the fraction of train to hold out.
        test: Rows on which only the best epoch is scored, the fraction of train to hold out, or
            None.
        reading: Columns and format that the user set.
        options: Options of the task.
        seed: Random seed that decides which rows are held out.

    Returns:
        The examples under the names `train`, `dev` and, unless it is None, `test`.

    Raises:
        DataError: If a file or a part of train has no rows.
        ConfigError: If a fraction is invalid.
    """
    if dev is None:
        raise ConfigError("dev: required; pass rows, or the fraction of train to hold out")
    sources = {"dev": dev, "test": test}
    fractions = {
        name: n for name, rows in sources.items() if (n := _fraction(name, rows)) is not None
    }
    if sum(fractions.values()) >= 1.0:
        text = " and ".join(f"{fraction:g}" for fraction in fractions.values())
        raise ConfigError(f"dev and test: fractions of {text} leave no rows for train; reduce them")
    all_rows = take(kind, train, reading, "train")
    data, rest, left = {"train": all_rows}, all_rows.examples, 1.0
    total = f"{len(all_rows.examples):,} rows"
    for name, fraction in fractions.items():
        rest, held = hold_out(kind, rest, fraction / left, name=name, options=options, seed=seed)
        left -= fraction
        if not held:
            raise DataError(f"{name}: {fraction:g} of {total} holds out no row; increase it")
        say(f"{name}: {len(held):,} of {total} of train, held out (seed {seed})")
        record = {"share": fraction, "seed": seed, "from": "train"}
        data[name] = replace(all_rows, examples=held, held_out=record)
    for name, rows in sources.items():
        if name not in fractions and rows is not None:
            assert not isinstance(rows, float)
            data[name] = take(kind, rows, reading, name)
    if fractions:
        origin = f"this file, without {' and '.join(fractions)}"
        record = {"share": round(sum(fractions.values()), 9), "seed": seed, "from": origin}
        data["train"] = replace(all_rows, examples=rest, held_out=record)
    return data


def hold_out(
    kind: type[Task[E, Any]],
    rows: Sequence[E],
    fraction: float,
    *,
    name: str,
    options: Settings,
    seed: int,
) -> tuple[list[E], list[E]]:
    """Split rows into training rows and held-out rows, with similar label frequencies in both.

    Rows that belong together are in the same group, and a group is held out as a whole: duplicates,
    questions about one text, or turns of one dialogue. If a group contains more than half of the
    rows, it is split. The groups are shuffled, sorted by label, and sampled at equal distances
    (systematic sampling), so that numeric labels are also distributed evenly. If a label occurs
    only in held-out rows, these rows are moved to the training rows.

    Args:
        kind: Class of the task.
        rows: The rows.
        fraction: Fraction of the groups to hold out.
        name: Name of the held-out rows, for messages.
        options: Options of the task.
        seed: Random seed that decides which groups are held out.

    Returns:
        The training rows and the held-out rows, both in the order of `rows`.

    Raises:
        DataError: If no training rows remain, or the task cannot be trained on them.
    """
    counts = Counter(map(kind.reader.group, rows))
    ((largest, size),) = counts.most_common(1)
    groups: dict[Any, list[int]] = {}
    for index, row in enumerate(rows):
        group = kind.reader.group(row)
        # Such a group exists, for example, if all rows have the same instruction as their text.
        is_split = group == largest and size > len(rows) / 2
        groups.setdefault((group, kind.reader.key(row)) if is_split else group, []).append(index)
    if len(groups) > len(counts):
        say(f"{name}: {size:,} of {len(rows):,} rows have the same text; both splits contain it")
    members = list(groups.values())
    shuffled = Permutation(len(members), seed, 0)(np.arange(len(members))).tolist()
    ordered = sorted(shuffled, key=lambda group: _stratum(rows[members[group][0]]))
    count = round(fraction * len(members))
    offset = generator(seed, 0, 0, Purpose.SPLIT).random()
    sample = [ordered[int((number + offset) * len(members) / count)] for number in range(count)]
    held = sorted(index for group in sample for index in members[group])
    held_set = set(held)
    rest = [row for index, row in enumerate(rows) if index not in held_set]
    if not rest:
        raise DataError(f"{name}: the fraction leaves no rows for train; reduce it")
    with quietly():  # Warnings about labels follow when the task is created for all rows of train.
        task = kind.from_examples(rest, options)
    # A row that cannot be scored is moved to the training rows, for example because its label does
    # not occur in train. If the row is invalid, it raises an error there.
    unknown = {index for index in held if find_error(task, rows[index]) is not None}
    return (
        [row for index, row in enumerate(rows) if index not in held_set or index in unknown],
        [rows[index] for index in held if index not in unknown],
    )


def _fraction(name: str, rows: RowsLike | float | None) -> float | None:
    """Return the fraction, or None if `rows` are rows or a file.

    Raises:
        ConfigError: If the fraction is not between 0 and 1.
    """
    fraction = _number(rows)
    if fraction is not None and not 0.0 < fraction < 1.0:
        raise ConfigError(f"{name}: must be a file or a fraction between 0 and 1, got {fraction:g}")
    return fraction


def _number(rows: RowsLike | float | None) -> float | None:
    """Return the number that was passed instead of rows, or None.

    A text such as "0.1" is a number, unless a file has this name.
    """
    if isinstance(rows, int | float | np.number):
        return float(rows)
    if isinstance(rows, str | Path) and not Path(rows).exists():
        with suppress(ValueError):
            return float(str(rows))
    return None


def _stratum(row: Any) -> tuple[float, str]:
    label = getattr(row, "label", None)
    return label_sort_key("" if label is None else str(label))
