"""Whether this process is still among the replicas that get requests.

Ray Serve does not tell a replica that it is about to be removed: it takes it out of the list that routers have, and
waits for open requests to end. A replica has a router too (router.py); this module is where the router says what is in
the list. It is a module of its own since Serve copies the router's module into each process by value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

_listeners: list[Callable[[frozenset[str]], None]] = []


def listen(listener: Callable[[frozenset[str]], None]) -> None:
    """Be told of every new list; called in the thread of the router."""
    _listeners.append(listener)


def tell(replicas: Iterable[str]) -> None:
    """These replicas get requests from now on."""
    found = frozenset(replicas)
    for listener in [*_listeners]:
        listener(found)


class Presence:
    """Of one replica: it joins the list when it is ready, and leaves it when it is to go. `changed` is called with
    whether it is wanted."""

    def __init__(self, own: str, changed: Callable[[bool], None]) -> None:
        self._own, self._changed = own, changed
        self._wanted: bool | None = None  # None: it has not been in the list yet

    def heard(self, replicas: frozenset[str]) -> None:
        """A new list."""
        listed = self._own in replicas
        if self._wanted is None and not listed:
            return
        if listed != self._wanted:
            first, self._wanted = self._wanted is None, listed
            if not first:
                self._changed(listed)
