"""Common terms lead to the section or option: in the index, in the FAQ, and in the help texts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.docs.test_settings import section

from bertkit import cli
from bertkit.commands.table import COMMANDS

DOCS = Path(__file__).parents[2] / "docs"
FAQ = section((DOCS / "faq.md").read_text(encoding="utf-8"), "Terms of other libraries")
LINES = [line for line in FAQ.splitlines() if line.startswith("| ")][1:]
ROWS = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in LINES]

TERMS = """\
BM25|class weights|cross-encoder|data parallel|early stopping|experiment tracking|few-shot|fp16|GPU
gradient accumulation|gradient clipping|hard negatives|hidden states|hyperparameter search
imbalanced|knowledge distillation|LoRA|max_seq_length|mixed precision|multi-label
named entity recognition|ONNX|quantization|re-ranker|scheduler|semantic search|sentence embeddings
sliding window|token classification|warmup|weight decay"""
IN_HELP = {
    "finetune classify": "early stopping|gradient accumulation|gradient clipping|mixed precision|"
    "fp16|max-length|GPU|LoRA|random seed|weight decay|experiment tracker|warmup|frozen layers|"
    "imbalanced|class weights|few-shot",
    "prepare negatives": "hard negatives",
    "finetune respond": "cross-encoder",
    "push": "hugging face hub|commit message|private",
}


INDEX = (DOCS / "index.md").read_text(encoding="utf-8")
SOUGHT = """\
ONNX|LoRA|adapter|rerank|few-shot|DPO|hyperparameter|API|quantization|NER|sentiment|embedding
semantic search|tokenizer|GLUE|multi-GPU|troubleshooting|W&B|model card|upload|push|early stopping
checkpoint|resume|mixed precision|batch size|GPU|multi-label|class imbalance|cross-encoder
hard negatives|export|license|citation"""
WORDS = {
    "citation": "cite",
    "hard negatives": "negatives",
    "multi-GPU": "torchrun",
    "NER": "entities",
    "quantization": "quantize",
    "semantic search": "search",
}
"""Words that the section of a term contains instead of the term."""


def target_section(target: str) -> str:
    """Return the text of the page or section that a link of the index leads to."""
    file, _, anchor = target.partition("#")
    page = (DOCS / (file or "index.md")).read_text(encoding="utf-8")
    titles = re.findall("^#+ (.+)$", page, re.MULTILINE)
    slugs = {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-"): title for title in titles}
    return slugs[anchor] + section(page, slugs[anchor]) if anchor else page


@pytest.mark.parametrize("term", re.split(r"[|\n]", SOUGHT))
def test_index_leads_from_a_term_to_its_section(term: str) -> None:
    links = re.findall(r"\[([^\]]+)\]\(([^)]+)\)", section(INDEX, "Find a section by term"))
    targets = [target for text, target in links if term.lower() in text.lower()]
    assert targets
    for target in targets:
        assert WORDS.get(term, term).lower() in target_section(target).lower()


@pytest.mark.parametrize("term", re.split(r"[|\n]", TERMS))
def test_term_occurs_in_the_faq(term: str) -> None:
    assert any(term.lower() in row[0].lower() for row in ROWS)


def help_of(name: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.run([*name.split(), "--help"]) == 0
    page = re.sub("[│╭╮╰╯─*]", " ", capsys.readouterr().out)
    return " ".join(page.split())


@pytest.mark.parametrize("name", sorted({row[2].strip("`") for row in ROWS if row[2][0] == "`"}))
def test_faq_names_commands_and_options_that_exist(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    page = help_of(name, capsys)
    for row in ROWS:
        if row[2].strip("`") == name:
            for code in re.findall("`([^`]+)`", row[1]):
                option = code.split()[0]
                assert code in COMMANDS or f"{option} " in page, f"{code}: not in {name}"


def test_faq_names_settings_and_pages_that_exist() -> None:
    for row in ROWS:
        for file in re.findall(r"\((guide/[^)]+)\)", row[2]):
            text = (DOCS / file).read_text(encoding="utf-8")
            assert all(code in text for code in re.findall("`([^`]+)`", row[1]))


@pytest.mark.parametrize("name", IN_HELP)
def test_help_uses_common_terms(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    page = help_of(name, capsys).lower()
    assert [term for term in IN_HELP[name].split("|") if term.lower() not in page] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_an_option_begins_with_its_subject(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    page = help_of(name, capsys)
    odd = r"[A-Z]{3,}\S* (Of|Into|Who|Whom|The same(?= before|,| is))\b"
    assert re.findall(odd, page) == []
