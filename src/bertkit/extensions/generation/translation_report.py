"""Models that translate, side by side: their scores, by length too, as a page and as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from bertkit.extensions.generation.length_groups import LengthGroup
from bertkit.metrics import plus_minus
from bertkit.models.config import EncoderConfig
from bertkit.view.chart import curves, write_svg
from bertkit.view.figures import Table
from bertkit.view.page import write_report


def sequential_steps(
    encoder: EncoderConfig, decoder: EncoderConfig, n: float, m: float
) -> dict[str, float]:
    """Return the number of layer computations that depend on each other, by phase.

    Training computes all tokens of the target at once; generation computes one token at a time. An
    LSTM layer is one computation per token, an attention layer one for all tokens.

    Args:
        encoder: Settings of the encoder.
        decoder: Settings of the decoder.
        n: Number of tokens of the source.
        m: Number of tokens of the target.

    Source:
        Vaswani et al. 2017, table 1, "sequential operations".
    """
    steps, target_steps = (n, m) if encoder.is_sequential else (1.0, 1.0)
    read = encoder.layers * steps
    return {
        "learning": read + decoder.layers * target_steps,
        "writing": read + decoder.layers * m,
    }


def write_columns(out: Path, result: Mapping[str, Any]) -> None:
    """Write compare.svg and compare.html of what `compare_translation` returns."""
    chart = _chart(result)
    write_svg(out / "compare.svg", chart)
    metric, scores = result["metric"], result["scores"]
    models = [
        (
            name,
            about["encoder"],
            about["decoder"],
            about["interaction"],
            plus_minus(scores[name][metric]),
            f"{about['parameters']:,}",
            f"{about['steps']['learning']:.0f}",
            f"{about['steps']['writing']:.0f}",
            f"{scores[name]['seconds']['mean']:,.0f}",
        )
        for name, about in result["models"].items()
    ]
    heads = ("model", "encoder", "decoder", "between", metric, "parameters", "steps to learn",
             "steps to write", "seconds")  # fmt: skip
    lengths = [
        (
            _name(group),
            f"{group['pairs']:,}",
            *(plus_minus(scores[name][group["score"]]) for name in result["models"]),
        )
        for group in result["groups"]
    ]
    settings = [(key, str(value)) for key, value in result["settings"].items()]
    write_report(
        out / "compare.html",
        "compare_translation.html",
        **{
            **result,
            "chart": chart,
            "table": Table("Models", models, heads),
            "lengths": Table("By length", lengths, (_unit(result), "pairs", *result["models"])),
            "settings": Table("Settings", settings),
        },
    )


def _chart(result: Mapping[str, Any]) -> Markup:
    """Scores by length, or a sentence where there is but one."""
    groups, metric = result["groups"], result["metric"]
    if len(groups) < 2:
        low, high = groups[0]["low"], groups[0]["high"]
        why = f"all sources have {low} words" if low == high else "there are too few pairs"
        return Markup("<p>No scores by length: {}.</p>").format(why)
    middles = [(group["low"] + group["high"]) / 2 for group in groups]
    lines = {
        name: [
            (middle, scores[group["score"]]["mean"])
            for middle, group in zip(middles, groups, strict=True)
        ]
        for name, scores in result["scores"].items()
    }
    marks = {
        middle: [_name(group), f"{group['pairs']:,}"]
        for middle, group in zip(middles, groups, strict=True)
    }
    return curves(
        lines,
        x=f"{_unit(result)} in the source, and number of pairs below",
        y=metric,
        dotted=list(lines),
        marks=marks,
    )


def _unit(result: Mapping[str, Any]) -> str:
    """Return the unit of the length of a source."""
    return "letters" if result["metric"] == "letters in place" else "words"


def _name(group: Mapping[str, Any]) -> str:
    return LengthGroup(group["low"], group["high"], []).name
