"""What must never be in the repository, and what must agree within it."""

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

HOMES: dict[str, str] = {
    "checkpoint/pooling_keys.py": "parity/test_sentence_transformers.py",
    "families/keys.py": "families/test_family.py",
    "published_keys.py": "parity/test_sentence_transformers.py",
    "text/tokenizer_classes.py": "parity/test_tokenizer_class.py",
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
    "data/workers.py": "recipes/test_prepare.py",
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
"""Source files without a test file of the same name, each with the one that holds it."""

KEPT = ("src", "tests", "benchmarks", "docs", "notes", "examples", "configs")
TEXT = {".py", ".md", ".toml", ".json", ".txt", ".cff", ".html", ".js", ".css", ""}
LOCAL = re.compile(r"(?<![\w./])/(?:home|work|root)/\w|\.\./shared")


def executes(code: str) -> Iterator[str]:
    """Each way in which the code could run what a file or checkpoint holds."""
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
    """The packages ("text/") and modules ("cli.py") directly in src/bertkit."""
    packages = {f"{p.name}/" for p in SOURCE.iterdir() if p.is_dir() and any(p.glob("*.py"))}
    return packages | {p.name for p in SOURCE.glob("*.py")} - {"__init__.py", "__main__.py"}


def in_tree(page: str) -> set[str]:
    """What a page's tree lists directly under src/bertkit/: an entry a line, or several files.

    Deeper lines, and what follows a package's name on its line, are annotation.
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
    """The files a person wrote, in the folders and root of the repository."""
    yield from (p for p in ROOT.iterdir() if p.is_file() and p.suffix in TEXT)
    for folder in KEPT:
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and path.suffix in TEXT and "__pycache__" not in path.parts:
                yield path


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_nothing_executes_what_a_checkpoint_holds(path: Path) -> None:
    assert list(executes(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from joblib import load",
        "import torch\ntorch.load('x')",
        "torch.load('x', weights_only=False)",
        "def f():\n    from torch import load",
        "eval('1')",
        "f(trust_remote_code=True)",
        "np.load(p, allow_pickle=flag)",
    ],
)
def test_what_executes_is_caught(code: str) -> None:
    assert list(executes(code))


def test_innocent_code_is_not_caught() -> None:
    code = "torch.load(p, weights_only=True)\nnp.load(p, allow_pickle=False)\nx = 'a pickle'"
    assert list(executes(code)) == []


def test_project_layout_lists_all_modules() -> None:
    listed = in_tree((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    data = {f"{p.name}/" for p in SOURCE.iterdir() if p.is_dir()}  # folders without code may be
    assert entries() <= listed <= entries() | data


def test_project_layout_accepts_usual_trees() -> None:
    plain = "```\ndocs/  x\nsrc/bertkit/\n  errors.py  config.py   all\n  nn/  attention.py\n```"
    drawn = "```\n├── docs/\n├── src/bertkit/   the package\n│   ├── nn/       layers\n"
    drawn += "│   │   └── block.py\n│   └── cli.py    one cli.py\n└── tests/\n```"
    assert in_tree(plain) == {"errors.py", "config.py", "nn/"}
    assert in_tree(drawn) == {"nn/", "cli.py"}


def imported(path: Path) -> set[str]:
    """The modules that a file imports, `bertkit.a.b` of `from bertkit.a import b` among them."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names):
                modules |= {alias.name for alias in names}
            case ast.ImportFrom(module=str(module), names=names):
                modules |= {module, *(f"{module}.{alias.name}" for alias in names)}
    return modules


def file_of(module: str) -> Path | None:
    place = SOURCE.parent.joinpath(*module.split("."))
    files = (place.with_suffix(".py"), place / "__init__.py")
    return next((file for file in files if file.is_file()), None)


TABLES = {
    "bertkit.checkpoint.formats.FORMATS": FORMATS.paths.values(),
    "bertkit.families.FAMILIES": FAMILIES.paths.values(),
    "bertkit.pipelines.pipeline": PIPELINES.paths.values(),
    "bertkit.web.ROUTES": ROUTES.paths.values(),
}
"""Import paths of the objects in each registry."""


def holds(home: Path, name: str) -> bool:
    """Return whether a test file tests a source file.

    It imports the file, something that imports it, or a table that names it; or it runs one of its
    commands.
    """
    wanted = ".".join(("bertkit", *Path(name).with_suffix("").parts))
    direct = imported(home)
    module = f"{wanted.removeprefix('bertkit.')}:"
    commands = [command for command, place in COMMANDS.items() if place.startswith(module)]
    if any(f'"{command}"' in home.read_text(encoding="utf-8") for command in commands):
        return True
    named = [place for table in direct for place in TABLES.get(table, ())]
    if any(place.startswith(f"{wanted}:") for place in named):
        return True
    through = (file_of(module) for module in direct if module.startswith("bertkit"))
    return wanted in direct.union(*(imported(file) for file in through if file))


def test_every_source_file_has_its_test_file() -> None:
    faults = []
    for path in SOURCES:
        name = str(path.relative_to(SOURCE))
        twin = ROOT / "tests" / Path(name).parent / f"test_{path.name}"
        if path.name.startswith("__") or twin.exists():
            if name in HOMES:
                faults.append(f"{name} has a test file of its own: take it off the list")
        elif name not in HOMES:
            faults.append(f"{name} has neither a test file nor a place in HOMES")
        elif not (home := ROOT / "tests" / HOMES[name]).is_file() or not holds(home, name):
            faults.append(f"{name}: {HOMES[name]} does not test it")
    assert not faults, "\n".join(faults)
    assert [name for name in HOMES if not (SOURCE / name).exists()] == []


def test_a_home_that_does_not_know_the_file_is_caught() -> None:
    assert holds(ROOT / "tests/nn/test_kernels.py", "nn/padding.py")
    assert not holds(ROOT / "tests/test_errors.py", "nn/padding.py")
    assert not holds(ROOT / "tests/extensions/serving/test_processes.py", "commands/pretrain.py")


def test_no_file_names_a_place_on_one_machine() -> None:
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


def test_constraints_pin_every_direct_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(line for extra in extras.values() for line in extra)]
    names = {re.split(r"[\[<>=~! ]", line, maxsplit=1)[0].lower() for line in wanted}
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert names - {"bertkit"} <= {m.lower() for m in re.findall(r"^([\w.-]+)==", pinned, re.M)}


def test_versions_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.M)
    assert cited is not None
    assert project["version"] == bertkit.__version__ == cited[1]
