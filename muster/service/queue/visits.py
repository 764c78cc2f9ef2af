"""Ansible's runs under way. An agent is visited by one run at a time; while it is, it is in flight."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from muster.core.lifecycle.answer import AgentAnswer, AnswerHandler
from muster.core.values.errors import AnsibleFailedError, MusterError

Start = Callable[[Callable[[], None]], None]


class Gateway(Protocol):
    """What the queue's worker needs of the agents."""

    def observe(self, agent_ids: Collection[str], on_answer: AnswerHandler, without: Collection[str] = ()) -> None: ...

    def converge(self, manifests: Mapping[str, Mapping[str, Any]], on_answer: AnswerHandler) -> None: ...


@dataclass(eq=False, slots=True)
class Visit:
    """One run. `waiting` holds the agents that have not answered yet; `since` is in seconds since the epoch.

    `steps` says, by session id, what its manifests ask for.
    """

    number: int
    since: float
    waiting: set[str]
    everywhere: bool = False
    steps: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Arrival:
    """An agent's answer."""

    visit: Visit
    answer: AgentAnswer


@dataclass(frozen=True, slots=True)
class VisitOver:
    """A run has ended. `error` says why none of its agents was even asked."""

    visit: Visit
    error: MusterError | None = None


class Visits:
    """Starts runs beside the worker, and knows which agents are in flight.

    Answers are told to `tell`, in the order in which they come, by the run's own thread.
    """

    def __init__(
        self, gateway: Gateway, start: Start, tell: Callable[[Arrival | VisitOver], None], clock: Callable[[], float]
    ) -> None:
        self._gateway = gateway
        self._start = start
        self._tell = tell
        self._clock = clock
        self._open: list[Visit] = []
        self._count = 0

    @property
    def in_flight(self) -> frozenset[str]:
        return frozenset(agent_id for visit in self._open for agent_id in visit.waiting)

    @property
    def numbers(self) -> frozenset[int]:
        return frozenset(visit.number for visit in self._open)

    @property
    def last_number(self) -> int:
        return self._count

    def slow(self, after_s: float) -> frozenset[str]:
        """Agents whose visit has lasted longer than that."""
        before = self._clock() - after_s
        return frozenset(agent_id for visit in self._open if visit.since < before for agent_id in visit.waiting)

    def prompt(self, within_s: float) -> frozenset[int]:
        """Numbers of the runs that have lasted no longer than that."""
        after = self._clock() - within_s
        return frozenset(visit.number for visit in self._open if visit.since >= after)

    def observe(self, agent_ids: Collection[str]) -> None:
        visit = self._opened(agent_ids)
        self._begin(visit, partial(self._gateway.observe, sorted(agent_ids)))

    @property
    def is_everywhere(self) -> bool:
        """Whether an observation of all that the inventory names goes on."""
        return any(visit.everywhere for visit in self._open)

    def observe_everywhere(self, known: Collection[str], without: Collection[str]) -> None:
        """All that the inventory names but `without`; `known` are those that are expected to answer."""
        visit = self._opened(set(known) - set(without), everywhere=True)
        self._begin(visit, partial(self._gateway.observe, (), without=sorted(without)))

    def converge(self, manifests: Mapping[str, Mapping[str, Any]], steps: Mapping[str, str]) -> None:
        visit = self._opened(manifests)
        visit.steps = steps
        self._begin(visit, partial(self._gateway.converge, manifests))

    def arrived(self, arrival: Arrival) -> None:
        arrival.visit.waiting.discard(arrival.answer.agent_id)

    def over(self, visit: Visit) -> set[str]:
        """Closes the visit; returns the agents that never answered."""
        silent, visit.waiting = visit.waiting, set()
        self._open = [other for other in self._open if other is not visit]
        return silent

    def _opened(self, agent_ids: Collection[str], *, everywhere: bool = False) -> Visit:
        self._count += 1
        visit = Visit(self._count, self._clock(), set(agent_ids), everywhere)
        self._open.append(visit)
        return visit

    def _begin(self, visit: Visit, run: Callable[..., None]) -> None:
        def work() -> None:
            # Until the run has ended well: agents that are silent because it broke off say nothing of themselves.
            error: MusterError | None = AnsibleFailedError("a visit to agents broke off")
            try:
                run(on_answer=lambda answer: self._tell(Arrival(visit, answer)))
                error = None
            except MusterError as raised:
                error = raised
            except OSError as raised:
                error = AnsibleFailedError(f"Ansible cannot be run: {raised}")
            finally:
                self._tell(VisitOver(visit, error))

        self._start(work)
