"""Which prompt stands before a text: a name, a text of one's own, or what the folder says."""

from __future__ import annotations

import pytest

from bertkit.errors import CheckpointError, ConfigError
from bertkit.text.prompts import DOCUMENT, QUERY, Prompter, Prompts

E5 = Prompts({"query": "query: ", "passage": "passage: "})
BGE = Prompts({"query": "Represent this sentence: ", "document": ""})


def test_queries_and_documents_have_the_prompts_of_their_names() -> None:
    assert E5.find(usual=QUERY) == "query: "
    assert E5.find(usual=DOCUMENT) == "passage: "
    assert (BGE.find(usual=QUERY), BGE.find(usual=DOCUMENT)) == ("Represent this sentence: ", "")
    assert E5.find() == Prompts().find(usual=QUERY) == ""
    assert Prompts(E5.named, "passage").find() == "passage: "
    assert Prompts(E5.named, "passage").find("query") == "query: "


def test_an_empty_document_hides_no_passage() -> None:
    """sentence-transformers adds an empty `document` to whatever it writes."""
    written = Prompts({"query": "query: ", "document": "", "passage": "passage: "})
    assert written.find(usual=DOCUMENT) == "passage: "


def test_a_text_of_ones_own_is_taken_and_a_word_that_is_no_name_refused() -> None:
    assert E5.find("Find: ") == "Find: "
    assert E5.find("为这个句子生成表示:") == "为这个句子生成表示:"
    assert Prompts({"query": "find"}).find("find") == "find"
    assert Prompts(E5.named, "query").find("") == ""
    with pytest.raises(ConfigError, match=r"'qurey' is not a prompt .*it has query, passage"):
        E5.find("qurey")
    with pytest.raises(ConfigError, match=r"it has none"):
        Prompts().find("query")


def test_a_prompt_that_is_not_to_be_pooled_is_refused() -> None:
    apart = Prompts(E5.named, pooled=False)
    assert apart.find() == apart.find("") == ""
    with pytest.raises(CheckpointError, match="include_prompt is false"):
        apart.find("query")


def test_each_prompt_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    asked = Prompter(E5)
    assert [asked(), asked("query"), asked("query"), asked()] == ["", "query: ", "query: ", ""]
    said = capsys.readouterr().err.splitlines()
    assert said == ["prompt: none (the model has query, passage)", "prompt: 'query: '"]
    asked.usual = "passage: "
    assert asked() == "passage: "
    assert capsys.readouterr().err == "prompt: 'passage: '\n"
    assert Prompter(Prompts())() == ""
    assert capsys.readouterr().err == ""
