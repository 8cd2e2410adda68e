"""Fair queueing of clients: first over API keys, then over the connections of each key."""

from __future__ import annotations

from collections import Counter, defaultdict

Client = tuple[str, str]
"""Name of an API key, and a connection that uses it."""

ANYONE: Client = ("", "")


class Shares:
    """The charged cost of each client, on a virtual clock that all clients share.

    A client starts with the current time of the clock, so an idle client does not save up turns.
    The clock advances by the cost of a work divided by the number of active clients.

    Source:
        Demers, Keshav and Shenker 1989.
    """

    def __init__(self) -> None:
        self._charged: dict[tuple[str, ...], float] = {}
        self._clock: defaultdict[tuple[str, ...], float] = defaultdict(float)
        # Number of waiting jobs by client and by key.
        self._jobs: Counter[tuple[str, ...]] = Counter()
        # Number of active clients of each key, and of active keys.
        self._active: Counter[tuple[str, ...]] = Counter()

    def arrive(self, client: Client) -> None:
        """Count a new waiting job."""
        for group in _groups(client):
            self._jobs[group] += 1
            if self._jobs[group] == 1:
                parent = group[:-1]
                self._active[parent] += 1
                self._charged[group] = max(self._charged.get(group, 0.0), self._clock[parent])

    def leave(self, client: Client) -> None:
        """Stop counting a waiting job."""
        for group in _groups(client):
            self._jobs[group] -= 1
            if not self._jobs[group]:
                del self._jobs[group]
                self._active[group[:-1]] -= 1
                if self._charged[group] <= self._clock[group[:-1]]:
                    # A new client would start at the same time.
                    del self._charged[group]
        if not self._jobs:
            self._charged.clear()
            self._clock.clear()

    def turn(self, client: Client, cost: float) -> tuple[float, float]:
        """Return the sort key of a client. The client with the lowest key is next.

        Args:
            client: The client.
            cost: Cost of its next work.
        """
        key, connection = _groups(client)
        return self._charged[key], self._charged[connection] + cost

    def charge(self, client: Client, cost: float) -> None:
        """Charge a waiting client the cost of a work."""
        for group in _groups(client):
            self._charged[group] += cost
            self._clock[group[:-1]] += cost / max(1, self._active[group[:-1]])


def _groups(client: Client) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return client[:1], client
