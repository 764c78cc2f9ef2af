"""The queue as the next decision sees it, decided once for all who look at the same moment."""

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from muster.core.model.plan import Plan
from muster.core.model.session import Session
from muster.core.model.snapshot import Snapshot
from muster.core.model.wait import Wait
from muster.core.scheduling.memory.pass_memory import PassMemory
from muster.core.scheduling.schedule import schedule
from muster.service.scheduler.site_policy import SiteScheduling
from muster.settings import Settings
from muster.store.store import Store


@dataclass(frozen=True, slots=True)
class Queued:
    """A pending session as the next decision sees it; without a wait it is about to start."""

    session: Session
    wait: Wait | None


class DecidedQueue:
    """The queue of a site. It remembers the last decision, so that readers between two changes share it."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._site = SiteScheduling(settings, store)
        self._lock = threading.Lock()
        self._memory = PassMemory()
        self._decided: tuple[Plan, Sequence[Queued]] | None = None

    def queue(self) -> Sequence[Queued]:
        """Return the pending sessions, group by group, in the order in which the next decision tries them.

        Raises SettingsError when a scheduler plugin cannot be used.
        """
        # Readers of one moment wait for the first one's decision: they would only share a processor.
        with self._lock:
            snapshot = self._site.complete(self._store.snapshot(time.time()))
            plan = schedule(snapshot, self._memory)
            if self._decided is None or self._decided[0] is not plan:
                self._decided = (plan, tuple(sorted(_queued(snapshot, plan), key=_place)))
            return self._decided[1]

    def position(self, session: Session) -> int:
        """Return its place among those of its group that wait; 0 if it is about to start, or no longer waits."""
        waits = (queued.wait for queued in self.queue() if queued.session.id == session.id)
        return next((wait.position for wait in waits if wait), 0)


def _queued(snapshot: Snapshot, plan: Plan) -> Iterable[Queued]:
    pending = {session.id: session for session in snapshot.pending}
    yield from (Queued(pending[placement.session_id], None) for placement in plan.placements)
    yield from (Queued(pending[session_id], wait) for session_id, wait in plan.waits.items())


def _place(queued: Queued) -> tuple[str, int, float, str]:
    position = queued.wait.position if queued.wait else 0
    return queued.session.spec.resource_group, position, queued.session.submitted_at, queued.session.id
