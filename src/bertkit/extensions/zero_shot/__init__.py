"""Text classification and entity recognition with labels that are chosen at prediction time."""

from bertkit.registry import Extension

EXTENSION = Extension(
    "zero_shot",
    formats={"gliner": "bertkit.extensions.zero_shot.gliner_format:GlinerFormat"},
    pipelines={
        "zero-shot-entities": "bertkit.extensions.zero_shot.entities:ZeroShotEntities",
        "zero-shot-classification": "bertkit.extensions.zero_shot.classification:ZeroShot",
    },
)
