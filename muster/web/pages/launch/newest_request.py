"""A limit on slow requests that a page sends with each key press: only the newest is worth an answer."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Page:
    lock: threading.Lock = field(default_factory=threading.Lock)
    newest: int = 0
    pending: int = 0


class NewestRequest:
    """A gate that lets in one request of a page at a time, and knows whether it is the newest."""

    def __init__(self) -> None:
        self._pages: dict[str, _Page] = {}
        self._lock = threading.Lock()

    @contextmanager
    def turn(self, key: str) -> Iterator[bool]:
        """Wait for the page's earlier requests; yield False if a newer one has come meanwhile."""
        with self._lock:
            page = self._pages.setdefault(key, _Page())
            page.newest += 1
            page.pending += 1
            number = page.newest
        try:
            with page.lock:
                yield number == page.newest
        finally:
            with self._lock:
                page.pending -= 1
                if page.pending == 0:
                    del self._pages[key]

    def pending(self, key: str) -> int:
        """Return the number of requests of the page that are not answered."""
        with self._lock:
            page = self._pages.get(key)
            return page.pending if page else 0
