"""Fair queueing: API keys get equal shares, which the connections of a key share equally."""

from __future__ import annotations

from collections import Counter, defaultdict

Client = tuple[str, str]
"""Name of an API key, and an identifier of a connection that uses the key."""

ANYONE: Client = ("", "")


class Shares:
    """The cost that each client has been charged, on a virtual clock that all clients share.

    When a client becomes active, its cost starts at the current time of the clock. A client
    therefore cannot save up turns while it is idle. For each work, the clock advances by the cost
    of the work divided by the number of active clients.

    Source:
        Demers, Keshav and Shenker 1989.
    """

    def __init__(self) -> None:
        self._charged: dict[tuple[str, ...], float] = {}
        self._clock: defaultdict[tuple[str, ...], float] = defaultdict(float)
        # Number of waiting jobs of each client and of each key.
        self._jobs: Counter[tuple[str, ...]] = Counter()
        # Number of active clients of each key, and of active keys.
        self._active: Counter[tuple[str, ...]] = Counter()

    def arrive(self, client: Client) -> None:
        """Record that a job has begun to wait."""
        for group in _groups(client):
            self._jobs[group] += 1
            if self._jobs[group] == 1:
                parent = group[:-1]
                self._active[parent] += 1
                self._charged[group] = max(self._charged.get(group, 0.0), self._clock[parent])

    def leave(self, client: Client) -> None:
        """Record that a job no longer waits."""
        for group in _groups(client):
            self._jobs[group] -= 1
            if not self._jobs[group]:
                del self._jobs[group]
                self._active[group[:-1]] -= 1
                if self._charged[group] <= self._clock[group[:-1]]:
                    # Forget the client, because a new client would start at the same time of the
                    # clock.
                    del self._charged[group]
        if not self._jobs:
            self._charged.clear()
            self._clock.clear()

    def turn(self, client: Client, cost: float) -> tuple[float, float]:
        """Return the sort key of a client. The client with the lowest sort key gets the next turn.

        Args:
            client: The client.
            cost: Cost of the client's next work.
        """
        key, connection = _groups(client)
        return self._charged[key], self._charged[connection] + cost

    def charge(self, client: Client, cost: float) -> None:
        """Charge the cost of a work to a waiting client."""
        for group in _groups(client):
            self._charged[group] += cost
            self._clock[group[:-1]] += cost / max(1, self._active[group[:-1]])


def _groups(client: Client) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return client[:1], client
