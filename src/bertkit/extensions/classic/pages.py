"""Web pages that compare models before and after BERT, and the route of words in contexts."""

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
    compared,
)
from bertkit.extensions.classic.distance import DistancePipeline, distance_figures, gradients
from bertkit.extensions.classic.fill_gap import FillGap, GapAnswer
from bertkit.extensions.classic.gap import Gap
from bertkit.extensions.classic.gap_view import EXAMPLE, Sides, gap_figure
from bertkit.extensions.classic.growing_sentence import (
    GrowingPipeline,
    growing_figure,
    last_states,
)
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
"""Number of words for a gap that a page shows."""

READERS = {
    "next-token": ("causal", "A model that sees the left"),
    "fill-gap": ("elmo", "One that sees each side by itself"),
    "fill-mask": ("masked", "A model that sees both sides"),
}
"""Pipelines that fill gaps: name and label of the field of the model."""

REMARKS = {
    "next-token": "goes on from the left; start it beside one that reads both sides",
    "fill-gap": "reads each side by itself; start it beside one that reads both at once",
}
"""Remark on a model that is the only one on the page, by its pipeline."""

LAYERS = {"the last layer": -1, "the last layer but one": -2, "the embedding": 0}
"""Numbers of the layers that the page of words compares."""

WORDS = {
    "bank": (
        "beside a river twice, and twice with money",
        "We sat on the bank of the river.\nThe bank lent us money.\n"
        "They fished from the muddy bank.\nHe paid the cheque in at the bank.",
    ),
    "light": (
        "a lamp, a color, and no weight",
        "She switched on the light.\nThe light in the hall was on.\n"
        "The bag was light to carry.\nHe wore a light blue shirt.",
    ),
    "run": (
        "on legs, and of a company",
        "They run along the beach.\nWe run to the bus.\n"
        "They run a small company.\nTwo sisters run the hotel.",
    ),
}
"""Words of the examples: what each example shows, and its texts."""

RIVER = "I arrived at the bank after crossing the wide and muddy river."


class GapPage(Page):
    """A sentence with a gap, filled by a causal model, an ELMo and a masked language model."""

    link = "A gap"
    title = "A gap, from each side and from both"
    lead = (
        "A causal model (GPT, Llama) goes on from what stands before, and sees nothing of "
        "what follows. An ELMo has a model for each direction, of which neither sees the "
        "other’s side. A masked model (BERT) sees both sides of the gap."
    )
    button = "Ask"
    # A masked model predicts the word on its own page, with its own mask.
    abilities = ("next-token", "fill-gap")
    computed_by = (PIPELINES["next-token"].run, FillGap.run, FillMask.candidates)

    def fields(self, values: Values, models: Models) -> Sequence[Field]:
        text = values["text"] or EXAMPLE
        return [
            Field("text", "A sentence with ___ for a word", text, required=True),
            *(
                Field(field, label, values[field], options=list(models(pipeline)))
                for pipeline, (field, label) in READERS.items()
                if models(pipeline)
            ),
        ]

    def alerts(self, models: Models) -> Sequence[str]:
        pipeline, *others = (one for one in READERS if models(one))
        if others:
            return []
        (name, *_), remark = models(pipeline), REMARKS[pipeline]
        return [f"{name} is alone here, and {remark}: bertkit view {name} OTHER"]

    async def answer(self, values: Values, context: Context) -> dict[str, Any]:
        columns: list[tuple[str, Sides, Sequence[Candidate]]] = []
        for pipeline, (field, _) in READERS.items():
            if context.models(pipeline):
                columns += await self._columns(values["text"], pipeline, values[field], context)
        return {"figures": [gap_figure(Gap.of(values["text"]), columns)]}

    async def _columns(
        self, sentence: str, kind: str, model: str, context: Context
    ) -> list[tuple[str, Sides, Sequence[Candidate]]]:
        """Return the candidates of one model, for each context of the gap that it reads."""
        gap, mask = Gap.of(sentence), ""
        name, pipeline = context.pipeline(kind, model or None)
        text = gap.left if kind == "next-token" else sentence
        if kind == "fill-mask":
            mask = pipeline.tokenizer.pieces([pipeline.tokenizer.mask])[0]
            text = gap.masked(mask)
        (answer,), _ = await context.answers(pipeline, [text], field="text", top=CANDIDATES)
        if isinstance(answer, GapAnswer):
            return [
                (name, "the left alone", answer.forward),
                (name, "the right alone", answer.backward),
            ]
        if kind == "fill-mask":
            # The text before the gap may contain masks, too.
            return [(name, "both sides", answer[gap.before.count(mask)].candidates)]
        return [(name, "the left alone", answer)]


class WordPage(Page):
    """A word in several texts."""

    link = "One word"
    title = "One word in several texts"
    lead = (
        "The embedding of a word is the same wherever it stands, but for its position. "
        "Layer by layer its states become those of this sentence, and those of another "
        "meaning part from them, as far as the model sees the sentence."
    )
    button = "Compare"
    abilities = ("contexts",)
    computed_by = (ContextsPipeline.run, compared)

    def examples(self, models: Models) -> Sequence[Example]:
        words = WORDS.items()
        return [Example({"word": w, "texts": texts}, w, shows) for w, (shows, texts) in words]

    def fields(self, values: Values, models: Models) -> Sequence[Field]:
        able = list(models("contexts"))
        layer = values["layer"] or next(iter(LAYERS))
        several = [Field("layer", "Layer, where all are asked", layer, options=[*LAYERS])]
        return [
            Field("word", "A word", values["word"], required=True),
            Field("texts", "Texts with it, a line each", values["texts"], rows=5, required=True),
            Field("model", "Model", values["model"], options=_with_all(able)),
            *(several if len(able) > 1 else []),
        ]

    async def answer(self, values: Values, context: Context) -> dict[str, Any]:
        layer = values["layer"] or next(iter(LAYERS))
        if layer not in LAYERS:
            raise ConfigError(f"layer: expected {', '.join(LAYERS)}")
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
        texts = [Marked(text, [(*place, "")]) for text, place in pairs]
        return {"figures": figures, "texts": texts}


def growing_pipeline(model: SupportedPipelines) -> GrowingPipeline | None:
    """Return the pipeline of a model of embeddings, or of an LSTM translator."""
    if model.embed is None:
        return None
    network = model.embed.loaded.model
    if network.decoder is not None and isinstance(network.encoder, RecurrentEncoder):
        return GrowingPipeline(model.embed, model.pipelines["translate"])
    return GrowingPipeline(model.embed, None) if "embed" in model.pipelines else None


class GrowingPage(Page):
    """The embedding of a sentence, word by word."""

    link = "One vector"
    title = "One vector, while the sentence grows"
    lead = (
        "The first networks that translated read a sentence word by word and kept one "
        "vector of it, of one size for three words and for thirty: all that is written has "
        "to be in it. Embeddings of sentences are such vectors to this day."
    )
    button = "Read"
    abilities = ("growing",)
    pipelines: ClassVar[Builders] = {"growing": growing_pipeline}
    computed_by = (last_states, GrowingPipeline.run)

    def examples(self, models: Models) -> Sequence[Example]:
        text = "We sat on the bank of the river and watched the boats."
        others = "They fished from the muddy shore.\nThe bank lent us money."
        shows = "which of two sentences is nearer, word by word"
        return [Example({"text": text, "others": others}, text, shows)]

    def fields(self, values: Values, models: Models) -> Sequence[Field]:
        label = "Others to find the nearest of, a line each (may be left out)"
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
    """How much the state of a word depends on each other word."""

    link = "Far apart"
    title = "From one word to another"
    lead = (
        "Which bank it is may be said ten words later. An LSTM carries what it has read "
        "through every word between; attention looks at each word in one step."
    )
    button = "Measure"
    abilities = ("distance",)
    pipelines: ClassVar[Builders] = {
        "distance": lambda model: model.embed and DistancePipeline(model.embed.loaded)
    }
    computed_by = (gradients, DistancePipeline.run)

    def fields(self, values: Values, models: Models) -> Sequence[Field]:
        able = list(models("distance"))
        return (
            Field("text", "Text", values["text"] or RIVER, rows=2, required=True),
            Field("word", "A word of it", values["word"] or "bank", required=True),
            Field("model", "Model", values["model"], options=_with_all(able)),
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
    """Return the options of a field that selects a model or, if there are several, all."""
    return [ALL_MODELS, *models] if len(models) > 1 else models


class ContextsAsk(Cut, frozen=True, kw_only=True):
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
    """Return the pipeline of a model that has states of words."""
    return None if model.frozen is None else ContextsPipeline(model.name, model.frozen)


BUILDERS: Builders = {"contexts": contexts_pipeline}
CONTEXTS = Route("/contexts", contexts, Contexts, ContextsAsk, "contexts", pipelines=BUILDERS)
