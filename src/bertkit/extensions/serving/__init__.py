"""An HTTP server for models, its client, and its pages."""

from bertkit.registry import Extension

EXTENSION = Extension(
    "serving",
    routes={
        "/embed": "bertkit.extensions.serving.routes:EMBED",
        "/v1/embeddings": "bertkit.extensions.serving.routes:EMBEDDINGS",
        "/similarity": "bertkit.extensions.serving.routes:SIMILARITY",
        "/predict": "bertkit.extensions.serving.routes:PREDICT",
        "/rerank": "bertkit.extensions.serving.routes:RERANK",
        "/explain": "bertkit.extensions.serving.routes:EXPLAIN",
        "/tokenize": "bertkit.extensions.serving.routes:TOKENIZE",
    },
    pages={"/": "bertkit.extensions.serving.explain_page:ExplainPage"},
)
