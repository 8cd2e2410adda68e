"""The pages on what states hold: of a whole sentence, and of words far from each other."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from bertkit.extensions.serving.examples import SENTENCES
from bertkit.extensions.serving.forms import answered, values
from bertkit.extensions.serving.pages import ALL_MODELS, Window, elsewhere
from bertkit.extensions.serving.request_context import RequestContext
from bertkit.extensions.serving.views.distance import DistancePipeline, distance_figures, gradients
from bertkit.extensions.serving.views.growing_sentence import (
    GrowingPipeline,
    growing_figure,
    last_states,
)
from bertkit.view.figures import Field, Figure, Form

RIVER = "I arrived at the bank after crossing the wide and muddy river."


class StatePages:
    """Pages of a window: a method for each address."""

    def __init__(self, window: Window) -> None:
        self.window, self.registry = window, window.registry

    async def growing(self, request: Request) -> Response:
        """One vector for a sentence that grows."""
        if "/growing" not in self.window.links:
            return elsewhere()
        text, others, model = await values(request, "text", "others", "model")
        fields = (
            Field("text", "A sentence", text, rows=2, required=True),
            Field("others", "Others to find the nearest of, a line each (may be left out)",
                  others, rows=3),
            Field("model", "Model", model, options=list(self.registry.supporting("growing"))),
        )  # fmt: skip

        def shown(figures: Sequence[Figure] = (), alert: str = "") -> str:
            return self.window.page(
                "/growing",
                "One vector, while the sentence grows",
                "The first networks that translated read a sentence word by word and kept one "
                "vector of it, of one size for three words and for thirty: all that is written has "
                "to be in it. Embeddings of sentences are such vectors to this day.",
                form=Form("/growing", fields, "Read", alert, SENTENCES),
                figures=figures,
                computed_by=[last_states, GrowingPipeline.run],
            )

        async def grown() -> str:
            context = RequestContext(request)
            name, pipeline = context.pipeline("growing", model or None)
            lines = tuple(line.strip() for line in others.splitlines() if line.strip())
            (answer,), _ = await context.answers(pipeline, [(text, lines)], field="text")
            return shown([growing_figure(name, answer)])

        return await answered(shown, grown() if text.strip() else None)

    async def distance(self, request: Request) -> Response:
        """How far a word looks."""
        if "/distance" not in self.window.links:
            return elsewhere()
        text, word, model = await values(request, "text", "word", "model")
        able = list(self.registry.supporting("distance"))
        fields = (
            Field("text", "Text", text or RIVER, rows=2, required=True),
            Field("word", "A word of it", word or "bank", required=True),
            Field(
                "model", "Model", model, options=[*([ALL_MODELS] if len(able) > 1 else []), *able]
            ),
        )

        def shown(figures: Sequence[Figure] = (), alert: str = "") -> str:
            return self.window.page(
                "/distance",
                "From one word to another",
                "Which bank it is may be said ten words later. An LSTM carries what it has read "
                "through every word between; attention looks at each word in one step.",
                form=Form("/distance", fields, "Measure", alert),
                figures=figures,
                computed_by=[gradients, DistancePipeline.run],
            )

        async def measured() -> str:
            context, measures = RequestContext(request), []
            for name in able if len(able) > 1 and model in ("", ALL_MODELS) else [model or able[0]]:
                name, pipeline = context.pipeline("distance", name)
                item = (word.strip(), text)
                (answer,), _ = await context.answers(pipeline, [item], field="text")
                measures.append((name, answer))
            return shown(distance_figures(text, measures))

        return await answered(shown, measured() if text.strip() and word.strip() else None)
