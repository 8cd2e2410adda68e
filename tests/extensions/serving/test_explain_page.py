"""Examples of the explain page are values of its form."""

from __future__ import annotations

from collections.abc import Sequence

from bertkit.extensions.serving.explain_page import EXAMPLES, MASKED_EXAMPLES, ExplainPage
from bertkit.view.figures import Example
from bertkit.view.page import FILES


def examples(models: Sequence[str], fill_models: Sequence[str]) -> Sequence[Example]:
    names = {"explain": models, "fill-mask": fill_models}
    return ExplainPage().examples(lambda pipeline: dict.fromkeys(names[pipeline]))


def test_masked_examples_select_model_that_fills_masks() -> None:
    assert examples(["a", "b"], []) == EXAMPLES
    assert examples(["a", "b"], ["b", "a"]) == (*EXAMPLES, *MASKED_EXAMPLES)
    for models, fill_models, model_name in (
        (["a", "b"], ["a"], "a"),
        (["a", "b", "c"], ["c", "b"], "b"),
    ):
        chosen = [example.values.get("model") for example in examples(models, fill_models)]
        assert chosen == [None] * len(EXAMPLES) + [model_name] * len(MASKED_EXAMPLES)


def test_examples_refer_to_sections_of_page() -> None:
    page = (FILES / "explain.html").read_text(encoding="utf-8")
    for example in (*EXAMPLES, *MASKED_EXAMPLES):
        assert f'<section id="{example.part}"' in page
        assert {*example.values} <= {"text", "pair"}
