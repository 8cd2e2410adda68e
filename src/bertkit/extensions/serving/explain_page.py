"""Web page that shows what a model computes for a text, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bertkit.view.figures import Example, Field
from bertkit.view.page import document_values
from bertkit.web import Context, Cut, Models, Page, Values


def _example(shows: str, part: str, text: str, pair: str = "") -> Example:
    values = {"text": text, "pair": pair} if pair else {"text": text}
    return Example(values, f"{text} {pair}".strip(), shows, part)


EXAMPLES = (
    _example(
        "Attention: Which words does “it” attend to? Which head attends to the previous word?",
        "attention",
        "The animal did not cross the street because it was too tired.",
    ),
    _example(
        "Layers: “Bank” has two meanings here. In which layer do its two states begin to differ?",
        "layers",
        "We sat on the bank of the river.",
        "The bank lent us money for a boat.",
    ),
    _example(
        "Tokens: Rare words are split. Which heads attend from one subword to the next?",
        "embeddings",
        "She poured the unsweetened lemonade into her grandmother’s teacups.",
    ),
    _example(
        "Attention: “The” and “old” occur three times each. Does each one attend to its own noun?",
        "attention",
        "The old man said that the old dog knew the old road.",
    ),
)

MASKED_EXAMPLES = (
    _example(
        "Masked words: Mask “are”. Does the predicted verb agree with “keys” or with “cabinet”?",
        "masked",
        "The keys to the old cabinet are on the table.",
    ),
    _example(
        "Masked words: Mask “Paris”, and then mask “Paris” and “France” together.",
        "masked",
        "Paris is the capital of France, and Rome is the capital of Italy.",
    ),
)
"""Examples for models that predict masked tokens."""


class ExplainPage(Page):
    """The page that shows embeddings, attention weights, and the states of every layer."""

    link = "Look inside"
    title = "Model inspector"
    lead = (
        "See the tokens of a text, the attention weights of every head, what the model predicts "
        "if a word is masked, and how the states change from layer to layer. Use one of these "
        "examples, or enter your own text."
    )
    button = "Look inside"
    abilities = ("explain",)
    template, script = "explain.html", "main.js"

    def examples(self, models: Models) -> Sequence[Example]:
        names = list(models("explain"))
        able = [name for name in names if name in models("fill-mask")]
        if not able:
            return EXAMPLES
        if len(able) == len(names):
            return (*EXAMPLES, *MASKED_EXAMPLES)
        masked = [e._replace(values={**e.values, "model": able[0]}) for e in MASKED_EXAMPLES]
        return (*EXAMPLES, *masked)

    def fields(self, values: Values, models: Models) -> Sequence[Field]:
        return (
            Field("text", "Text", values["text"], rows=2, required=True),
            Field("pair", "Second text of a pair (optional)", values["pair"]),
            Field("off", "Heads to switch off, as LAYER.HEAD (optional)", values["off"]),
            # A script on the page sets the value of this field.
            Field("hide", hidden=True),
            Field("model", "Model", values["model"], options=list(models("explain"))),
        )

    async def answer(self, values: Values, context: Context) -> dict[str, Any]:
        _, pipeline = context.pipeline("explain", values["model"] or None)
        off, hide = (tuple(values[name].replace(",", " ").split()) for name in ("off", "hide"))
        item = (values["text"], values["pair"].strip() or None, off, hide)
        (answer,), _ = await context.answers(pipeline, [item], field="text", ask=Cut(truncate=True))
        return {**document_values(answer.text, answer), "causal": answer.causal}
