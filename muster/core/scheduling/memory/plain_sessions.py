"""Sessions of a queue of which nothing but capacity decides whether they start, known from one pass to the next."""

from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from operator import attrgetter, eq, itemgetter
from typing import Any

from muster.core.model.session import Session
from muster.core.scheduling.memory.difference import Changes
from muster.core.scheduling.placement import Gang, gang_of

_MOST_AMOUNTS = 1 << 16
# Fields are read by compiled code, several at once: a queue of a hundred thousand is read whole by its first pass. The
# fields of a spec come from its dictionary, since those of models are slow to read.
_Read = Callable[[dict[str, Any]], tuple[Any, ...]]
_conditions: _Read = itemgetter("begin", "after", "after_ok", "after_any")
_unconstrained: _Read = itemgetter(
    *("begin", "after", "after_ok", "after_any"), *("roles", "gpu_models", "labels", "agents", "exclude_agents")
)
_UNCONSTRAINED: tuple[Any, ...] = None, (), (), (), (), (), {}, (), ()
_layout: _Read = itemgetter("cluster_mode", "topology")
_free = attrgetter("held_by", "retry_at", "failed_on", "array_id")
_FREE = None, None, (), None
_wait, _kernels = attrgetter("wait"), attrgetter("kernels")
_amounts = attrgetter("slots.cpu", "slots.mem", "slots.fgpu", "slots.gpu")


class PlainSessions:
    """A cache of what sessions request, by their identity: almost none of a long queue changes between two passes."""

    def __init__(self) -> None:
        self._changes: Changes[Session] = Changes()
        self._gangs: dict[int, Gang | None] = {}
        # By what sessions without roles and constraints ask for.
        self._by_amounts: dict[tuple[object, ...], Gang] = {}

    def change(self, gone: Sequence[Session], new: Sequence[Session]) -> None:
        """Note which sessions are gone, and which are new. Those that are left have to last until the next change."""
        self._changes.add(gone, new)

    def gangs(self) -> Mapping[int, Gang | None]:
        """Return the gangs of the sessions by the session's identity; None of those that are not plain."""
        gone, new = self._changes.taken()
        for session in gone:
            del self._gangs[id(session)]
        self._gangs.update(zip(map(id, new), self._gangs_if_plain(new), strict=True))
        return self._gangs

    def _gangs_if_plain(self, sessions: Sequence[Session]) -> list[Gang | None]:
        """Return the gang of each where no time, user or other session decides whether it may start.

        None of the others, and of one that was the head.
        """
        specs = [session.spec.__dict__ for session in sessions]
        kernels = list(map(_kernels, sessions))
        firsts = map(_amounts, map(itemgetter(0), kernels))
        # Without roles all kernels ask for the same.
        keys = list(zip(firsts, map(len, kernels), map(_layout, specs), strict=True))
        free = map(eq, map(_free, sessions), repeat(_FREE))
        simple = map(eq, map(_unconstrained, specs), repeat(_UNCONSTRAINED))
        gangs = map(self._by_amounts.get, keys)
        return [
            (gang or self._learned(session, key))
            if is_free and is_simple and (wait is None or not wait.passes)
            else _gang_if_plain(session)
            for gang, is_free, is_simple, wait, session, key in zip(
                gangs, free, simple, map(_wait, sessions), sessions, keys, strict=True
            )
        ]

    def _learned(self, session: Session, key: tuple[object, ...]) -> Gang:
        gang = self._by_amounts.get(key)
        if gang is None:
            if len(self._by_amounts) == _MOST_AMOUNTS:
                self._by_amounts.clear()
            gang = self._by_amounts[key] = gang_of(session, overlay=True)
        return gang


def _gang_if_plain(session: Session) -> Gang | None:
    """Return its gang where no time, user or other session decides whether it may start, and it never was the head."""
    wait = session.wait
    if (
        session.held_by is not None
        or session.retry_at is not None
        or session.failed_on
        or (wait is not None and wait.passes)
    ):
        return None
    begin, after, after_ok, after_any = _conditions(session.spec.__dict__)
    is_conditional = begin is not None or after or after_ok or after_any
    if is_conditional or (session.array_id is not None and session.spec.array_most is not None):
        return None
    return gang_of(session, overlay=True)
