"""Questions that take long, of pages that ask with each key that is pressed: only the newest is worth an answer."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Page:
    lock: threading.Lock = field(default_factory=threading.Lock)
    newest: int = 0
    asking: int = 0


class Turns:
    """One question of a page at a time."""

    def __init__(self) -> None:
        self._pages: dict[str, _Page] = {}
        self._lock = threading.Lock()

    @contextmanager
    def turn(self, key: str) -> Iterator[bool]:
        """Waits for the page's question before this one; False where a newer one has come meanwhile."""
        with self._lock:
            page = self._pages.setdefault(key, _Page())
            page.newest += 1
            page.asking += 1
            mine = page.newest
        try:
            with page.lock:
                yield mine == page.newest
        finally:
            with self._lock:
                page.asking -= 1
                if page.asking == 0:
                    del self._pages[key]

    def asking(self, key: str) -> int:
        """How many questions of the page are not answered."""
        with self._lock:
            page = self._pages.get(key)
            return page.asking if page else 0
