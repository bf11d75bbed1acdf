"""The next item while this one is used."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def ahead(items: Iterator[T]) -> Iterator[T]:
    """The items of an iterator, made in a thread of its own: the next one while this one is used.

    Who stops early waits until the item that is being made is finished.
    """
    worker = ThreadPoolExecutor(1)
    thread = worker.submit(threading.current_thread).result()
    try:
        coming = worker.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = worker.submit(next, items, None)
            yield item
    finally:
        # What nobody holds any more is ended by whichever thread runs then. That may be this one: it cannot wait for
        # itself.
        worker.shutdown(wait=threading.current_thread() is not thread)
