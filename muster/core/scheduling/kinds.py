"""The kinds of a queue's sessions: those with the same request are decided alike, and share one answer."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from muster.core.model.session import Session
from muster.core.model.wait import Wait, WaitCode
from muster.core.scheduling.admission import Admission
from muster.core.scheduling.placement import Gang, gang_of, on_one_agent
from muster.core.values.slots import Slots, total

# So many different requests are placed together.
_MOST_TOGETHER = 64
_answer = attrgetter("answer")


@dataclass(slots=True, eq=False)
class Kind:
    """A kind of sessions with the same request: what was found out for one holds for all.

    `request` is the gang where overlay networks are available. `full` once none of them starts any more in this
    pass: capacity only shrinks. `alone` once one for which no places were found together with others may still have
    some. `first` is the first of them that waits. `waits` stand for the reasons of those to which agents are closed for
    the same causes, each with the first of them. Those that wait ahead of the head, for agents to be back or open and
    so for no other session, have others than the rest. `answer` is what all further plain sessions wait for.
    """

    gang: Gang
    request: Gang
    closed: frozenset[str]
    total: Slots
    full: bool = False
    alone: bool = False
    impossible: Wait | None = None
    first: Session | None = None
    waits: dict[tuple[bool, int, tuple[str, ...]], tuple[Wait, Session]] = field(default_factory=dict)
    answer: Wait | None = None

    def wait_of(self, session: Session, causes: frozenset[str], *, ahead: bool) -> Wait:
        """Return what stands for the session's reason.

        `causes` are the agents that are closed to it: one object for all to which they are for the same causes.
        """
        key = ahead, id(causes), session.failed_on
        if key not in self.waits:
            self.waits[key] = Wait(WaitCode.BUSY, ""), session
        return self.waits[key][0]


class Kinds:
    """The kinds of the sessions of one pass. `overlay` says whether an overlay network could join agents now."""

    def __init__(self, admission: Admission, *, overlay: bool) -> None:
        self._admission = admission
        self._overlay = overlay
        self._by_request: dict[tuple[Gang, frozenset[str]], Kind] = {}
        self._by_identity: dict[int, Kind] = {}
        self._plain: dict[int, Kind | None] = {}
        # An identity is good for as long as its request is here.
        self._requests: list[Gang | None] = []

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

    def of_plain(self, requests: Sequence[Gang | None]) -> list[Kind | None]:
        """Return the kinds of sessions to which no agent is closed, None for those without a request."""
        keys, known = list(map(id, requests)), self._plain
        different = dict(zip(keys, requests, strict=True))
        for key in different.keys() - known.keys():
            request = different[key]
            known[key] = None if request is None else self._kind(request, frozenset())
            self._requests.append(request)
        return list(map(known.__getitem__, keys))

    def _kind(self, request: Gang, closed: frozenset[str]) -> Kind:
        kind = self._by_request.get((request, closed))
        if kind is None:
            gang = request if self._overlay else on_one_agent(request)
            kind = self._by_request[request, closed] = Kind(gang, request, closed, total(request.slots))
        return kind


def answers_of(kinds: Sequence[Kind | None]) -> list[Wait] | None:
    """Return what sessions of these kinds wait for, None where that is not known yet of each."""
    if None in kinds:
        return None
    answers = list(map(_answer, kinds))
    return answers if all(answers) else None


def left_open(kinds: Sequence[Kind | None]) -> list[int]:
    """Return the places in a queue of the sessions that may start: all but those of full kinds."""
    return [number for number, kind in enumerate(kinds) if kind is None or not kind.full]


def stretch(kinds: Sequence[Kind | None], places: Sequence[int], start: int, most: int) -> tuple[list[int], int]:
    """Return which sessions from `start` on, at `most` so many, may be placed together, and the first to try alone.

    Those in between are of kinds that do not fit any more. `kinds` are those of `Kinds.of_plain`, and `places` those of
    `left_open`, be it before some of the kinds were full.
    """
    chosen: list[int] = []
    different: set[int] = set()
    for place in range(bisect_left(places, start), len(places)):
        number = places[place]
        kind = kinds[number]
        if kind is None or (kind.alone and not kind.full):
            return chosen, number
        if kind.full:
            continue
        if len(chosen) == most:
            return chosen, number
        if id(kind) not in different:
            if len(different) == _MOST_TOGETHER:
                return chosen, number
            different.add(id(kind))
        chosen.append(number)
    return chosen, len(kinds)
