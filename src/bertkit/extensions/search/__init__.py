"""Document search: converting files, indexing, storing, searching, and evaluating the results."""

from bertkit.registry import Extension

EXTENSION = Extension(
    "search",
    formats={
        "store": "bertkit.extensions.search.store_format:StoreFormat",
        "sparse-encoder": "bertkit.extensions.search.sparse_encoder_format:SparseEncoderFormat",
    },
    pipelines={"sparse-embedding": "bertkit.extensions.search.sparse_embedding:EmbedSparse"},
    routes={"/search": "bertkit.extensions.search.routes:SEARCH"},
)
