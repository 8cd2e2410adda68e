"""Prompts by name, literal prompts, and defaults of the model."""

from __future__ import annotations

import pytest

from bertkit.errors import CheckpointError, ConfigError
from bertkit.text.prompts import DOCUMENT, QUERY, Prompter, Prompts

E5 = Prompts({"query": "query: ", "passage": "passage: "})
BGE = Prompts({"query": "Represent this sentence: ", "document": ""})


def test_find_returns_query_and_document_prompts() -> None:
    assert E5.find(usual=QUERY) == "query: "
    assert E5.find(usual=DOCUMENT) == "passage: "
    assert (BGE.find(usual=QUERY), BGE.find(usual=DOCUMENT)) == ("Represent this sentence: ", "")
    assert E5.find() == Prompts().find(usual=QUERY) == ""
    assert Prompts(E5.named, "passage").find() == "passage: "
    assert Prompts(E5.named, "passage").find("query") == "query: "


def test_empty_document_prompt_does_not_hide_passage() -> None:
    """sentence-transformers adds an empty `document` prompt when it saves a model."""
    written = Prompts({"query": "query: ", "document": "", "passage": "passage: "})
    assert written.find(usual=DOCUMENT) == "passage: "


def test_find_accepts_literals_and_rejects_unknown_names() -> None:
    assert E5.find("Find: ") == "Find: "
    assert E5.find("为这个句子生成表示:") == "为这个句子生成表示:"
    assert Prompts({"query": "find"}).find("find") == "find"
    assert Prompts(E5.named, "query").find("") == ""
    with pytest.raises(ConfigError, match=r"'qurey' is not a prompt .*it has query, passage"):
        E5.find("qurey")
    with pytest.raises(ConfigError, match=r"it has none"):
        Prompts().find("query")


def test_find_rejects_prompts_without_pooling() -> None:
    prompts = Prompts(E5.named, pooled=False)
    assert prompts.find() == prompts.find("") == ""
    with pytest.raises(CheckpointError, match="include_prompt is false"):
        prompts.find("query")


def test_prompter_logs_each_prompt_once(capsys: pytest.CaptureFixture[str]) -> None:
    prompter = Prompter(E5)
    assert [prompter(), prompter("query"), prompter("query"), prompter()] == [
        "",
        "query: ",
        "query: ",
        "",
    ]
    messages = capsys.readouterr().err.splitlines()
    assert messages == ["prompt: none (the model has query, passage)", "prompt: 'query: '"]
    prompter.usual = "passage: "
    assert prompter() == "passage: "
    assert capsys.readouterr().err == "prompt: 'passage: '\n"
    assert Prompter(Prompts())() == ""
    assert capsys.readouterr().err == ""
