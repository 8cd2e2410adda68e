"""The numbers and lines that a page shows are compared with the output."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.docs.outputs import missing
from tests.docs.test_tutorial import ROOT, blocks, check

PRINTED = """\
step 10/20  loss 6.512  44,405 tokens/s
epoch 2: accuracy 0.8125  f1 0.7931
{"accuracy":0.8125,"epoch":2,"bits":-1.25}
corpus: 129,829 tokens, 79 documents, 309 kB
done in 3.2 s
"""


@pytest.mark.parametrize(
    "line",
    [
        "step 10/20  loss 6.5  39,000 tokens/s",
        "epoch 2: accuracy 0.8000  f1 0.80",
        "epoch 2: accuracy 0.8...  f1 ...",
        "epoch 2: accuracy 0.81...",
        '{"accuracy":0.8125,...,"bits":-...}',
        '{...,"bits":-1.25}',
        "corpus: 130,000 tokens, 79 documents, 12 kB",
        "done in 40 s",
        "... in ...",
    ],
)
def test_line_matches_equal_text_and_close_numbers(line: str) -> None:
    assert missing(line, PRINTED) == []


@pytest.mark.parametrize(
    "line",
    [
        "step 10/21  loss 6.512  44,405 tokens/s",
        "step 10/20  loss 5.9  44,405 tokens/s",
        "epoch 2: accuracy 0.7125  f1 0.7931",
        "epoch 2: accuracy 0.9125  f1 0.7931",
        "epoch 2: accuracy 0.9...",
        "epoch 3: accuracy 0.8125  f1 0.7931",
        "epoch 2: accuracy 0.8125",
        '{"accuracy":0.8125,"epoch":3,"bits":-1.25}',
        '{"accuracy":0.8125,"epoch":2,"bits":1.25}',
        "corpus: 139,829 tokens, 79 documents, 309 kB",
        "corpus: 129,829 tokens, 78 documents, 309 kB",
        "done in 3.2 steps",
        "done in s",
    ],
)
def test_line_differs_in_text_or_numbers(line: str) -> None:
    assert missing(line, PRINTED) == [" ".join(line.split())]


def test_tolerance_applies_to_decimals_only() -> None:
    assert missing("epoch 2: accuracy 0.90  f1 0.70", PRINTED, 0.1) == []
    assert missing("epoch 2: accuracy 0.95  f1 0.70", PRINTED, 0.1) != []
    assert missing("epoch 1: accuracy 0.90  f1 0.70", PRINTED, 0.1) != []


PAGE = """\
```bash
echo accuracy 0.8125 in 3 s, 91 examples
```
{mark}
```text
accuracy {score} in {seconds} s, {examples} examples
```
"""
TRUE: Mapping[str, object] = {"mark": "", "score": 0.8125, "seconds": 3, "examples": 91}


@pytest.mark.parametrize(
    ("change", "passes"),
    [
        ({}, True),
        ({"seconds": 40}, True),
        ({"score": 0.7125}, False),
        ({"score": 0.1}, False),
        ({"examples": 90}, False),
        ({"score": 0.7125, "mark": "\n<!-- tolerance 0.15 -->"}, True),
        ({"score": 0.5, "mark": "\n<!-- tolerance 0.15 -->"}, False),
        ({"score": 0.1, "examples": 5, "mark": "\n<!-- variable -->"}, True),
    ],
)
def test_page_fails_if_a_score_changes(
    tmp_path: Path, change: Mapping[str, object], passes: bool
) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.format(**{**TRUE, **change}), encoding="utf-8")
    if passes:
        check(page, tmp_path, {})
    else:
        with pytest.raises(AssertionError, match=r"page\.md:1: not printed: \['accuracy"):
            check(page, tmp_path, {})


def test_mark_must_be_the_only_text_before_the_output() -> None:
    page = PAGE.format(**{**TRUE, "mark": "\nWords\n<!-- variable -->"})
    assert [block.shown for block in blocks(page)] == [None]


def test_quickstarts_require_accuracy_of_fine_tuned_models() -> None:
    pages = [ROOT / "docs" / "get-started" / f"{name}.md" for name in ("command-line", "python")]
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    trained = [block for block in blocks(text) if "finetune" in block.code]
    assert len(trained) == 2
    for block in trained:
        assert block.shown is not None
        low, enough = (
            re.sub(r'(accuracy"?[: ])1\.0', rf"\g<1>{score}", block.shown) for score in (0.79, 0.81)
        )
        assert len(missing(block.shown, low, block.tolerance)) == 1
        assert missing(block.shown, enough, block.tolerance) == []
