"""Search in documents: reading, indexing, stores, and evaluation."""

from bertkit.registry import Extension

EXTENSION = Extension("search")
