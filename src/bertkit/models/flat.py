"""The names that a model's settings had before they came in groups.

Run files of before are read by them, and fingerprints are made with them, so that stores of before
stay valid.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bertkit.config import at, decode, merged, nested, paths
from bertkit.models.config import RelativePositions, RotaryPositions, TransformerConfig

RENAMED = {
    "order": "layer_sharing", "length": "max_positions", "types": "token_types", "pad": "pad_id"
}  # fmt: skip

MOVED: Mapping[str, tuple[str, ...]] = {
    **{old: (new,) for old, new in RENAMED.items()},
    "activation": ("feedforward.activation",),
    "gated": ("feedforward.gated",),
    "bias": ("norm.bias", "attention.bias", "feedforward.bias", "head.bias"),
    "norm_eps": ("norm.eps",),
    "rotary": ("positions",),
    "relative": ("positions",),
    "window": ("attention.window",),
    "window_rotary": ("attention.window",),
    "global_every": ("attention.window",),
    "attention_output_dropout": ("attention.output_dropout",),
    "pooler": ("head.activation",),
    "pooling": ("head.pooling",),
    "head_norm": ("head.norm",),
    "head_dropout": ("head.dropout",),
    "dense_dropout": ("head.dense_dropout",),
    "tag_dropout": ("head.tag_dropout",),
    "choose_dropout": ("head.choose_dropout",),
    "answer_dropout": ("head.answer_dropout",),
    "sop_dropout": ("head.sop_dropout",),
}
"""Flat name -> where it stands now."""

OF_TRAINING = frozenset(
    {"attention.output_dropout", "head.dense_dropout", "head.tag_dropout"}
    | {"head.choose_dropout", "head.answer_dropout", "head.sop_dropout", "head.mlm_activation"}
)
"""Settings of training and of heads that change no embedding; fingerprints do not include them."""

WINDOW_BASE, GLOBAL_EVERY = 10_000.0, 3
"""What `window_rotary` and `global_every` were by default."""


def grouped(model: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """A `[model]` table with its flat names replaced, and a note for each: "old is now new"."""
    old = {name: value for name, value in model.items() if name in MOVED}
    if isinstance(model.get("norm"), str):  # once "post" or "pre", now a group
        old["norm"] = model["norm"]
    notes, values = [], _windows(old)
    for name, value in old.items():
        places = MOVED.get(name, ("norm.place",))
        notes.append(f"model.{name} is now {' and '.join(f'model.{path}' for path in places)}")
        match name:
            case "norm":  # "pre" was ModernBERT's order of norms
                pre = value == "pre"
                values |= {"norm.place": value, "norm.first": not pre, "norm.final": pre}
            case "rotary" if value is not None:
                values["positions"] = {"kind": "rotary", "base": value}
            case "relative" if value is not None:
                values["positions"] = {"kind": "relative", "buckets": value, "learned": True}
            case "rotary" | "relative" | "window" | "window_rotary" | "global_every":
                pass
            case "attention_output_dropout":
                values[places[0]] = None if value == "dropout" else value
            case _:
                value = "head.dropout" if value == "head_dropout" else value
                values |= dict.fromkeys(places, value)
    kept = {name: value for name, value in model.items() if name not in old}
    return merged(nested(values), kept), notes


def _windows(old: Mapping[str, Any]) -> dict[str, Any]:
    """The group that local attention is now."""
    if "window" in old and old["window"] is None:
        return {}
    rotary = old.get("rotary") is not None
    window = {
        "tokens": old.get("window"),
        "global_every": old.get("global_every"),
        "base": old.get("window_rotary", WINDOW_BASE if "window" in old and rotary else None),
    }
    if "rotary" in old and not rotary:
        del window["base"]
    window = {name: value for name, value in window.items() if value is not None}
    return {"attention.window": window} if window else {}


def flat(config: TransformerConfig) -> dict[str, Any]:
    """The settings that decide vectors, by flat names; what these cannot say, by its path."""
    positions, window = config.positions, config.attention.window
    groups = {"positions", "norm", "attention", "feedforward", "head"}
    newer = {"scale_embedding", "convolution", "recurrent"}
    same = {*TransformerConfig.__struct_fields__, *RENAMED} - {*RENAMED.values(), *groups, *newer}
    old = {
        **{name: getattr(config, RENAMED.get(name, name)) for name in same},
        "norm": config.norm.place,
        "rotary": positions.base if isinstance(positions, RotaryPositions) else None,
        "window": None if window is None else window.tokens,
        "window_rotary": (window and window.base) or WINDOW_BASE,
        "global_every": GLOBAL_EVERY if window is None else window.global_every,
    }
    if isinstance(positions, RelativePositions):
        old["relative"] = positions.buckets
    for name in ("activation", "gated", "bias", "norm_eps", *_HEADS):
        old[name] = at(config, MOVED[name][0])
    shape = nested({path: at(config, path) for path in _NEVER_SAID})
    said = decode(TransformerConfig, merged(grouped(old)[0], shape))
    for path in set(paths(TransformerConfig)) - OF_TRAINING:
        value = at(config, path)
        if value != (None if path in _NEVER_SAID else at(said, path)):
            old[path] = value
    return old


_HEADS = ("pooler", "pooling", "head_norm", "head_dropout")
_NEVER_SAID = ("attention.width", "attention.kv_heads")
