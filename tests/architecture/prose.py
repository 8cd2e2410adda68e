"""Words and sentence forms that readers stumble over, found in prose.

`python -m tests.architecture.prose FILE_OR_DIRECTORY ...` prints them.

Checks docstrings, comments, and messages of Python files, comments of TOML files, and the text of
Markdown pages. Code, code spans, and output blocks are not checked.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]

WORDS = {
    r"(?:is|are|was|were) told|told (?:apart|by|of|from)|tells? (?:apart|how)": "report, infer",
    r"(?:is|are|be|was) said|says? so|unless said|says (?:how|which|what)": "print, log, state",
    r"(?:is|are|be|was) asked|asked (?:of|with|about)": "request, query, run",
    r"mend(?:s|ed|ing)?": "fix",
    r"beside": "next to, in addition to, compared with",
    r"(?<!connection )refus(?:e|es|ed|ing|als?)": "reject, raise, do not support",
    r"fores(?:ee|een|ees)": "predict",
    r"likeli(?:er|est)|commonest|seldomest": "most frequent",
    r"likeness|how alike": "similarity",
    r"pieces? (?:ids?|a word|of a word|and)|word pieces|(?:its|the) pieces": "token",
    r"(?:at|of|masked|all|these|those|chosen|as many) places": "position, index",
    r"(?:a|this|that|another|largest|their|its) share of|shares of": "fraction, split",
    r"(?:is|are) drawn|draws (?:of|anew)|drawn (?:anew|again|from|by)": "sample",
    r"next words|words that come next": "next token, causal language modeling",
    r"(?:go|goes|going|went|gone) on(?! to\b)": "continue, resume",
    r"anew|begins? again|takes? again": "again, restart",
    r"by heart": "memorize, overfit",
    r"in silence|without a word|in a (?:word|sentence)|with a word": "silently, clearly",
    r"in place of": "instead of",
    r"(?:stands?|stood) (?:in|at|before|behind|beside|there|for itself)": "is, appears, precedes",
    r"(?:lies?|lay) (?:end|in|at|beside|where|apart|together)": "is stored, is concatenated",
    r"(?:model|task|file|store|head|it|which|that|rows?) wants?": "need, require, expect",
    r"(?:model|task|file|store|it|which|that) (?:itself )?knows?": "record, support, recognize",
    r"comes? to (?:[\d~]|about|the (?:same|mean|number))": "reach, be",
    r"so many|as many(?! [\w-]+(?: [\w-]+){0,3} as\b)(?! as\b)|so few": "the number, or its name",
    r"of (?:its|their|our|his|one's) own": "its own X, a separate X",
    r"(?-i:(?:is|are) none)|has none|have none|has not[.,;]|have not[.,;]": "does not have",
    r"is another|are others|of others|by others|of ours|theirs": "name the thing or the library",
    r"(?:is|are) not there|that (?:is|are) there[.,;]|is there already": "exist",
    r"(?:is|are) made of (?:it|them|this|what|these)": "is built from",
    r"(?:learns?|learned|taught) (?:nothing|by what|of|from what)": "train, fit",
    r"left out|leave (?:it|them|this) out|passed over|put aside": "skip, omit, remove",
    r"(?:given|let) (?:back|go)(?= |[.,;])|dealt|parted|taken apart": "release, distribute, split",
    r"as it (?:comes|came|is)[.,;]|as before|as ever|as of old": "unchanged, by default",
    r"whence|thence|elders|no more than that|whoever|nobody knows": "plain modern English",
    r"(?:of|by|with|from|in|for|to|than|and) what(?! (?:you|we|if|happens|it))": "name it",
    r"(?:than|as|with|from|by|and|to|of|like) those? (?:of|with|which|that)": "repeat it",
    r"where (?:it|there|that|none|one|no|both|all|nothing) (?:is|are|has|have|was|can)": "if, when",
    r"(?:tokens|rows|texts|steps|heads|samples) a (?:row|text|step|token|second)": "per",
    r"in turn|each in its turn": "one after another",
}
"""Patterns of unclear wordings, with their replacements."""

OPENINGS = re.compile(
    r"(?:What|Which|Whose|Of|Those|None|Neither|That of|Both of|Frozen are|Beside|Behind) ",
    re.ASCII,
)
NOUN_FIRST = re.compile(
    r"(?:The|A|An|Each|Every|All|Its|Their|As|Some|How|Where|Who|In|From|By|No|Not|So|With) "
)
FINDERS = {re.compile(rf"\b(?:{words})\b", re.IGNORECASE): hint for words, hint in WORDS.items()}


class Passage(NamedTuple):
    """A block of prose: a docstring, a comment, a message, or a paragraph of a page."""

    line: int
    text: str
    is_function: bool = False


def python(text: str) -> Iterator[Passage]:
    """Return the docstrings, messages, and comments of a Python file."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if (found := ast.get_docstring(node)) is not None:
                names = " ".join(map(ast.unparse, getattr(node, "decorator_list", [])))
                is_value = re.search("property|fixture", names) is not None
                is_test = getattr(node, "name", "").startswith("test_")
                is_definition = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                is_function = is_definition and not is_value and not is_test
                yield Passage(getattr(node, "lineno", 1), found, is_function)
        elif isinstance(node, ast.Raise | ast.Call):
            called = node.exc if isinstance(node, ast.Raise) else node
            is_print = isinstance(node, ast.Raise) or re.search(
                r"(?:print|say|warn|log|report)\w*$", ast.unparse(node.func)
            )
            for value in called.args if is_print and isinstance(called, ast.Call) else ():
                message = re.sub(r"\{[^{}]*\}", "x", ast.unparse(value))
                if isinstance(value, ast.Constant | ast.JoinedStr) and message.count(" ") > 2:
                    yield Passage(value.lineno, re.sub(r"^f?['\"]|['\"]$", "", message))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not re.match(r"#\s*(?:type:|noqa)", token.string):
            yield Passage(token.start[0], token.string.lstrip("# "))


def markdown(text: str) -> Iterator[Passage]:
    """Return the paragraphs, headings, and table rows of a page, without its code."""
    hidden = re.compile(r"^(```|~~~).*?^\1|<!--.*?-->", re.MULTILINE | re.DOTALL)
    text = hidden.sub(lambda match: "\n" * match[0].count("\n"), text)
    for match in re.finditer(r"(?:.+\n?)+", text):
        yield Passage(text.count("\n", 0, match.start()) + 1, match[0])


def toml(text: str) -> Iterator[Passage]:
    """Return the comments of a TOML file."""
    for number, line in enumerate(text.splitlines(), 1):
        if (comment := re.match(r"\s*#+\s*(.+)", line)) is not None:
            yield Passage(number, comment[1])


READERS = {".py": python, ".md": markdown, ".toml": toml}


def prose(passage: Passage) -> str:
    """Return the passage without code spans, link targets, and line breaks."""
    text = re.sub(r"``.+?``|`[^`]+`", "`x`", passage.text, flags=re.DOTALL)
    return " ".join(re.sub(r"\]\([^)]*\)", "]", text).split())


def findings(passage: Passage) -> Iterator[str]:
    """Return what to change in a passage, as `text: hint`."""
    text = prose(passage)
    if passage.is_function and NOUN_FIRST.match(text):
        yield f"{text[:30]}: begin with a verb"
    for sentence in re.split(r"(?<=[.?!])\s+", text):
        if not sentence.endswith("?") and (opening := OPENINGS.match(sentence)):
            yield f"{opening[0].strip()} ...: begin with the subject"
        for finder, hint in FINDERS.items():
            yield from (f"{match[0]}: {hint}" for match in finder.finditer(sentence))


def check(files: list[Path]) -> tuple[list[str], int]:
    """Return the findings in files as `file:line: text: hint`, and the number of words of prose."""
    found, words = [], 0
    for file in files:
        for passage in READERS[file.suffix](file.read_text(encoding="utf-8")):
            words += len(re.findall(r"[A-Za-z][\w'-]+", prose(passage)))
            found += [
                f"{file.relative_to(ROOT)}:{passage.line}: {text}" for text in findings(passage)
            ]
    return found, words


def files_in(folder: str) -> list[Path]:
    """Return the files with prose in a directory, or the file itself."""
    path = ROOT / folder
    files = path.rglob("*") if path.is_dir() else [path]
    return sorted(file for file in files if file.suffix in READERS)


if __name__ == "__main__":
    for argument in sys.argv[1:] or ["src", "docs", "README.md", "CONTRIBUTING.md"]:
        found, words = check(files_in(argument))
        print(*found, f"{argument}: {len(found)} findings in {words:,} words", sep="\n")
