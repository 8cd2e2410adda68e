"""Rows to score on that are held out of those to learn from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.config import Settings
from bertkit.console import say
from bertkit.data.labels import natural
from bertkit.data.shuffling import Permutation, Purpose, generator
from bertkit.errors import ConfigError, DataError
from bertkit.tasks.examples import Examples, RowsLike, take
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
    """Rows to learn from, `train`, to choose the best epoch by, `dev`, and, where they are given,
    to score once, `test`; a number is the share of train held out for these.

    Raises: DataError for no rows, ConfigError for a share that is none.
    """
    if dev is None:
        raise ConfigError("dev: none given; give rows, or the share of train to hold out, as 0.1")
    given = {"dev": dev, "test": test}
    shares = {name: n for name, rows in given.items() if (n := _share(name, rows)) is not None}
    if sum(shares.values()) >= 1.0:
        both = " and ".join(f"{share:g}" for share in shares.values())
        raise ConfigError(f"dev and test: shares of {both} leave no rows to learn from")
    learned = take(kind, train, reading, "train")
    data, kept, left = {"train": learned}, learned.examples, 1.0
    said = f"{len(learned.examples):,} rows"
    for name, share in shares.items():
        kept, held = hold_out(kind, kept, share / left, name=name, options=options, seed=seed)
        left -= share
        if not held:
            raise DataError(f"{name}: a share of {share:g} of {said} holds none; give a larger one")
        say(f"{name}: {len(held):,} of {said} of train, held out (seed {seed})")
        drawn = {"share": share, "seed": seed, "from": "train"}
        data[name] = replace(learned, examples=held, held_out=drawn)
    for name, rows in given.items():
        if name not in shares and rows is not None:
            assert not isinstance(rows, float)
            data[name] = take(kind, rows, reading, name)
    if shares:
        without = f"this file, without {' and '.join(shares)}"
        drawn = {"share": round(sum(shares.values()), 9), "seed": seed, "from": without}
        data["train"] = replace(learned, examples=kept, held_out=drawn)
    return data


def hold_out(
    kind: type[Task[E, Any]],
    rows: Sequence[E],
    share: float,
    *,
    name: str,
    options: Settings,
    seed: int,
) -> tuple[list[E], list[E]]:
    """(rows to learn from, rows held out), each in their order: of every label the same share.

    `name` is what they are held out for, which errors say.

    Rows are put in a random order and sorted by their labels, and taken at equal distances
    (systematic sampling), so that numbers are spread evenly, too. Rows that ask the same, questions
    about one text and turns of one dialogue stay together, unless they are most of the rows. A row
    whose label no other row has is learned from.
    Raises: DataError for rows that pose no task.
    """
    sources = Counter(map(kind.reader.group, rows))
    ((common, times),) = sources.most_common(1)
    groups: dict[Any, list[int]] = {}
    for place, row in enumerate(rows):
        source = kind.reader.group(row)
        parted = source == common and times > len(rows) / 2  # one instruction for all rows, say
        groups.setdefault((source, kind.reader.key(row)) if parted else source, []).append(place)
    if len(groups) > len(sources):
        say(f"{name}: one text is that of {times:,} of {len(rows):,} rows, and on both sides")
    apart = list(groups.values())
    shuffled = Permutation(len(apart), seed, 0)(np.arange(len(apart))).tolist()
    ordered = sorted(shuffled, key=lambda group: _stratum(rows[apart[group][0]]))
    count = round(share * len(apart))
    first = generator(seed, 0, 0, Purpose.SPLIT).random()
    drawn = [ordered[int((number + first) * len(apart) / count)] for number in range(count)]
    held = sorted(place for group in drawn for place in apart[group])
    out = set(held)
    kept = [row for place, row in enumerate(rows) if place not in out]
    if not kept:
        raise DataError(f"{name}: its share leaves no rows to learn from; give a smaller one")
    task = kind.from_examples(kept, options)
    unknown = {place for place in held if not _known(task, rows[place])}
    return (
        [row for place, row in enumerate(rows) if place not in out or place in unknown],
        [rows[place] for place in held if place not in unknown],
    )


def _share(name: str, rows: RowsLike | float | None) -> float | None:
    """The share that these are, None for rows or a file. Raises: ConfigError for another number."""
    share = _number(rows)
    if share is not None and not 0.0 < share < 1.0:
        raise ConfigError(
            f"{name}: {share:g}; give a file, or a share of train above 0 and below 1"
        )
    return share


def _number(rows: RowsLike | float | None) -> float | None:
    """The number that was given in place of rows; a file that is there is none."""
    if isinstance(rows, int | float | np.number):
        return float(rows)
    if isinstance(rows, str | Path) and not Path(rows).exists():
        with suppress(ValueError):
            return float(str(rows))
    return None


def _stratum(row: Any) -> tuple[float, str]:
    label = getattr(row, "label", None)
    return natural("" if label is None else str(label))


def _known(task: Task[Any, Any], row: Any) -> bool:
    """Whether training has what the row is scored by; a row that is wrong in itself has not, so
    that it is refused among those of train.
    """
    try:
        task.check([row])
    except DataError:
        return False
    return True
