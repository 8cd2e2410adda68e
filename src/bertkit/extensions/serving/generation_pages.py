"""The pages on models that write, and on what such models learn from."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from bertkit.errors import TokenizerError
from bertkit.extensions.classic.fill_gap import FillGap, GapAnswer
from bertkit.extensions.classic.gap import Gap
from bertkit.extensions.classic.gap_view import EXAMPLE, Sides, gap_figure
from bertkit.extensions.generation.corruption import Damage, damager, marks_of
from bertkit.extensions.generation.stepper import CausalStepper
from bertkit.extensions.serving.forms import (
    MAX_BEAMS,
    DamageForm,
    GapForm,
    StepsForm,
    answered,
    filled,
    values,
)
from bertkit.extensions.serving.pages import Window, elsewhere
from bertkit.extensions.serving.panels import PIECES
from bertkit.extensions.serving.request_context import RequestContext
from bertkit.extensions.serving.views.corruption import NAMES, damage_figures, damaged
from bertkit.pipelines import Candidate, Embed, FillMask
from bertkit.view.figures import Field, Figure, Form
from bertkit.view.page import decoder_page

USUAL = "as the model’s folder says"
"""Of beams."""

MAX_ADDRESS_CHARACTERS = 4_000
"""Characters of an address at most, as in `ask.js`."""

DAMAGED = (
    "The cat sat on the mat and slept all day. It rained, and two dogs ran over the hill. "
    "Nobody was at home."
)

FILLS = {
    "next-token": "goes on from the left; start it beside one that reads both sides",
    "fill-gap": "reads each side by itself; start it beside one that reads both at once",
}
"""What is said of a model that is alone on the page of gaps, by what it can do."""


class WriterPages:
    """Pages of a window: a method for each address."""

    def __init__(self, window: Window) -> None:
        self.window, self.registry = window, window.registry

    async def steps(self, request: Request) -> Response:
        """How a decoder writes, step by step."""
        if "/steps" not in self.window.links:
            return elsewhere()
        text, beams, model = await values(request, "text", "beams", "model")
        beams = "" if beams == USUAL else beams
        fields = (
            Field("text", "Text", text, rows=2, required=True),
            Field("beams", "Beams", beams, options=[USUAL, *map(str, range(1, MAX_BEAMS + 1))]),
            Field("model", "Model", model, options=list(self.registry.supporting("decode"))),
        )
        form = Form("/steps", fields, "Write")

        def shown(alert: str = "") -> str:
            return self.window.page(
                "/steps",
                "How does a decoder write?",
                "Give a model a text to translate or to sum up, and watch it write token by token: "
                "where it looks in what it read, what else it may write, which beams it keeps.",
                form=form._replace(alert=alert),
            )

        async def written() -> str:
            ask = filled(StepsForm, text=text, beams=beams, model=model)
            context = RequestContext(request)
            _, pipeline = context.pipeline("decode", ask.model)
            (steps,), _ = await context.answers(pipeline, [ask.text], field="text", beams=ask.beams)
            return decoder_page(steps, form, self.window.links, "/steps")

        return await answered(shown, written() if text.strip() else None)

    async def gap(self, request: Request) -> Response:
        """A sentence with a gap, by a causal model, an ELMo and a masked model."""
        if "/gap" not in self.window.links:
            return elsewhere()
        text, causal, elmo, masked = await values(request, "text", "causal", "elmo", "masked")
        able = {kind: list(self.registry.supporting(kind)) for kind in (*FILLS, "fill-mask")}
        fields = [
            Field("text", "A sentence with ___ for a word", text or EXAMPLE, required=True),
            Field("causal", "A model that sees the left", causal, options=able["next-token"]),
            Field("elmo", "One that sees each side by itself", elmo, options=able["fill-gap"]),
            Field("masked", "A model that sees both sides", masked, options=able["fill-mask"]),
        ]
        there = [(kind, names[0]) for kind, names in able.items() if names]
        alone = [
            f"{name} is alone here, and {FILLS[kind]}: bertkit view {name} OTHER"
            for kind, name in there
            if len(there) == 1
        ]

        def shown(figures: Sequence[Figure] = (), alert: str = "") -> str:
            form = Form("/gap", [one for one in fields if one.name == "text" or one.options], "Ask")
            return self.window.page(
                "/gap",
                "A gap, from each side and from both",
                "A causal model (GPT, Llama) goes on from what stands before, and sees nothing of "
                "what follows. An ELMo has a model for each direction, of which neither sees the "
                "other’s side. A masked model (BERT) sees both sides of the gap.",
                form=form._replace(alert=alert),
                figures=figures,
                computed_by=[CausalStepper.start, FillGap.run, FillMask.candidates],
                alerts=alone,
            )

        async def candidates() -> str:
            ask = filled(GapForm, text=text, causal=causal, elmo=elmo, masked=masked)
            gap, context = Gap.of(ask.text), RequestContext(request)
            chosen = {"next-token": ask.causal, "fill-gap": ask.elmo, "fill-mask": ask.masked}

            async def by(kind: str) -> list[tuple[str, Sides, Sequence[Candidate]]]:
                name, pipeline = context.pipeline(kind, chosen[kind])
                read, mask = gap.left if kind == "next-token" else ask.text, ""
                if isinstance(pipeline, FillMask):
                    mask = pipeline.tokenizer.pieces([pipeline.tokenizer.mask])[0]
                    read = gap.masked(mask)
                (answer,), _ = await context.answers(pipeline, [read], field="text", top=PIECES)
                if isinstance(answer, GapAnswer):
                    return [
                        (name, "the left alone", answer.forward),
                        (name, "the right alone", answer.backward),
                    ]
                if mask:  # it may be in the text, too
                    return [(name, "both sides", answer[gap.before.count(mask)].candidates)]
                return [(name, "the left alone", answer)]

            columns = [column for kind, _ in there for column in await by(kind)]
            return shown([gap_figure(gap, columns)])

        return await answered(shown, candidates() if text.strip() else None)

    async def damage(self, request: Request) -> Response:
        """A text as pretraining damages it."""
        if "/damage" not in self.window.links:
            return elsewhere()
        text, damage, seed, model = await values(request, "text", "damage", "seed", "model")
        kinds: dict[str, str] = {said: name for name, said in NAMES.items()}
        able: dict[str, list[str]] = {name: self._able(name) for name in NAMES}
        damage = kinds.get(damage, damage) or next(name for name, models in able.items() if models)
        model = model or next(iter(able.get(damage, [])), "")
        fields = (
            Field("text", "Text", text or DAMAGED, rows=3, required=True),
            Field("damage", "Damage", NAMES.get(damage, ""), options=list(kinds)),  # type: ignore[call-overload]
            Field("seed", "Seed: each takes other tokens", seed or "0"),
            Field(
                "model", "Vocabulary of", model, options=list(self.registry.supporting("tokenize"))
            ),
        )

        def shown(
            figures: Sequence[Figure] = (), alert: str = "", link: tuple[str, str] | None = None
        ) -> str:
            return self.window.page(
                "/damage",
                "A damaged text",
                "How T5, BART and MASS learn from raw text: some of it is taken away, the encoder "
                "reads what is left, and the decoder learns to write what is missing.",
                form=Form("/damage", fields, "Damage it", alert),
                figures=figures,
                computed_by=[damager],
                link=link,
            )

        async def figures() -> str:
            ask = filled(DamageForm, text=text, damage=damage, seed=seed, model=model)
            context = RequestContext(request)
            _, pipeline = context.pipeline("tokenize", ask.model)
            assert isinstance(pipeline, Embed)
            tokenizer = pipeline.tokenizer
            (made,) = await context.read(
                [ask.text],
                context.check([ask.text], "text"),
                lambda part: [damaged(tokenizer, one, ask.damage, ask.seed) for one in part],
                lambda one: len(one.text),
            )
            context.charge(len(made.text), 1)
            asked = {"text": text, "damage": ask.damage, "seed": ask.seed + 1, "model": model}
            address = f"/damage?{urlencode(asked)}"
            link = (
                (address, f"Seed {ask.seed + 1}")
                if len(address) <= MAX_ADDRESS_CHARACTERS
                else None
            )
            return shown(damage_figures(made), link=link)

        return await answered(shown, figures() if text.strip() else None)

    def _able(self, damage: Damage) -> list[str]:
        """The models whose vocabularies have what stands for a span."""
        able = []
        for name, pipeline in self.registry.supporting("tokenize").items():
            assert isinstance(pipeline, Embed)
            with contextlib.suppress(TokenizerError):  # it says what the vocabulary lacks
                marks_of(damage, pipeline.tokenizer)
                able.append(name)
        return able
