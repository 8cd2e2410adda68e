"""Web page of what a model computes for a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bertkit.view.figures import Example, Field
from bertkit.view.page import MODULES, document_values
from bertkit.web import Context, Cut, Models, Page, Values


def _look(shows: str, part: str, text: str, pair: str = "") -> Example:
    values = {"text": text, "pair": pair} if pair else {"text": text}
    return Example(values, f"{text} {pair}".strip(), shows, part)


LOOKS = (
    _look(
        "Attention: which words does “it” look at, and which head looks at the word before?",
        "attention",
        "The animal did not cross the street because it was too tired.",
    ),
    _look(
        "Layers: “bank” twice. Where do its two meanings part?",
        "layers",
        "We sat on the bank of the river.",
        "The bank lent us money for a boat.",
    ),
    _look(
        "Pieces: rare words are cut. Which heads look from piece to piece?",
        "embeddings",
        "She poured the unsweetened lemonade into her grandmother’s teacups.",
    ),
    _look(
        "Attention: “the” and “old” three times. Does each find its own noun?",
        "attention",
        "The old man said that the old dog knew the old road.",
    ),
)

MASKED = (
    _look(
        "Masked words: hide “are”. Does it agree with the keys, or with the cabinet?",
        "masked",
        "The keys to the old cabinet are on the table.",
    ),
    _look(
        "Masked words: hide Paris, then Paris and France together.",
        "masked",
        "Paris is the capital of France, and Rome is the capital of Italy.",
    ),
)
"""Examples for models that predict masked words."""


class ExplainPage(Page):
    """Embeddings, attention, and states of every layer."""

    link = "Look inside"
    title = "What does a model do with a text?"
    lead = (
        "See its pieces, whom they attend to in every head, what could stand in each "
        "word’s place, and how the states change from layer to layer. Take one of these "
        "texts, or write your own."
    )
    button = "Look"
    abilities = ("explain",)
    template, modules = "explain.html", MODULES

    def examples(self, models: Models) -> Sequence[Example]:
        names = list(models("explain"))
        able = [name for name in names if name in models("fill-mask")]
        if not able:
            return LOOKS
        if len(able) == len(names):
            return (*LOOKS, *MASKED)
        masked = [one._replace(values={**one.values, "model": able[0]}) for one in MASKED]
        return (*LOOKS, *masked)

    def fields(self, values: Values, models: Models) -> Sequence[Field]:
        return (
            Field("text", "Text", values["text"], rows=2, required=True),
            Field("pair", "A second text, to be read with it (may be left out)", values["pair"]),
            Field("off", "Heads to switch off, as LAYER.HEAD (may be left out)", values["off"]),
            Field("hide", hidden=True),  # A script fills it in.
            Field("model", "Model", values["model"], options=list(models("explain"))),
        )

    async def answer(self, values: Values, context: Context) -> dict[str, Any]:
        _, pipeline = context.pipeline("explain", values["model"] or None)
        off, hide = (tuple(values[name].replace(",", " ").split()) for name in ("off", "hide"))
        item = (values["text"], values["pair"].strip() or None, off, hide)
        (answer,), _ = await context.answers(pipeline, [item], field="text", ask=Cut(truncate=True))
        return {**document_values(answer.text, answer), "causal": answer.causal}
