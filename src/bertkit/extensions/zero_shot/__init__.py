"""Classification with labels that are chosen at prediction time."""

from bertkit.registry import Extension

EXTENSION = Extension(
    "zero_shot",
    pipelines={
        "zero-shot-classification": "bertkit.extensions.zero_shot.classification:ZeroShot",
    },
)
