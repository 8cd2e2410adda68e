"""Opening of stores, whose type depends on their location."""

from __future__ import annotations

from bertkit.errors import missing_package
from bertkit.extensions.search.store import Spec, Store


def open_store(location: str, *, create: Spec | None = None) -> Store:
    """Open the store in a directory or on a Qdrant server.

    Args:
        location: Directory, or the address of a Qdrant collection with http:// or https://.
        create: Spec that the store must have. If it is given, the store is opened for writing, and
            is created if it does not exist. Default: open an existing store for searching.

    Raises:
        BertkitError: If a required package is not installed.
        SearchError: If the store does not exist and `create` is not given, or if its spec differs
            from `create`.
    """
    try:
        if location.startswith(("http://", "https://")):
            from bertkit.extensions.search.qdrant import QdrantStore

            return QdrantStore.open(location, create)
        from bertkit.extensions.search.lance import LanceStore

        return LanceStore.open(location, create)
    except ModuleNotFoundError as error:
        raise missing_package(error) from None
