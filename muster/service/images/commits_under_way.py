"""Images that this process makes of running kernels in the background."""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from muster.core.images.committed import CommittedImage
from muster.core.values.errors import MusterError, NotPossibleInStateError

_log = logging.getLogger(__name__)
# Each reads and writes a whole layer on the control node's disk.
_AT_ONCE = 2
_REMEMBERED = 1000
_MOST_OF_ONE_OWNER = 8

# Bytes done, bytes in total.
Progressed = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class CommitState:
    """The progress of a commit: `image` once it is made; `problem`, a line, if it failed."""

    reference: str
    owner: str
    done_bytes: int = 0
    total_bytes: int = 0
    image: CommittedImage | None = None
    problem: str | None = None

    @property
    def state(self) -> str:
        if self.image is not None:
            return "made"
        return "making" if self.problem is None else "failed"


class CommitsUnderWay:
    """A few at a time, until `close`. At the process's end those that have begun are finished."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="commit")
        self._states: OrderedDict[str, CommitState] = OrderedDict()
        self._lock = threading.Lock()

    def begin(
        self, image: CommittedImage, make: Callable[[Progressed], CommittedImage], give_up: Callable[[], None]
    ) -> CommitState:
        """Have the image made by `make` when it is its turn; `give_up` is called if that never comes.

        Raises NotPossibleInStateError where so many of the owner's wait that another would wait for long.
        """
        begun = CommitState(image.reference, image.owner)
        with self._lock:
            states = self._states.values()
            making = sum(state.owner == image.owner and state.state == "making" for state in states)
            if making < _MOST_OF_ONE_OWNER:
                self._keep(begun)
        if making >= _MOST_OF_ONE_OWNER:
            give_up()
            raise NotPossibleInStateError(f"{making} images of {image.owner} are being made; wait for one of them")
        made = self._pool.submit(self._made, begun, make)
        made.add_done_callback(lambda future: give_up() if future.cancelled() else None)
        return begun

    def close(self) -> None:
        """Give up the commits that have not begun: the process ends soon, and there is no time for them."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def find(self, reference: str) -> CommitState | None:
        """Return a commit's state; None for what this process did not make lately."""
        with self._lock:
            return self._states.get(reference)

    def _made(self, begun: CommitState, make: Callable[[Progressed], CommittedImage]) -> None:
        def progressed(done: int, total: int) -> None:
            self._note(replace(begun, done_bytes=done, total_bytes=total))

        try:
            self._note(replace(begun, image=make(progressed)))
        except MusterError as error:
            self._note(replace(begun, problem=str(error)))
        except Exception:  # noqa: BLE001 - a thread's own errors reach nobody else
            _log.exception("commit of %s failed", begun.reference)
            self._note(replace(begun, problem="it failed; the server's log says why"))

    def _note(self, state: CommitState) -> None:
        with self._lock:
            self._keep(state)

    def _keep(self, state: CommitState) -> None:
        self._states[state.reference] = state
        self._states.move_to_end(state.reference)
        while len(self._states) > _REMEMBERED:
            self._states.popitem(last=False)
