"""The visits under way. An agent is in one visit at a time; until it has answered there, it is in flight."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from muster.core.model.session import Session
from muster.core.turn.answer import AgentAnswer


def step_of(session: Session) -> str:
    """Return what the session's agents are to do now, with the generation that this belongs to."""
    return f"{session.step or session.state} {session.generation}"


@dataclass(frozen=True, slots=True)
class OpenVisit:
    """A visit that goes on since `since`, in seconds since the epoch.

    `waiting` holds the agents that are to answer, `answered` those that have. A visit `everywhere` goes to the whole
    inventory: agents that were not waited for may answer too. One that `observes` has no manifests; otherwise `steps`
    says, by session id, what they request.
    """

    number: int
    since: float
    waiting: frozenset[str]
    answered: frozenset[str] = frozenset()
    everywhere: bool = False
    observes: bool = False
    steps: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OpenVisits:
    """The visits that are not over, in the order of their numbers, and the number of the last one that began."""

    visits: tuple[OpenVisit, ...] = ()
    last_number: int = 0

    @property
    def in_flight(self) -> frozenset[str]:
        """Return the agents that a visit waits for."""
        return frozenset(agent_id for visit in self.visits for agent_id in visit.waiting)

    @property
    def observed(self) -> frozenset[str]:
        """Return the agents that an observation waits for."""
        return frozenset(agent_id for visit in self.visits if visit.observes for agent_id in visit.waiting)

    @property
    def numbers(self) -> frozenset[int]:
        return frozenset(visit.number for visit in self.visits)

    @property
    def is_everywhere(self) -> bool:
        """Return whether an observation of the whole inventory goes on."""
        return any(visit.everywhere for visit in self.visits)

    def slow(self, after_s: float, now: float) -> frozenset[str]:
        """Return the agents whose visit has lasted longer than that."""
        return frozenset(a for visit in self.visits if visit.since < now - after_s for a in visit.waiting)

    def prompt(self, within_s: float, now: float) -> frozenset[int]:
        """Return the numbers of the visits that have lasted no longer than that."""
        return frozenset(visit.number for visit in self.visits if visit.since >= now - within_s)

    def find(self, number: int | None) -> OpenVisit | None:
        return next((visit for visit in self.visits if visit.number == number), None)

    def opened(
        self, agent_ids: Collection[str], now: float, *, everywhere: bool = False, observes: bool = False
    ) -> "OpenVisits":
        """Return these visits with another one; its number is `last_number`."""
        visit = OpenVisit(self.last_number + 1, now, frozenset(agent_ids), everywhere=everywhere, observes=observes)
        return OpenVisits((*self.visits, visit), visit.number)

    def begun(self, numbers: Collection[int], now: float) -> "OpenVisits":
        """Return these visits with the time at which Ansible was really sent: deciding may have taken long."""
        changed = (replace(visit, since=now) if visit.number in numbers else visit for visit in self.visits)
        return replace(self, visits=tuple(changed))

    def with_steps(self, number: int, steps: Mapping[str, str]) -> "OpenVisits":
        changed = (replace(visit, steps=steps) if visit.number == number else visit for visit in self.visits)
        return replace(self, visits=tuple(changed))

    def awaits(self, answer: AgentAnswer, known: Collection[str]) -> bool:
        """Return whether the answer's visit waits for the agent, or takes it as one that was not `known`.

        So the answers of one agent come in the order in which it gave them: it is in one visit at a time.
        """
        visit = self.find(answer.visit)
        if visit is None or answer.agent_id in visit.answered:
            return False
        return answer.agent_id in visit.waiting or answer.agent_id not in known

    def with_answers(self, answers: Collection[AgentAnswer]) -> "OpenVisits":
        came: dict[int | None, set[str]] = {}
        for answer in answers:
            came.setdefault(answer.visit, set()).add(answer.agent_id)
        changed = (
            replace(v, waiting=v.waiting - came[v.number], answered=v.answered | came[v.number])
            if v.number in came
            else v
            for v in self.visits
        )
        return replace(self, visits=tuple(changed))

    def without(self, number: int) -> "OpenVisits":
        return replace(self, visits=tuple(visit for visit in self.visits if visit.number != number))
