"""Search in documents: reading, indexing, stores, and evaluation."""

from bertkit.registry import Extension

EXTENSION = Extension("search", formats={"store": "bertkit.extensions.search.stores:StoreFormat"})
