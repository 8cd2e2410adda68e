"""Tests that each public class name is defined in only one module."""

from __future__ import annotations

import ast

from tests.architecture.structure import duplicates, modules


def test_public_class_names_are_unique() -> None:
    assert duplicates(modules()) == {}


def test_duplicates_are_public_classes_of_several_modules() -> None:
    sources = {
        "a": "class One: ...\nclass _Two: ...\nclass Three: ...",
        "b": "class One: ...\nclass _Two: ...\ndef Three(): ...",
    }
    parsed = {name: ast.parse(text) for name, text in sources.items()}
    assert duplicates(parsed) == {"One": ["a", "b"]}
