"""Fair turns of clients: weighted fair queueing over API keys, then over their connections."""

from __future__ import annotations

from collections import Counter, defaultdict

Client = tuple[str, str]
"""An API key, and a connection that uses it."""

ANYONE: Client = ("", "")


class Shares:
    """The cost that each client has been charged, on a clock that all clients share.

    A client that waits is charged from the time of its arrival, so one that rests saves no turns.
    The clock advances by the cost that each active client receives if all receive the same.
    Source: Demers, Keshav and Shenker 1989.
    """

    def __init__(self) -> None:
        self._charged: dict[tuple[str, ...], float] = {}
        self._clock: defaultdict[tuple[str, ...], float] = defaultdict(float)
        self._jobs: Counter[tuple[str, ...]] = Counter()  # by client and by key
        self._active: Counter[tuple[str, ...]] = Counter()  # clients of a key, and all keys

    def arrive(self, client: Client) -> None:
        """Count a job that waits."""
        for group in _groups(client):
            self._jobs[group] += 1
            if self._jobs[group] == 1:
                parent = group[:-1]
                self._active[parent] += 1
                self._charged[group] = max(self._charged.get(group, 0.0), self._clock[parent])

    def leave(self, client: Client) -> None:
        """Count a job that waits no more."""
        for group in _groups(client):
            self._jobs[group] -= 1
            if not self._jobs[group]:
                del self._jobs[group]
                self._active[group[:-1]] -= 1
                if self._charged[group] <= self._clock[group[:-1]]:
                    del self._charged[group]  # as for a new client
        if not self._jobs:
            self._charged.clear()
            self._clock.clear()

    def turn(self, client: Client, cost: float) -> tuple[float, float]:
        """Return the order of a client whose next work has this cost; the lowest is next."""
        key, connection = _groups(client)
        return self._charged[key], self._charged[connection] + cost

    def charge(self, client: Client, cost: float) -> None:
        """Charge a waiting client for work."""
        for group in _groups(client):
            self._charged[group] += cost
            self._clock[group[:-1]] += cost / max(1, self._active[group[:-1]])


def _groups(client: Client) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return client[:1], client
