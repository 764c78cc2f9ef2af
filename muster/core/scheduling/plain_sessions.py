"""Sessions of a queue of which nothing but capacity decides whether they start, known from one pass to the next."""

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from muster.core.model.session import Session
from muster.core.scheduling.placement import Gang, gang_of

_MOST_GONE = 1024
_MOST_AMOUNTS = 1 << 16
# Fields of a spec, read at once: a queue of a hundred thousand does so once, and the fields of models are slow to read.
_read: Callable[[dict[str, Any]], tuple[Any, ...]] = itemgetter(
    *("begin", "after", "after_ok", "after_any"),
    *("roles", "gpu_models", "labels", "agents", "exclude_agents"),
    *("cluster_mode", "topology"),
)


class PlainSessions:
    """A cache of what sessions request, by their identity: almost none of a long queue changes between two passes."""

    def __init__(self) -> None:
        self._gangs: dict[int, Gang | None] = {}
        # An identity is good for as long as its session is here.
        self._sessions: list[Session] = []
        # By what sessions without roles and constraints ask for.
        self._by_amounts: dict[tuple[object, ...], Gang] = {}

    def of(self, sessions: Sequence[Session]) -> Mapping[int, Gang | None]:
        """Return the gangs of these sessions, and of others, by the session's identity; None of those not plain."""
        known = self._gangs
        new = [session for session in sessions if id(session) not in known]
        known.update(zip(map(id, new), map(self._gang_if_plain, new), strict=True))
        self._sessions += new
        if len(known) > len(sessions) + _MOST_GONE:
            self._gangs = {id(session): known[id(session)] for session in sessions}
            self._sessions = list(sessions)
        return self._gangs

    def _gang_if_plain(self, session: Session) -> Gang | None:
        """Return its gang where no time, user or other session decides whether it may start, and it never was the head.

        Otherwise None.
        """
        wait = session.wait
        if (
            session.held_by is not None
            or session.retry_at is not None
            or session.failed_on
            or (wait is not None and wait.passes)
        ):
            return None
        begin, after, after_ok, after_any, roles, models, labels, agents, excluded, mode, topology = _read(
            session.spec.__dict__
        )
        is_conditional = begin is not None or after or after_ok or after_any
        if is_conditional or (session.array_id is not None and session.spec.array_most is not None):
            return None
        if roles or models or labels or agents or excluded:
            return gang_of(session, overlay=True)
        kernels = session.kernels
        slots = kernels[0].slots
        key = slots.cpu, slots.mem, slots.fgpu, slots.gpu, len(kernels), mode, topology
        gang = self._by_amounts.get(key)
        if gang is None:
            if len(self._by_amounts) == _MOST_AMOUNTS:
                self._by_amounts.clear()
            gang = self._by_amounts[key] = gang_of(session, overlay=True)
        return gang
