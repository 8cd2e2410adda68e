"""Tests of the repository: unsafe code, project layout, test files and versions."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import bertkit
from bertkit.checkpoint.formats import FORMATS
from bertkit.commands.table import COMMANDS
from bertkit.families import FAMILIES
from bertkit.pipelines import PIPELINES
from bertkit.web import ROUTES

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "bertkit"
SOURCES = sorted(SOURCE.rglob("*.py"))

PICKLES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
EXECUTES = {"eval", "exec", "__import__"}

TESTED_BY: dict[str, str] = {
    "checkpoint/pooling_keys.py": "parity/test_sentence_transformers.py",
    "families/keys.py": "families/test_family.py",
    "published_keys.py": "parity/test_sentence_transformers.py",
    "text/tokenizer_classes.py": "parity/test_tokenizer_class.py",
    "extensions/serving/limits.py": "docs/test_settings.py",
    "text/file_limits.py": "faults/test_tokenizer_limits.py",
    "extensions/classic/bidirectional_loss.py": "extensions/classic/test_bidirectional_lm.py",
    "pipelines/answering.py": "extensions/classic/test_word_features.py",
    "extensions/classic/fill_gap.py": "extensions/classic/test_pretrain_elmo.py",
    "extensions/classic/recurrent_config.py": "extensions/classic/test_seq2seq.py",
    "extensions/classic/gap.py": "extensions/classic/test_gap_view.py",
    "tasks/table.py": "tasks/test_task.py",
    "text/word_splitting.py": "extensions/classic/test_whole_words.py",
    "extensions/export/int8_record.py": "extensions/export/test_quantize.py",
    "data/multiple_choice.py": "tasks/test_choose.py",
    "data/labels.py": "tasks/test_classify.py",
    "data/paths.py": "data/test_document_readers.py",
    "data/values.py": "data/test_rows_in_memory.py",
    "data/collate.py": "data/test_samples.py",
    "recipes/average.py": "recipes/test_translate.py",
    "extensions/generation/bleu.py": "recipes/test_translate.py",
    "tasks/labeled_text.py": "tasks/test_classify.py",
    "extensions/generation/tasks/language.py": "extensions/generation/tasks/test_seq2seq.py",
    "extensions/generation/tasks/reference_model.py": "extensions/generation/tasks/test_dpo.py",
    "extensions/generation/prepare_pairs.py": "extensions/generation/test_pairs.py",
    "recipes/pretrain_card.py": "recipes/test_pretrain.py",
    "extensions/classic/word_models.py": "checkpoint/test_formats.py",
    "extensions/export/accelerated.py": "pipelines/test_base.py",
    "extensions/export/exported_format.py": "checkpoint/test_formats.py",
    "extensions/export/tuned_embedder.py": "extensions/export/test_tune.py",
    "pipelines/supported.py": "extensions/serving/test_served.py",
    "pipelines/transformer_format.py": "checkpoint/test_formats.py",
    "extensions/generation/commands.py": "pipelines/test_translate.py",
    "extensions/generation/families/bart.py": "parity/test_tied_weights.py",
    "extensions/generation/families/t5.py": "parity/test_tied_weights.py",
    "extensions/generation/families/llama.py": "parity/test_tied_weights.py",
    "extensions/generation/families/marian.py": "parity/test_tied_weights.py",
    "extensions/generation/families/gpt2.py": "parity/test_tied_weights.py",
    "extensions/generation/families/openai_gpt.py": "parity/test_tied_weights.py",
    "models/encoder.py": "models/test_model.py",
    "models/heads.py": "models/test_model.py",
    "extensions/generation/decoding.py": "extensions/generation/test_generate.py",
    "extensions/generation/stepper.py": "extensions/generation/test_generate.py",
    "nn/attention_context.py": "nn/test_attention.py",
    "nn/feedforward.py": "engine/test_packed_linear.py",
    "nn/pooling.py": "engine/test_engine.py",
    "nn/matmul_attention.py": "nn/test_kernels.py",
    "nn/padding.py": "nn/test_kernels.py",
    "objectives/loss.py": "objectives/test_pretrain.py",
    "recipes/final_test.py": "recipes/test_finetune_report.py",
    "extensions/search/search.py": "commands/test_search.py",
    "recipes/run_file.py": "test_config.py",
    "recipes/pretrain_samples.py": "recipes/test_pretrain_steps.py",
    "extensions/classic/train_vectors.py": "extensions/classic/test_skipgram.py",
    "extensions/serving/jobs.py": "extensions/serving/test_batcher.py",
    "extensions/generation/continuous_batching.py": "extensions/generation/test_routes.py",
    "extensions/generation/openai_types.py": "extensions/serving/test_request_bodies.py",
    "extensions/search/pipeline.py": "extensions/serving/test_routes.py",
    "extensions/search/routes.py": "extensions/serving/test_openapi.py",
    "extensions/search/store_format.py": "checkpoint/test_formats.py",
    "extensions/serving/run_figures.py": "view/test_runs.py",
    "web.py": "extensions/serving/test_openapi.py",
    "extensions/serving/request_context.py": "extensions/serving/test_app.py",
    "text/tokenizer_files.py": "text/test_tokenizer.py",
    "text/special_tokens.py": "text/test_tokenizer.py",
    "training/epochs.py": "recipes/test_finetune.py",
    "training/teacher.py": "recipes/test_distill.py",
    "view/page_data.py": "view/test_page.py",
    "view/figures.py": "view/test_page.py",
    **{
        f"families/{name}.py": "families/test_golden.py"
        for name in (
            "albert",
            "bert",
            "deberta",
            "distilbert",
            "electra",
            "gte",
            "modernbert",
            "mpnet",
            "nomic",
            "roberta",
        )
    },
    "families/rotary.py": "families/test_family.py",
}
"""Source files without a test file of the same name, with the file that tests them."""

KEPT = ("src", "tests", "benchmarks", "docs", "notes", "examples", "configs", "skills")
TEXT = {".py", ".md", ".toml", ".json", ".txt", ".cff", ".html", ".js", ".css", ".yaml", ".in", ""}
LOCAL = re.compile(r"(?<![\w./])/(?:home|work|root)/\w|\.\./shared")


def executes(code: str) -> Iterator[str]:
    """Return the statements that could run code from a file or checkpoint."""
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    if alias.name.split(".")[0] in PICKLES:
                        yield f"{node.lineno}: import {alias.name}"
            case ast.ImportFrom(module=str(module)) if module.split(".")[0] in PICKLES:
                yield f"{node.lineno}: from {module}"
            case ast.Call(func=ast.Name(id=name)) if name in EXECUTES:
                yield f"{node.lineno}: {name}()"
            case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr="load")):
                if not any(ast.unparse(word) == "weights_only=True" for word in node.keywords):
                    yield f"{node.lineno}: torch.load() without weights_only=True"
            case ast.ImportFrom(module="torch", names=names):
                if any(alias.name in ("load", "save") for alias in names):
                    yield f"{node.lineno}: from torch import load"
            case ast.keyword(arg="trust_remote_code" | "allow_pickle" as arg):
                if not (isinstance(node.value, ast.Constant) and node.value.value is False):
                    yield f"{node.value.lineno}: {arg}"


def entries() -> set[str]:
    """Return the packages ("text/") and modules ("cli.py") directly in src/bertkit."""
    packages = {f"{p.name}/" for p in SOURCE.iterdir() if p.is_dir() and any(p.glob("*.py"))}
    return packages | {p.name for p in SOURCE.glob("*.py")} - {"__init__.py", "__main__.py"}


def in_tree(page: str) -> set[str]:
    """Return the entries that the tree of a page lists directly under src/bertkit/.

    A line contains one entry or several files. Deeper lines, and words after the name of a package,
    are ignored.
    """
    blocks = [b for b in re.findall(r"```\w*\n(.*?)```", page, re.S) if "src/bertkit/" in b]
    assert blocks, "the page shows no tree of src/bertkit/"
    block = blocks[0]
    lines = [re.sub(r"[│├└─]", " ", line) for line in block.splitlines()]
    at = next(i for i, line in enumerate(lines) if "src/bertkit/" in line)
    base = indent(lines[at])
    inside = []
    for line in lines[at + 1 :]:
        if line.strip() and indent(line) <= base:
            break
        inside.append(line)
    level = min(indent(line) for line in inside if line.strip())
    found: set[str] = set()
    for line in inside:
        if line.strip() and indent(line) == level:
            first, *others = line.split()
            found.add(first)
            for word in others if first.endswith(".py") else []:
                if not word.endswith(".py"):
                    break
                found.add(word)
    return found


def indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def texts() -> Iterator[Path]:
    """Return the text files in the root and the directories of the repository."""
    yield from (p for p in ROOT.iterdir() if p.is_file() and p.suffix in TEXT)
    for folder in KEPT:
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and path.suffix in TEXT and "__pycache__" not in path.parts:
                yield path


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_source_does_not_execute_checkpoint_content(path: Path) -> None:
    assert list(executes(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "code",
    ["import pickle", "from joblib import load", "import torch\ntorch.load('x')",
     "torch.load('x', weights_only=False)", "def f():\n    from torch import load", "eval('1')",
     "f(trust_remote_code=True)", "np.load(p, allow_pickle=flag)"],
)  # fmt: skip
def test_executes_reports_unsafe_code(code: str) -> None:
    assert list(executes(code))


def test_executes_ignores_safe_code() -> None:
    code = "torch.load(p, weights_only=True)\nnp.load(p, allow_pickle=False)\nx = 'a pickle'"
    assert list(executes(code)) == []


def test_project_layout_lists_all_modules() -> None:
    listed = in_tree((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    data = {
        f"{p.name}/" for p in SOURCE.iterdir() if p.is_dir()
    }  # directories without code are optional
    assert entries() <= listed <= entries() | data


def test_project_layout_parses_plain_and_box_trees() -> None:
    plain = "```\ndocs/  x\nsrc/bertkit/\n  errors.py  config.py   all\n  nn/  attention.py\n```"
    box_tree = "```\n├── docs/\n├── src/bertkit/   the package\n│   ├── nn/       layers\n"
    box_tree += "│   │   └── block.py\n│   └── cli.py    one cli.py\n└── tests/\n```"
    assert in_tree(plain) == {"errors.py", "config.py", "nn/"}
    assert in_tree(box_tree) == {"nn/", "cli.py"}


def imported(path: Path) -> set[str]:
    """Return the imported modules, with `bertkit.a.b` for `from bertkit.a import b`."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names):
                modules |= {alias.name for alias in names}
            case ast.ImportFrom(module=str(module), names=names):
                modules |= {module, *(f"{module}.{alias.name}" for alias in names)}
    return modules


def file_of(module: str) -> Path | None:
    path = SOURCE.parent.joinpath(*module.split("."))
    files = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in files if file.is_file()), None)


TABLES = {
    "bertkit.checkpoint.formats.FORMATS": FORMATS.paths.values(),
    "bertkit.families.FAMILIES": FAMILIES.paths.values(),
    "bertkit.pipelines.pipeline": PIPELINES.paths.values(),
    "bertkit.web.ROUTES": ROUTES.paths.values(),
}
"""Import paths of the objects in each registry."""


def is_tested_by(home: Path, name: str) -> bool:
    """Return whether a test file tests a source file.

    The test file imports the source file, a module that imports it, or a registry that lists it, or
    it runs a command of the source file.
    """
    module_name = ".".join(("bertkit", *Path(name).with_suffix("").parts))
    direct = imported(home)
    module = f"{module_name.removeprefix('bertkit.')}:"
    commands = [command for command, path in COMMANDS.items() if path.startswith(module)]
    if any(f'"{command}"' in home.read_text(encoding="utf-8") for command in commands):
        return True
    named = [path for table in direct for path in TABLES.get(table, ())]
    if any(path.startswith(f"{module_name}:") for path in named):
        return True
    through = (file_of(module) for module in direct if module.startswith("bertkit"))
    return module_name in direct.union(*(imported(file) for file in through if file))


def test_every_source_file_has_test_file() -> None:
    faults = []
    for path in SOURCES:
        name = str(path.relative_to(SOURCE))
        twin = ROOT / "tests" / Path(name).parent / f"test_{path.name}"
        if path.name.startswith("__") or twin.exists():
            if name in TESTED_BY:
                faults.append(f"{name} has its own test file; remove it from TESTED_BY")
        elif name not in TESTED_BY:
            faults.append(f"{name} has no test file; add one, or an entry in TESTED_BY")
        elif not (home := ROOT / "tests" / TESTED_BY[name]).is_file() or not is_tested_by(
            home, name
        ):
            faults.append(f"{name}: {TESTED_BY[name]} does not test it")
    assert not faults, "\n".join(faults)
    assert [name for name in TESTED_BY if not (SOURCE / name).exists()] == []


def test_is_tested_by_rejects_unrelated_test_files() -> None:
    assert is_tested_by(ROOT / "tests/nn/test_kernels.py", "nn/padding.py")
    assert not is_tested_by(ROOT / "tests/test_errors.py", "nn/padding.py")
    assert not is_tested_by(
        ROOT / "tests/extensions/serving/test_processes.py", "commands/pretrain.py"
    )


def test_files_contain_no_local_paths() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in texts()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if LOCAL.search(line)
    ]
    assert not found, "\n".join(found)


def test_documented_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = {
        name
        for file in ("README.md", "CONTRIBUTING.md")
        for name in re.findall(
            r"`make ([a-z-]+)`|^ *make ([a-z-]+)", (ROOT / file).read_text(), re.M
        )
        for name in name
        if name
    }
    assert named
    assert named <= targets


def test_hooks_before_commits_run_commands_of_make_check() -> None:
    hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    commands = re.findall(r"entry: \.venv/bin/(.+)", hooks)
    assert len(commands) == 3
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8").partition("\ncheck:")[2]
    checks = re.findall(r"^\t\$\(BIN\)/([^.\n]+?)(?: \.)?$", recipe.partition("\n\n")[0], re.M)
    assert set(commands) <= set(checks)
    assert hooks.count("language: system") == 3  # no hook installs packages


def test_constraints_pin_every_direct_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    requirements = [
        *project["dependencies"],
        *(line for extra in extras.values() for line in extra),
    ]
    names = {re.split(r"[\[<>=~! ]", line, maxsplit=1)[0].lower() for line in requirements}
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert names - {"bertkit"} <= {m.lower() for m in re.findall(r"^([\w.-]+)==", pinned, re.M)}


def test_versions_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.M)
    assert cited is not None
    assert project["version"] == bertkit.__version__ == cited[1]
