"""Tests that code lines of the core and its imports of extensions do not increase."""

from __future__ import annotations

import ast
import re
import textwrap

import pytest
from tests.architecture.structure import (
    PUBLIC_NAMES,
    SOURCE,
    code_lines,
    edges,
    figures,
    imports,
    modules,
)

from bertkit.registry import BUILTIN

FOLDER = "extensions."

CEILINGS = {
    "code lines of the core": 21_498,
    "code lines": 37_475,
    "imports from the core to extensions": 0,
    "imports between extensions": 0,
}
"""Lower a number when the source tree allows it. The targets of code lines: 19,000 and 31,000."""


def test_structure_stays_within_ceilings() -> None:
    above = {name: value for name, value in figures().items() if value > CEILINGS[name]}
    assert not above, "python -m tests.architecture.structure prints the counts"


def test_core_does_not_import_extensions() -> None:
    parsed = modules()
    found = {
        module: sorted(target for target in imports(tree, parsed) if target.startswith(FOLDER))
        for module, tree in parsed.items()
        if not module.startswith(FOLDER) and module != PUBLIC_NAMES
    }
    assert not {module: targets for module, targets in found.items() if targets}


def test_edges_count_imports_of_other_extensions() -> None:
    sources = {
        "tasks.classify": "from bertkit.extensions.serving import app\nimport bertkit.errors",
        "extensions.serving.app": "def f():\n    import bertkit.extensions.generation.pairs",
        "extensions.generation.pairs": "",
        "errors": "",
    }
    parsed = {name: ast.parse(text) for name, text in sources.items()}
    assert edges(parsed) == (1, 1)


def test_code_lines_exclude_docstrings_comments_blanks_and_imports() -> None:
    text = '''
    """Docstring."""

    import os
    from sys import (
        path,
    )

    LIMIT = 3
    """Docstring of a constant."""


    def f(a,  # a comment
          b):
        # a comment
        return [
            a,
            b,
        ]
    '''
    assert code_lines(ast.parse(textwrap.dedent(text))) == 7


@pytest.mark.parametrize("name", BUILTIN)
def test_readme_of_extension_lists_existing_files(name: str) -> None:
    folder = SOURCE / "extensions" / name
    text = (folder / "README.md").read_text("utf-8")
    assert len(text.split()) <= 300
    files = set(re.findall(r"`([\w/]+\.py)`", text))
    assert files
    assert not [
        file for file in files if not ((folder / file).exists() or (SOURCE / file).exists())
    ]
    public = {word for word in re.findall(r"`([A-Z]\w+)`", text) if not word.isupper()}
    code = "".join(file.read_text("utf-8") for file in folder.rglob("*.py"))
    assert not [word for word in public if f"class {word}" not in code]


def test_import_paths_in_strings_count_as_imports() -> None:
    sources = {"pipelines.base": 'ENGINE = "bertkit.extensions.export.fast:engine"'}
    sources["extensions.export.fast"] = ""
    assert edges({name: ast.parse(text) for name, text in sources.items()}) == (1, 0)
