"""An example of an extension: a task, a pipeline, and a model family for bertkit."""

from bertkit.registry import Extension

EXTENSION = Extension(
    "stars",
    tasks={"stars": "bertkit_stars.rate:Rate"},
    pipelines={"keywords": "bertkit_stars.keywords:Keywords"},
    families={"roberta-prelayernorm": "bertkit_stars.prelayernorm:ROBERTA_PRELAYERNORM"},
)
