"""An HTTP server for models, with web pages and a Python client."""

from bertkit.registry import Extension

EXTENSION = Extension(
    "serving",
    routes={
        "/embed": "bertkit.extensions.serving.routes:EMBED",
        "/embed_all": "bertkit.extensions.serving.routes:EMBED_ALL",
        "/embed_sparse": "bertkit.extensions.serving.routes:EMBED_SPARSE",
        "/v1/embeddings": "bertkit.extensions.serving.routes:EMBEDDINGS",
        "/similarity": "bertkit.extensions.serving.routes:SIMILARITY",
        "/predict": "bertkit.extensions.serving.routes:PREDICT",
        "/rerank": "bertkit.extensions.serving.routes:RERANK",
        "/v1/rerank": "bertkit.extensions.serving.routes:RANK_V1",
        "/v2/rerank": "bertkit.extensions.serving.routes:RANK_V2",
        "/explain": "bertkit.extensions.serving.routes:EXPLAIN",
        "/tokenize": "bertkit.extensions.serving.routes:TOKENIZE",
        "/decode": "bertkit.extensions.serving.routes:DECODE",
    },
    pages={"/": "bertkit.extensions.serving.explain_page:ExplainPage"},
)
