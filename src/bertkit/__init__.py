"""From raw text to a BERT in service.

    import bertkit

    embed = bertkit.pipeline("embed", "path/to/model")
    vectors = embed(["A sentence.", "Another one."])      # float32, (2, D)

Each name is imported when it is first used, so `import bertkit` itself is fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertkit.batch import Batch as Batch
    from bertkit.batch import Packed as Packed
    from bertkit.checkpoint.directory import Loaded as Loaded
    from bertkit.checkpoint.directory import load as load
    from bertkit.checkpoint.directory import save as save
    from bertkit.data.corpus import Corpus as Corpus
    from bertkit.errors import BertkitError as BertkitError
    from bertkit.extensions.cleaning.clean import clean as clean
    from bertkit.extensions.export.export import export as export
    from bertkit.extensions.search.index import index as index
    from bertkit.extensions.search.searcher import Searcher as Searcher
    from bertkit.extensions.serving.client import Client as Client
    from bertkit.models.config import TransformerConfig as TransformerConfig
    from bertkit.models.model import Model as Model
    from bertkit.models.model import build as build
    from bertkit.nn.attention import Trace as Trace
    from bertkit.pipelines import pipeline as pipeline
    from bertkit.pipelines.frame import frame as frame
    from bertkit.recipes.distill import distill as distill
    from bertkit.recipes.embed import embed as embed
    from bertkit.recipes.evaluate import evaluate as evaluate
    from bertkit.recipes.experiment import experiment as experiment
    from bertkit.recipes.finetune import finetune as finetune
    from bertkit.recipes.predict import predict as predict
    from bertkit.recipes.prepare import prepare as prepare
    from bertkit.recipes.pretrain import pretrain as pretrain
    from bertkit.recipes.vocabulary import train_vocabulary as train_vocabulary
    from bertkit.tasks.task import Reading as Reading
    from bertkit.text.tokenizer import Tokenizer as Tokenizer
    from bertkit.view.explain import explain as explain

__version__ = "0.1.0"

_HOME = {
    "Batch": "batch",
    "BertkitError": "errors",
    "Client": "extensions.serving.client",
    "Corpus": "data.corpus",
    "Loaded": "checkpoint.directory",
    "Model": "models.model",
    "Packed": "batch",
    "Reading": "tasks.task",
    "Searcher": "extensions.search.searcher",
    "Tokenizer": "text.tokenizer",
    "Trace": "nn.attention",
    "TransformerConfig": "models.config",
    "build": "models.model",
    "clean": "extensions.cleaning.clean",
    "distill": "recipes.distill",
    "embed": "recipes.embed",
    "evaluate": "recipes.evaluate",
    "experiment": "recipes.experiment",
    "explain": "view.explain",
    "export": "extensions.export.export",
    "finetune": "recipes.finetune",
    "frame": "pipelines.frame",
    "index": "extensions.search.index",
    "load": "checkpoint.directory",
    "pipeline": "pipelines",
    "predict": "recipes.predict",
    "prepare": "recipes.prepare",
    "pretrain": "recipes.pretrain",
    "save": "checkpoint.directory",
    "train_vocabulary": "recipes.vocabulary",
}

__all__ = [*_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'bertkit' has no attribute {name!r}")
    try:
        value = getattr(importlib.import_module(f"bertkit.{_HOME[name]}"), name)
    except ImportError as error:
        from bertkit.errors import missing_package

        raise missing_package(error) from None
    # Later uses of the name do not call this function.
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
