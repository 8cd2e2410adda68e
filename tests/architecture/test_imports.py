"""Tests of the dependencies and the side effects of imports."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest

from bertkit.registry import BUILTIN

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "bertkit"
OWN_PACKAGES = {"bertkit", "tests", "benchmarks"}
HEAVY = {"torch", "numpy", "jinja2", "tokenizers", "huggingface_hub"}
ALONE = {"datasets", "gliner", "trackio"}
"""Packages that users install themselves: trackio requires another pillow than the tests, and
gliner is only needed to compute a golden file again."""
NEVER = {"transformers", "sentence_transformers", "scipy", "sklearn", "matplotlib"}


def modules(under: str = "") -> list[str]:
    """Return the dotted names of the modules in src/bertkit/<under>."""
    paths = sorted((SOURCE / under).rglob("*.py"))
    names = [".".join(p.relative_to(SOURCE.parent).with_suffix("").parts) for p in paths]
    return [name.removesuffix(".__init__") for name in names if not name.endswith("__main__")]


def python(code: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter."""
    command = [sys.executable, *options, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


distributions = cache(metadata.packages_distributions)


def undeclared(files: Iterable[Path], declared: set[str]) -> set[str]:
    """Return packages that files import and no requirement installs."""
    installs = distributions()
    found = set()
    for node in (n for file in files for n in ast.walk(ast.parse(file.read_text("utf-8")))):
        match node:
            case ast.Import(names=names):
                modules = [alias.name for alias in names]
            case ast.ImportFrom(module=str(module), level=0):
                modules = [module]
            case _:
                continue
        found |= {module.split(".")[0] for module in modules}
    others = found - set(sys.stdlib_module_names) - OWN_PACKAGES
    dashed = {
        name: [d.lower().replace("_", "-") for d in installs.get(name, [name])] for name in others
    }
    return {name for name in others if not declared & {*dashed[name]}}


def installed_by(*extras: str) -> set[str]:
    """Return the distributions that bertkit requires with these extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    optional = project["optional-dependencies"]
    requirements = [*project["dependencies"], *(line for name in extras for line in optional[name])]
    return {re.split(r"[^\w-]", line)[0].lower().replace("_", "-") for line in requirements}


EXTRAS = ("generation", "classic", "serving", "search", "export", "cleaning")
"""Extras with the name of the extension that needs them."""


@pytest.mark.parametrize("extension", BUILTIN)
def test_extension_imports_only_packages_of_its_extra(extension: str) -> None:
    files = list((SOURCE / "extensions" / extension).rglob("*.py"))
    extras = [extension] if extension in EXTRAS else []
    assert undeclared(files, installed_by(*extras)) == set()
    if extras:  # control
        assert undeclared(files, installed_by())


def test_imported_packages_are_declared() -> None:
    """Dependencies of dependencies do not count."""
    declared = installed_by(*EXTRAS, "tracking", "docs", "dev")
    folders = (SOURCE, ROOT / "tests", ROOT / "benchmarks", ROOT / "examples")
    files = [file for folder in folders for file in sorted(folder.rglob("*.py"))]
    assert undeclared(files, declared) <= ALONE
    assert "tomli_w" in undeclared(files, declared - {"tomli-w"})  # control


def test_import_prints_nothing_and_skips_heavy_packages() -> None:
    done = python("import bertkit, sys; print(*sorted(sys.modules))", "-W", "error")
    assert done.stderr == ""
    loaded = set(done.stdout.split())
    assert "bertkit" in loaded
    assert not loaded & (HEAVY | NEVER)


def test_help_skips_heavy_packages() -> None:
    """Imports determine the startup time, which the startup benchmark measures."""
    done = python(
        "import sys; sys.argv = ['bertkit', '--help']\n"
        "from bertkit.cli import main\n"
        "try:\n    main()\nexcept SystemExit as stop:\n    assert not stop.code\n"
        "print(*{name.split('.')[0] for name in sys.modules}, file=sys.stderr)"
    )
    assert "finetune" in done.stdout
    loaded = set(done.stderr.split()) - set(sys.stdlib_module_names)
    assert "cyclopts" in loaded
    assert not loaded & (HEAVY | NEVER)


@pytest.mark.parametrize(
    "module",
    [*modules("text"), "bertkit.metrics", "bertkit.data.document_readers", "bertkit.errors",
     "bertkit.cli", "bertkit.recipes.vocabulary", "bertkit.recipes.prepare",
     "bertkit.recipes.embed"],
)  # fmt: skip
def test_text_and_metrics_do_not_import_torch(module: str) -> None:
    done = python(f"import sys; sys.modules['torch'] = None; import {module}")
    assert done.returncode == 0, done.stderr


def test_importing_every_module_has_no_side_effects() -> None:
    """Imports print nothing, keep all global state, and load no package of NEVER."""
    done = python(
        "import importlib, logging, os, random, signal, sys, warnings\n"
        "import numpy, rich.progress, torch\n"  # rich samples a random number when it is imported
        "def state():\n"
        "    return {\n"
        "        'environment': dict(os.environ),\n"
        "        'log handlers': list(logging.root.handlers),\n"
        "        'log level': logging.root.level,\n"
        "        'threads': (torch.get_num_threads(), torch.get_num_interop_threads()),\n"
        "        'deterministic': torch.are_deterministic_algorithms_enabled(),\n"
        "        'default dtype': torch.get_default_dtype(),\n"
        "        'grad': torch.is_grad_enabled(),\n"
        "        'Ctrl-C': signal.getsignal(signal.SIGINT),\n"
        "        'hook': sys.excepthook,\n"
        "        'random': random.getstate(),\n"
        "        'numpy random': str(numpy.random.get_state()),\n"
        "        'torch random': torch.get_rng_state().tolist(),\n"
        "    }\n"
        "before = state()\n"
        f"for name in {modules()}:\n"
        "    importlib.import_module(name)\n"
        "after = state()\n"
        "changed = [what for what in before if before[what] != after[what]]\n"
        f"peers = sorted({NEVER} & set(sys.modules))\n"
        "assert not changed and not peers, (changed, peers)\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_control_state_check_detects_side_effects() -> None:
    """Control: the check detects one sampled random number."""
    draw = "import random; before = random.getstate(); random.random(); "
    assert python(draw + "assert before == random.getstate()").returncode == 1
