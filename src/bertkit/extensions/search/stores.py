"""Selection of the store type by its location."""

from __future__ import annotations

from bertkit.errors import SearchError
from bertkit.extensions.search.store import Spec, Store


def open_store(location: str, *, create: Spec | None = None) -> Store:
    """Open the store at a path, or in a Qdrant server.

    Args:
        location: Directory, or the address of a Qdrant collection with http:// or https://.
        create: Spec of the store, if documents are added to it. The store is created if it does
            not exist. Default: open an existing store for searches.

    Raises:
        SearchError: If the store does not exist, or has another spec than `create`.
    """
    try:
        if location.startswith(("http://", "https://")):
            from bertkit.extensions.search.qdrant import QdrantStore

            return QdrantStore.open(location, create)
        from bertkit.extensions.search.lance import LanceStore

        return LanceStore.open(location, create)
    except ModuleNotFoundError as error:
        raise SearchError(
            f"{location}: requires {error.name}, which is not installed; "
            "run pip install 'bertkit[search]'"
        ) from None
