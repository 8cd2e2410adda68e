"""Web pages about models that generate text, and about the text that they are trained on."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar
from urllib.parse import urlencode

from msgspec import Meta

from bertkit.errors import TokenizerError
from bertkit.extensions.generation.corruption import (
    CorruptionType,
    get_corruption,
    special_token_ids,
)
from bertkit.extensions.generation.corruption_view import NAMES, corrupt, corruption_figures
from bertkit.extensions.generation.decode_view import DecodePipeline
from bertkit.extensions.generation.pipeline import Generate
from bertkit.pipelines.supported import SupportedPipelines
from bertkit.view.figures import Field
from bertkit.view.page import document_values
from bertkit.web import Ask, Builders, Context, Models, Page, Text, Values

MAX_BEAMS = 8
"""Maximum number of beams that the page of decoding steps shows."""

DEFAULT_BEAMS = "default of the model"

MAX_ADDRESS_CHARACTERS = 4_000
"""Maximum number of characters in the address of a page, as in `ask.js`."""

EXAMPLE_TEXT = (
    "The cat sat on the mat and slept all day. It rained, and two dogs ran over the hill. "
    "Nobody was at home."
)


class StepsForm(Ask, frozen=True, kw_only=True):
    """Form of the page of decoding steps."""

    text: Text
    beams: Annotated[int, Meta(ge=1, le=MAX_BEAMS)] | None = None
    """Number of beams. Default: the number in the settings of the model directory."""


class CorruptionForm(Ask, frozen=True, kw_only=True):
    """Form of the page of corrupted text."""

    text: Text
    damage: CorruptionType = "spans"
    seed: Annotated[int, Meta(ge=0, lt=1 << 32)] = 0


def decode_pipeline(model: SupportedPipelines) -> DecodePipeline | None:
    """Return the pipeline for the decoding steps of a model.

    Returns:
        The pipeline, or None if the model has no decoder that attends to an encoder.
    """
    writer = model.pipelines.get("translate")
    if not isinstance(writer, Generate):
        return None
    decoder = writer.loaded.model.decoder
    return DecodePipeline(writer) if decoder and decoder.config.attends_to_source else None


class StepsPage(Page):
    """Page that shows the attention, the candidates and the beams in each step of a decoder."""

    link = "Step by step"
    title = "Decoding step by step"
    lead = (
        "Enter a text to translate or summarize. For each generated token, the page shows its "
        "attention to the source, the most probable alternatives, and the beams."
    )
    button = "Generate"
    abilities = ("decode",)
    pipelines: ClassVar[Builders] = {"decode": decode_pipeline}
    template, script = "decoder.html", "decoder.js"

    def fields(self, values: Values, models: Models) -> Sequence[Field]:
        beams = "" if values["beams"] == DEFAULT_BEAMS else values["beams"]
        counts = [DEFAULT_BEAMS, *map(str, range(1, MAX_BEAMS + 1))]
        return (
            Field("text", "Text", values["text"], rows=2, required=True),
            Field("beams", "Beams", beams, options=counts),
            Field("model", "Model", values["model"], options=list(models("decode"))),
        )

    async def answer(self, values: Values, context: Context) -> dict[str, Any]:
        beams = "" if values["beams"] == DEFAULT_BEAMS else values["beams"]
        form: StepsForm = context.form(StepsForm, {**values, "beams": beams})
        _, pipeline = context.pipeline("decode", form.model)
        (steps,), _ = await context.answers(pipeline, [form.text], field="text", beams=form.beams)
        return document_values(steps.text, steps)


class CorruptionPage(Page):
    """Page that shows how a text is corrupted for pretraining."""

    link = "Corrupted text"
    title = "Text corruption"
    lead = (
        "T5, BART and MASS are pretrained on corrupted text. Some tokens are removed, the encoder "
        "reads the remaining text, and the decoder is trained to generate the missing tokens."
    )
    button = "Corrupt"
    abilities = ("tokenize",)
    computed_by = (get_corruption,)

    def fields(self, values: Values, models: Models) -> Sequence[Field]:
        able = models("tokenize")
        damage, model = _choices(values, able)
        return (
            Field("text", "Text", values["text"] or EXAMPLE_TEXT, rows=3, required=True),
            Field("damage", "Corruption", damage, options=list(NAMES.values())),
            Field("seed", "Random seed", values["seed"] or "0"),
            Field("model", "Vocabulary of", model, options=list(able)),
        )

    async def answer(self, values: Values, context: Context) -> dict[str, Any]:
        damage, model = _choices(values, context.models("tokenize"))
        kinds = {label: kind for kind, label in NAMES.items()}
        chosen = {"damage": kinds.get(damage, damage), "model": model}
        form: CorruptionForm = context.form(CorruptionForm, {**values, **chosen})
        _, pipeline = context.pipeline("tokenize", form.model)
        (corrupted,) = await context.read(
            [form.text],
            context.check([form.text], "text"),
            lambda part: [corrupt(pipeline.tokenizer, t, form.damage, form.seed) for t in part],
            lambda corrupted: len(corrupted.text),
        )
        context.charge(len(corrupted.text), 1)
        following = {"text": form.text, "damage": form.damage, "seed": form.seed + 1}
        address = f"/damage?{urlencode({**following, 'model': model})}"
        fits = len(address) <= MAX_ADDRESS_CHARACTERS
        return {
            "figures": corruption_figures(corrupted),
            "link": (address, f"Seed {form.seed + 1}") if fits else None,
        }


def _choices(values: Values, models: Mapping[str, Any]) -> tuple[str, str]:
    """Return the selected or default corruption and model.

    An unsupported corruption is returned unchanged. The default corruption is the first whose
    special tokens are in the vocabulary of a model, and the default model is the first such model.

    Returns:
        The label of the corruption, and the name of the model.
    """
    labels = {str(kind): label for kind, label in NAMES.items()}
    able = {label: _supporting(kind, models) for kind, label in NAMES.items()}
    damage = labels.get(values["damage"], values["damage"])
    damage = damage or next(label for label, names in able.items() if names)
    return damage, values["model"] or next(iter(able.get(damage, [])), "")


def _supporting(kind: CorruptionType, models: Mapping[str, Any]) -> list[str]:
    """Return the names of the models whose vocabularies have the special tokens of a corruption."""
    able = []
    for name, pipeline in models.items():
        with contextlib.suppress(TokenizerError):
            special_token_ids(kind, pipeline.tokenizer)
            able.append(name)
    return able
