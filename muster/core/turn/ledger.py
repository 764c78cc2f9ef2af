"""What the queue's worker remembers from turn to turn; it only spares the worker repeated requests.

Everything that must outlive the worker is in the store: one that begins with an empty ledger goes on from there.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from muster.contract.outcome import Outcome
from muster.core.agents.agent import Agent
from muster.core.agents.launch_record import SuspectRules
from muster.core.lifecycle.adoption import Adoption
from muster.core.lifecycle.idle import IdleRules
from muster.core.lifecycle.launch_usage import IdleRulesOf, LaunchUsage
from muster.core.lifecycle.outcomes import Outcomes
from muster.core.model.session import LaunchStep, Session, SessionState
from muster.core.model.snapshot import Snapshot
from muster.core.turn.answer import AgentAnswer
from muster.core.turn.open_visits import OpenVisits, step_of
from muster.core.turn.pulls import Pulls

PAUSE_AFTER_FAILURE_S = 5.0
CouldHold = Callable[[Session, Sequence[Agent], Snapshot], bool]
LIVE = frozenset({SessionState.PREPARING, SessionState.RUNNING})


@dataclass(frozen=True, slots=True)
class TurnRules:
    """The site's settings for turns: when an agent is slow, lost or suspect, and when a session is idle.

    `could_hold` is the scheduler's word on whether agents could hold a session if they were empty.
    `cancels_impossible`: sessions whose dependency failed are cancelled, and do not wait until somebody cancels them.
    """

    lost_after_s: float
    slow_after_s: float
    could_hold: CouldHold
    idle_rules: IdleRulesOf = lambda _resource_group: IdleRules()
    suspects: SuspectRules = field(default_factory=SuspectRules)
    cancels_impossible: bool = True


@dataclass(frozen=True, slots=True)
class Silence:
    """A visit to which an agent gave no report: when it began, and when that was known."""

    began_at: float
    known_at: float


@dataclass(frozen=True, slots=True)
class Ledger:
    """The worker's memory as a value; each method returns another one.

    `to_observe` holds agents that are to be observed once they are not in flight; with `to_observe_all`, all of the
    inventory. `deaths` holds, by agent id, sessions of which a kernel died there; an agent in flight may tell of it in
    its answer. `outcomes` holds what agents made of a session's step, by session id and step, and agent id. `launches`
    are those (session id, generation) whose answers are still to come. `unclear` holds launches that were cut short, by
    session id, with the agents whose part in it a newer manifest is still to find out. `leftovers_tried` holds, by
    agent id, what a visit was to remove, `silences` the last visit without a report. `fetched` are (agent id,
    session id) whose last words came after the session had ended: what is not among them never comes. No Ansible run
    begins before `paused_until`, in seconds since the epoch. `adoption`: the database was restored, and what runs is
    to be adopted before all else.
    """

    visits: OpenVisits = field(default_factory=OpenVisits)
    pulls: Pulls = field(default_factory=Pulls)
    usage: LaunchUsage = field(default_factory=LaunchUsage)
    to_observe: frozenset[str] = frozenset()
    to_observe_all: bool = False
    deaths: Mapping[str, frozenset[str]] = field(default_factory=dict)
    outcomes: Mapping[tuple[str, str], Outcomes] = field(default_factory=dict)
    launches: frozenset[tuple[str, int]] = frozenset()
    unclear: Mapping[str, frozenset[str]] = field(default_factory=dict)
    leftovers_tried: Mapping[str, frozenset[str]] = field(default_factory=dict)
    silences: Mapping[str, Silence] = field(default_factory=dict)
    fetched: frozenset[tuple[str, str]] = frozenset()
    paused_until: float = 0.0
    adoption: Adoption | None = None

    @property
    def is_idle(self) -> bool:
        """Return whether nothing is under way, and nothing is to be observed."""
        return not (self.visits.visits or self.pulls.under_way or self.to_observe or self.to_observe_all)

    def pauses(self, now: float) -> bool:
        """Return whether a run of Ansible has just failed; a clock that was set back prolongs no pause."""
        return 0 < self.paused_until - now <= PAUSE_AFTER_FAILURE_S

    def tried_on(self, agent_id: str) -> frozenset[str]:
        """Return the leftovers that wait for the next observation: a visit has tried to remove them, or left them."""
        return self.leftovers_tried.get(agent_id, frozenset())

    def outcomes_of(self, session: Session) -> Outcomes:
        """Return, by agent id, the outcomes of the session's present step."""
        return self.outcomes.get((session.id, step_of(session)), {})

    def observing(self, agent_ids: Iterable[str]) -> "Ledger":
        """Return the ledger with these agents to be observed as soon as they are not in flight."""
        return replace(self, to_observe=self.to_observe.union(agent_ids))

    def with_death(self, agent_id: str, session_id: str) -> "Ledger":
        """Return the ledger with the death of a kernel of this session."""
        known = self.deaths.get(agent_id, frozenset())
        return replace(self, deaths={**self.deaths, agent_id: known | {session_id}})

    def observing_deaths(self, snapshot: Snapshot, agent_ids: Iterable[str]) -> "Ledger":
        """Return the ledger with those of the agents to be observed that no answer has told the deaths of."""
        free = self.deaths.keys() & set(agent_ids) - self.visits.in_flight
        if not free:
            return self
        live = {session.id for session in snapshot.placed if session.state in LIVE}
        unseen = [agent_id for agent_id in free if self.deaths[agent_id] & live]
        later = {agent_id: ids for agent_id, ids in self.deaths.items() if agent_id not in free}
        return replace(self, deaths=later).observing(unseen)

    def observing_all(self) -> "Ledger":
        """Return the ledger with all agents to be observed, and with what has failed or resisted to be retried."""
        outcomes = {
            key: {agent_id: outcome for agent_id, outcome in of_step.items() if outcome.outcome != "failed"}
            for key, of_step in self.outcomes.items()
        }
        return replace(self, to_observe_all=True, outcomes=outcomes, leftovers_tried={})

    def with_outcomes(self, new: Iterable[tuple[tuple[str, str], str, Outcome]]) -> "Ledger":
        """Return the ledger with agents' outcomes of steps: each as (session id, step), agent id and outcome."""
        changed: dict[tuple[str, str], dict[str, Outcome]] = {}
        for key, agent_id, outcome in new:
            changed.setdefault(key, dict(self.outcomes.get(key, {})))[agent_id] = outcome
        return replace(self, outcomes={**self.outcomes, **changed}) if changed else self

    def with_fences(self, answers: Iterable[AgentAnswer]) -> "Ledger":
        """Return the ledger with launches cut short cleared up on agents that reported after a newer manifest.

        An agent refuses manifests that are older than that, so that its report shows all that an earlier one led to.
        """
        unclear = dict(self.unclear)
        for answer in answers:
            visit = self.visits.find(answer.visit)
            if answer.report is not None and visit is not None:
                fenced = unclear.keys() & visit.steps.keys()
                unclear |= {session_id: unclear[session_id] - {answer.agent_id} for session_id in fenced}
        return replace(self, unclear=unclear)

    def with_resisting(self, resisting: Mapping[str, frozenset[str]]) -> "Ledger":
        """Return the ledger with last words and leftovers that wait for the next observation, by agent id.

        Each stop leaves last words behind; usually another visit comes by and takes them along.
        """
        tried = {agent_id: self.tried_on(agent_id) | found for agent_id, found in resisting.items()}
        return replace(self, leftovers_tried={**self.leftovers_tried, **tried})

    def retrying(self, leftovers: Iterable[tuple[str, str]]) -> "Ledger":
        """Return the ledger with leftovers, as (agent id, leftover), that do not wait for the next observation."""
        retried = dict(self.leftovers_tried)
        for agent_id, leftover in leftovers:
            retried[agent_id] = retried.get(agent_id, frozenset()) - {leftover}
        return replace(self, leftovers_tried=retried)

    def with_silent(self, began: Mapping[str, float], now: float) -> "Ledger":
        """Return the ledger with these agents as silent at this time, after visits that `began` then, by agent id."""
        new = {agent_id: Silence(began_at, now) for agent_id, began_at in began.items()}
        return replace(self, silences={**self.silences, **new})

    def with_launches(self, session_ids: Iterable[str], generation: int) -> "Ledger":
        """Return the ledger with launches that are committed, and that no agent has received yet."""
        launched = set(session_ids)
        unclear = {session_id: agents for session_id, agents in self.unclear.items() if session_id not in launched}
        return replace(self, launches=self.launches | {(key, generation) for key in launched}, unclear=unclear)

    def with_steps(self, visit: int, sessions: Iterable[Session]) -> "Ledger":
        """Return the ledger with the steps in the visit's manifests."""
        steps = {session.id: step_of(session) for session in sessions}
        return replace(self, visits=self.visits.with_steps(visit, steps))

    def with_slow(self, snapshot: Snapshot, rules: TurnRules) -> Snapshot:
        """Return the snapshot with the agents whose visit has lasted too long to count on them."""
        slow = self.visits.slow(rules.slow_after_s, snapshot.now)
        return snapshot if slow == snapshot.slow else snapshot.of_same_sessions(slow=slow)

    def asked(self, snapshot: Snapshot) -> frozenset[str]:
        """Return the agents of which a report is on its way, or to be asked for now; not those that are slow to answer.

        What they last said may be long ago: nobody worked the queue, or a kernel has just died there.
        """
        everywhere = (agent.id for agent in snapshot.agents) if self.to_observe_all else ()
        return frozenset({*everywhere, *self.to_observe, *self.deaths, *self.visits.observed}) - snapshot.slow

    def only(self, snapshot: Snapshot) -> "Ledger":
        """Return the ledger without what does not concern any session's present step."""
        steps = {(session.id, step_of(session)) for session in snapshot.placed}
        starting = {s.id: s.generation for s in snapshot.placed if s.step is LaunchStep.STARTING}
        return replace(
            self,
            usage=self.usage.only(snapshot),
            outcomes={key: of_step for key, of_step in self.outcomes.items() if key in steps},
            launches=frozenset(launch for launch in self.launches if starting.get(launch[0]) == launch[1]),
            unclear={session_id: agents for session_id, agents in self.unclear.items() if session_id in starting},
            fetched=self.fetched & {(a.id, id_) for a in snapshot.agents for id_ in a.report.spools},
            silences={a.id: self.silences[a.id] for a in snapshot.agents if a.id in self.silences},
        )
