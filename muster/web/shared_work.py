"""Work that several callers request at once, done once for all who came before it began."""

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Result = TypeVar("Result")


@dataclass(slots=True)
class _Turn(Generic[Result]):
    """One time that the work is done. `begun` is set when the one before it has ended."""

    result: Future[Result] = field(default_factory=Future)
    begun: threading.Event = field(default_factory=threading.Event)


class SharedWork(Generic[Result]):
    """Work by key, one turn of a key at a time. Callers that come during a turn share the next one.

    So each caller has what was made after their call, never something older.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turns: dict[Hashable, _Turn[Result]] = {}
        self._next: dict[Hashable, _Turn[Result]] = {}

    def result(self, key: Hashable, work: Callable[[], Result]) -> Result:
        """Return what `work` returns, done by this caller or by another one of this key. Raises what it raises."""
        with self._lock:
            turn, does_it = self._joined(key)
        if does_it:
            turn.begun.wait()
            self._do(key, turn, work)
        return turn.result.result()

    def _joined(self, key: Hashable) -> tuple[_Turn[Result], bool]:
        """Return the turn that the caller shares, and whether it is theirs to do."""
        if key not in self._turns:
            turn = self._turns[key] = _Turn()
            turn.begun.set()
            return turn, True
        if key in self._next:
            return self._next[key], False
        turn = self._next[key] = _Turn()
        return turn, True

    def _do(self, key: Hashable, turn: _Turn[Result], work: Callable[[], Result]) -> None:
        try:
            turn.result.set_result(work())
        except BaseException as error:  # noqa: BLE001 - each caller of this turn raises it
            turn.result.set_exception(error)
        finally:
            with self._lock:
                following = self._next.pop(key, None)
                if following is None:
                    del self._turns[key]
                else:
                    self._turns[key] = following
                    # From now on nobody joins it.
                    following.begun.set()
