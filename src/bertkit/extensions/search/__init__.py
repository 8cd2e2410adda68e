"""Search of documents: conversion, indexing, stores, and evaluation."""

from bertkit.registry import Extension

EXTENSION = Extension(
    "search",
    formats={"store": "bertkit.extensions.search.store_format:StoreFormat"},
    routes={"/search": "bertkit.extensions.search.routes:SEARCH"},
)
