"""The kinds of a queue's sessions: those with the same request are decided alike, and share one answer."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from muster.core.model.session import Session
from muster.core.model.wait import Wait
from muster.core.scheduling.admission import Admission
from muster.core.scheduling.placement import Gang, gang_of, on_one_agent
from muster.core.values.slots import Slots, total

# So many different requests are placed together.
_MOST_TOGETHER = 64


@dataclass(slots=True)
class Kind:
    """A kind of sessions with the same request: what was found out for one holds for all.

    `request` is the gang where overlay networks are available. `full` once none of them starts any more in this pass:
    capacity only shrinks. `wide` once it was laid over several agents. `first` is the first of them that waits; `ahead`
    and `later` stand for the reasons of those that wait ahead of the head, for agents to be back or open and so for no
    other session, and of the others. `answer` is what all further plain sessions wait for.
    """

    gang: Gang
    request: Gang
    closed: frozenset[str]
    total: Slots
    full: bool = False
    wide: bool = False
    impossible: Wait | None = None
    first: Session | None = None
    ahead: Wait | None = None
    later: Wait | None = None
    answer: Wait | None = None


class Kinds:
    """The kinds of the sessions of one pass. `overlay` says whether an overlay network could join agents now."""

    def __init__(self, admission: Admission, *, overlay: bool) -> None:
        self._admission = admission
        self._overlay = overlay
        self._by_request: dict[tuple[Gang, frozenset[str]], Kind] = {}
        self._by_identity: dict[int, Kind] = {}
        self._plain: dict[int, Kind] = {}
        # An identity is good for as long as its request is here.
        self._requests: list[Gang] = []

    @property
    def all(self) -> Iterable[Kind]:
        return self._by_request.values()

    def of(self, session: Session) -> Kind:
        request = gang_of(session, overlay=True)
        closed = self._admission.closed_agents(session)
        # By identity first: most sessions share their request, and to hash it costs more than all else here.
        known = self._by_identity.get(id(request))
        if known is not None and known.request is request and known.closed is closed:
            return known
        kind = self._by_identity[id(request)] = self._kind(request, closed)
        return kind

    def of_plain(self, requests: Iterable[Gang | None]) -> list[Kind | None]:
        """Return the kinds of sessions to which no agent is closed, None for those without a request."""
        known, kinds = self._plain, list[Kind | None]()
        for request in requests:
            if request is None:
                kinds.append(None)
                continue
            kind = known.get(id(request))
            if kind is None:
                kind = known[id(request)] = self._kind(request, frozenset())
                self._requests.append(request)
            kinds.append(kind)
        return kinds

    def _kind(self, request: Gang, closed: frozenset[str]) -> Kind:
        kind = self._by_request.get((request, closed))
        if kind is None:
            gang = request if self._overlay else on_one_agent(request)
            kind = self._by_request[request, closed] = Kind(gang, request, closed, total(request.slots))
        return kind


def stretch(kinds: Sequence[Kind | None], start: int) -> tuple[list[int], int]:
    """Return which sessions from `start` on may be placed together, and the first that has to be tried alone.

    Those in between are of kinds that do not fit any more. `kinds` are those of `Kinds.of_plain`.
    """
    chosen: list[int] = []
    different: set[int] = set()
    for number in range(start, len(kinds)):
        kind = kinds[number]
        if kind is None or (kind.wide and not kind.full):
            return chosen, number
        if kind.full:
            continue
        if id(kind) not in different:
            if len(different) == _MOST_TOGETHER:
                return chosen, number
            different.add(id(kind))
        chosen.append(number)
    return chosen, len(kinds)
