"""Error hierarchy and error messages."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import bertkit.errors
from bertkit.errors import (
    BertkitError,
    ConfigError,
    at_command_line,
    check_choice,
    did_you_mean,
    format_message,
)


def test_errors_are_documented_bertkit_errors() -> None:
    found = {
        n
        for n, c in inspect.getmembers(bertkit.errors, inspect.isclass)
        if c.__module__ == bertkit.errors.__name__
    }
    assert all(issubclass(getattr(bertkit.errors, name), BertkitError) for name in found)
    assert all(name in str(bertkit.errors.__doc__) for name in found)


def test_did_you_mean_suggests_nearest_or_all_names() -> None:
    assert did_you_mean("hiden", ["hidden", "heads"]) == "did you mean 'hidden'?"
    assert did_you_mean("zzz", ["hidden", "heads"]) == "known: 'hidden', 'heads'"
    assert did_you_mean("hiden", iter(["hidden"])) == "did you mean 'hidden'?"
    settings = ["lora", "epochs", "learning_rate"]
    assert did_you_mean("lr", settings) == "did you mean 'learning_rate'?"
    assert did_you_mean("num_train_epochs", settings) == "did you mean 'epochs'?"


@pytest.mark.parametrize("word", ["hiden", None, 1, ["hidden"], np.array(["hidden", "heads"])])
def test_check_choice_rejects_other_values(word: object) -> None:
    with pytest.raises(ConfigError, match=r"^name: no such value .*; (did you mean|known)"):
        check_choice("name", word, ("hidden", "heads"))
    check_choice("name", "heads", ("hidden", "heads"))


def test_message_is_one_line_of_bounded_length() -> None:
    assert str(BertkitError("a\nb")) == "a b"
    long = str(BertkitError("where: " + "x" * 100_000 + "; do this"))
    assert len(long) < 1100
    assert long.startswith("where: x")
    assert long.endswith("x; do this")


@pytest.mark.parametrize(
    ("written", "python_message"),
    [
        (
            "choose another --out, or go on with --resume",
            "choose another out=, or go on with resume=True",
        ),
        ("--reverse: leave out --file", "reverse: leave out file="),
        ("name it with --text-column.", "name it with text_column=."),
        ("cut it (--long truncate) or --lora.rank", 'cut it (long="truncate") or lora.rank='),
        ("`bertkit tokenizer train --kind words`", "`bertkit tokenizer train --kind words`"),
        ("label '--none' is not the model's", "label '--none' is not the model's"),
        ("a -- b, a--b/c and 1--2", "a -- b, a--b/c and 1--2"),
    ],
)
def test_messages_name_options_or_keywords(written: str, python_message: str) -> None:
    error = BertkitError(written)
    assert str(error) == format_message(written) == python_message
    assert str(BertkitError(f"{error}; kept")) == f"{python_message}; kept"
    with at_command_line():
        assert str(error) == written
    assert str(error) == python_message
