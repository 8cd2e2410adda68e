"""Which kind of store a place names."""

from __future__ import annotations

from bertkit.errors import SearchError
from bertkit.extensions.search.store import Spec, Store


def open_store(place: str, *, create: Spec | None = None) -> Store:
    """The store at a path or, with http:// or https://, in a Qdrant server.

    With `create` it is made if there is none, and what is there must have been made with the same.
    Raises: SearchError when there is none, or one made with something else.
    """
    try:
        if place.startswith(("http://", "https://")):
            from bertkit.extensions.search.qdrant import QdrantStore

            return QdrantStore.open(place, create)
        from bertkit.extensions.search.lance import LanceStore

        return LanceStore.open(place, create)
    except ModuleNotFoundError as error:
        raise SearchError(
            f"{place}: opening it needs {error.name}, which is not installed: "
            "pip install 'bertkit[search]'"
        ) from None
