"""Web pages that compare BERT with earlier and later models, and the route `/contexts`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from bertkit.errors import ConfigError
from bertkit.extensions.classic.context_figures import contexts_by_model, contexts_figures
from bertkit.extensions.classic.contexts import (
    CHARACTERS,
    TEXTS,
    Contexts,
    ContextsPipeline,
    compare,
)
from bertkit.extensions.classic.distance import DistancePipeline, distance_figures, gradients
from bertkit.extensions.classic.fill_gap import FillGap, GapAnswer
from bertkit.extensions.classic.gap import Gap
from bertkit.extensions.classic.gap_view import EXAMPLE, Sides, gap_figure
from bertkit.extensions.classic.growing_sentence import GrowingPipeline, growing_figure, last_states
from bertkit.extensions.classic.seq2seq import RecurrentEncoder
from bertkit.pipelines import PIPELINES, Candidate, FillMask
from bertkit.pipelines.supported import SupportedPipelines
from bertkit.view.figures import Example, Field, Marked
from bertkit.web import (
    ALL_MODELS,
    Builders,
    Context,
    Cut,
    Models,
    Page,
    Route,
    Text,
    Values,
    chosen_models,
)

CANDIDATES = 10
"""Number of candidates that the page shows for a gap."""

READERS = {
    "next-token": ("causal", "Causal model (left context)"),
    "fill-gap": ("elmo", "ELMo (each side separately)"),
    "fill-mask": ("masked", "Masked model (both sides)"),
}
"""Pipelines that fill a gap. Each has the name and the label of the form field that selects its
model."""

REMARKS = {
    "next-token": "uses only the left context; add a model that reads both sides",
    "fill-gap": "reads each side separately; add a model that reads both sides together",
}
"""Remark that the page shows if only one of the pipelines has models."""

LAYERS = {"the last layer": -1, "the second to last layer": -2, "the embedding": 0}
"""Layers that the page can compare between models, by their names."""

WORDS = {
    "bank": (
        "twice a river bank, twice a financial bank",
        "We sat on the bank of the river.\nThe bank lent us money.\n"
        "They fished from the muddy bank.\nHe paid the cheque in at the bank.",
    ),
    "light": (
        "a lamp, low weight, and a color",
        "She switched on the light.\nThe light in the hall was on.\n"
        "The bag was light to carry.\nHe wore a light blue shirt.",
    ),
    "run": (
        "moving fast, and managing a business",
        "They run along the beach.\nWe run to the bus.\n"
        "They run a small company.\nTwo sisters run the hotel.",
    ),
}
"""Examples for the page: for each word, a description and texts that contain the word."""

RIVER = "I arrived at the bank after crossing the wide and muddy river."


class GapPage(Page):
    """Page on which a causal model, an ELMo and a masked language model fill the gap in a text."""

    link = "A gap"
    title = "A gap, predicted from one side or from both"
    lead = (
        "A causal model (GPT, Llama) predicts the word only from the text before the gap. An "
        "ELMo has a model for each direction, which uses only the text on one side. A masked "
        "model (BERT) uses both sides of the gap."
    )
    button = "Ask"
    # A masked model predicts the word on its own page, with its own mask.
    abilities = ("next-token", "fill-gap")
    computed_by = (PIPELINES["next-token"].run, FillGap.run, FillMask.candidates)

    def fields(self, values: Values, models: Models) -> Sequence[Field]:
        text = values["text"] or EXAMPLE
        return [
            Field("text", "A sentence with ___ instead of a word", text, required=True),
            *(
                Field(field, label, values[field], options=list(models(pipeline)))
                for pipeline, (field, label) in READERS.items()
                if models(pipeline)
            ),
        ]

    def alerts(self, models: Models) -> Sequence[str]:
        pipeline, *others = (name for name in READERS if models(name))
        if others:
            return []
        (name, *_), remark = models(pipeline), REMARKS[pipeline]
        return [f"{name} is the only model here and {remark}: bertkit view {name} OTHER"]

    async def answer(self, values: Values, context: Context) -> dict[str, Any]:
        columns: list[tuple[str, Sides, Sequence[Candidate]]] = []
        for pipeline, (field, _) in READERS.items():
            if context.models(pipeline):
                columns += await self._columns(values["text"], pipeline, values[field], context)
        return {"figures": [gap_figure(Gap.of(values["text"]), columns)]}

    async def _columns(
        self, sentence: str, kind: str, model: str, context: Context
    ) -> list[tuple[str, Sides, Sequence[Candidate]]]:
        """Return the candidates that one model predicts from each context that it uses."""
        gap, mask = Gap.of(sentence), ""
        name, pipeline = context.pipeline(kind, model or None)
        text = gap.left if kind == "next-token" else sentence
        if kind == "fill-mask":
            mask = pipeline.tokenizer.pieces([pipeline.tokenizer.mask])[0]
            text = gap.masked(mask)
        (answer,), _ = await context.answers(pipeline, [text], field="text", top=CANDIDATES)
        if isinstance(answer, GapAnswer):
            return [
                (name, "the left context", answer.forward),
                (name, "the right context", answer.backward),
            ]
        if kind == "fill-mask":
            # The text before the gap may also contain mask tokens.
            return [(name, "both sides", answer[gap.before.count(mask)].candidates)]
        return [(name, "the left context", answer)]


class WordPage(Page):
    """Page that compares the states of a word in several texts."""

    link = "One word"
    title = "One word in several texts"
    lead = (
        "Except for its position, the embedding of a word is the same in every text. With each "
        "layer, the state of the word depends more on the sentence, so the states of different "
        "meanings become different."
    )
    button = "Compare"
    abilities = ("contexts",)
    computed_by = (ContextsPipeline.run, compare)

    def examples(self, models: Models) -> Sequence[Example]:
        words = WORDS.items()
        return [Example({"word": w, "texts": texts}, w, shows) for w, (shows, texts) in words]

    def fields(self, values: Values, models: Models) -> Sequence[Field]:
        names = list(models("contexts"))
        layer = values["layer"] or next(iter(LAYERS))
        extra = [Field("layer", "Layer, if all models are compared", layer, options=[*LAYERS])]
        return [
            Field("word", "A word", values["word"], required=True),
            Field("texts", "Texts, one per line", values["texts"], rows=5, required=True),
            Field("model", "Model", values["model"], options=_with_all(names)),
            *(extra if len(names) > 1 else []),
        ]

    async def answer(self, values: Values, context: Context) -> dict[str, Any]:
        layer = values["layer"] or next(iter(LAYERS))
        if layer not in LAYERS:
            raise ConfigError(f"layer: must be one of {', '.join(LAYERS)}")
        lines = [line.strip() for line in values["texts"].splitlines() if line.strip()]
        item, by_model = (values["word"].strip(), tuple(lines)), {}
        for name in chosen_models(values["model"], context.models("contexts")):
            name, pipeline = context.pipeline("contexts", name)
            (by_model[name],), _ = await context.answers(pipeline, [item], field="texts")
        answer = next(iter(by_model.values()))
        pairs = zip(answer.texts, answer.ranges, strict=True)
        figures = contexts_figures(answer)
        if len(by_model) > 1:
            figures = contexts_by_model(by_model, LAYERS[layer], layer)
        texts = [Marked(text, [(*span, "")]) for text, span in pairs]
        return {"figures": figures, "texts": texts}


def growing_pipeline(model: SupportedPipelines) -> GrowingPipeline | None:
    """Return the pipeline of an embedding model or an LSTM translation model, otherwise None."""
    if model.embed is None:
        return None
    network = model.embed.loaded.model
    if network.decoder is not None and isinstance(network.encoder, RecurrentEncoder):
        return GrowingPipeline(model.embed, model.pipelines["translate"])
    return GrowingPipeline(model.embed, None) if "embed" in model.pipelines else None


class GrowingPage(Page):
    """Page that shows the embedding of a sentence while the sentence grows word by word."""

    link = "One vector"
    title = "One vector, while the sentence grows"
    lead = (
        "The first neural translation models read a sentence word by word and stored it in one "
        "vector, which has the same size for three words and for thirty. The decoder generates "
        "the translation only from this vector. Sentence embeddings are also such vectors."
    )
    button = "Read"
    abilities = ("growing",)
    pipelines: ClassVar[Builders] = {"growing": growing_pipeline}
    computed_by = (last_states, GrowingPipeline.run)

    def examples(self, models: Models) -> Sequence[Example]:
        text = "We sat on the bank of the river and watched the boats."
        others = "They fished from the muddy shore.\nThe bank lent us money."
        shows = "similarity to two other sentences, word by word"
        return [Example({"text": text, "others": others}, text, shows)]

    def fields(self, values: Values, models: Models) -> Sequence[Field]:
        label = "Other sentences to compare with, one per line (optional)"
        return (
            Field("text", "A sentence", values["text"], rows=2, required=True),
            Field("others", label, values["others"], rows=3),
            Field("model", "Model", values["model"], options=list(models("growing"))),
        )

    async def answer(self, values: Values, context: Context) -> dict[str, Any]:
        name, pipeline = context.pipeline("growing", values["model"] or None)
        lines = tuple(line.strip() for line in values["others"].splitlines() if line.strip())
        (answer,), _ = await context.answers(pipeline, [(values["text"], lines)], field="text")
        return {"figures": [growing_figure(name, answer)]}


class DistancePage(Page):
    """Page that shows how much the state of a word depends on each other word of its text."""

    link = "Far apart"
    title = "From one word to another"
    lead = (
        "The meaning of bank may depend on a word that comes ten words later. In an LSTM, "
        "information passes through every word between them. Attention reaches each word in one "
        "step."
    )
    button = "Measure"
    abilities = ("distance",)
    pipelines: ClassVar[Builders] = {
        "distance": lambda model: model.embed and DistancePipeline(model.embed.loaded)
    }
    computed_by = (gradients, DistancePipeline.run)

    def fields(self, values: Values, models: Models) -> Sequence[Field]:
        names = list(models("distance"))
        return (
            Field("text", "Text", values["text"] or RIVER, rows=2, required=True),
            Field("word", "A word of the text", values["word"] or "bank", required=True),
            Field("model", "Model", values["model"], options=_with_all(names)),
        )

    async def answer(self, values: Values, context: Context) -> dict[str, Any]:
        measures, text = [], values["text"]
        for name in chosen_models(values["model"], context.models("distance")):
            name, pipeline = context.pipeline("distance", name)
            item = (values["word"].strip(), text)
            (answer,), _ = await context.answers(pipeline, [item], field="text")
            measures.append((name, answer))
        return {"figures": distance_figures(text, measures)}


def _with_all(models: Sequence[str]) -> Sequence[str]:
    """Return the options of a field that selects a model, or all models if there are several."""
    return [ALL_MODELS, *models] if len(models) > 1 else models


class ContextsAsk(Cut, frozen=True, kw_only=True):
    """Request to compare the states of a word in several texts."""

    EXAMPLE: ClassVar = {"word": "bank", "inputs": ["a bank by the river", "a bank lends money"]}

    word: Text
    inputs: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=CHARACTERS)]],
        Meta(min_length=2, max_length=TEXTS),
    ]
    """Texts that contain the word."""


async def contexts(ask: ContextsAsk, context: Context) -> Any:
    """Compare the states of a word in several texts, layer by layer."""
    _, pipeline = context.pipeline("contexts", ask.model)
    item = (ask.word, ask.inputs)
    (answer,), cut = await context.answers(pipeline, [item], field="inputs", ask=ask)
    return context.reply(answer, cut)


def contexts_pipeline(model: SupportedPipelines) -> ContextsPipeline | None:
    """Return the model's pipeline for states of words, or None if it has none."""
    return None if model.frozen is None else ContextsPipeline(model.name, model.frozen)


BUILDERS: Builders = {"contexts": contexts_pipeline}
CONTEXTS = Route("/contexts", contexts, Contexts, ContextsAsk, "contexts", pipelines=BUILDERS)
