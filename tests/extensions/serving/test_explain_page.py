"""Examples are forms that the pages answer."""

from __future__ import annotations

from collections.abc import Sequence

from bertkit.extensions.serving.explain_page import EXAMPLES, MASKED_EXAMPLES, ExplainPage
from bertkit.view.figures import Example
from bertkit.view.page import FILES


def examples(models: Sequence[str], able: Sequence[str]) -> Sequence[Example]:
    names = {"explain": models, "fill-mask": able}
    return ExplainPage().examples(lambda pipeline: dict.fromkeys(names[pipeline]))


def test_examples_of_masked_words_name_a_model_that_fills_them() -> None:
    assert examples(["a", "b"], []) == EXAMPLES
    assert examples(["a", "b"], ["b", "a"]) == (*EXAMPLES, *MASKED_EXAMPLES)
    for models, able, named in ((["a", "b"], ["a"], "a"), (["a", "b", "c"], ["c", "b"], "b")):
        chosen = [one.values.get("model") for one in examples(models, able)]
        assert chosen == [None] * len(EXAMPLES) + [named] * len(MASKED_EXAMPLES)


def test_what_is_to_be_seen_is_a_part_of_the_page() -> None:
    page = (FILES / "explain.html").read_text(encoding="utf-8")
    for example in (*EXAMPLES, *MASKED_EXAMPLES):
        assert f'<section id="{example.part}"' in page
        assert {*example.values} <= {"text", "pair"}
