"""The queue's turn: what follows from one snapshot, as a pure function of frozen values."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from muster.core.agents.agent import Agent, AgentState
from muster.core.agents.launch_record import LaunchRecord
from muster.core.lifecycle import transitions
from muster.core.lifecycle.adoption import Adoption, adoptions, observations
from muster.core.lifecycle.applied import applied, with_agents
from muster.core.lifecycle.transitions import Event
from muster.core.model.plan import Plan, Waits
from muster.core.model.session import LaunchStep, Session, SessionState
from muster.core.model.snapshot import Snapshot
from muster.core.turn.conclusions import conclude
from muster.core.turn.foreign_kernels import runs_foreign_kernels
from muster.core.turn.late_ends import asking_before_ends
from muster.core.turn.late_signals import with_late_signals
from muster.core.turn.ledger import LIVE, PAUSE_AFTER_FAILURE_S, Ledger, TurnRules
from muster.core.turn.pulls import ImagePull
from muster.core.turn.renamed_hosts import runs_kernels_of_others
from muster.core.turn.touch import NO_MEMORY, Touched, kept_for_gangs, leftovers, touches
from muster.core.turn.verdicts import agents_by_the_clock, records_by_the_clock

PROMPT_S = 3.0
# So that a busy cluster's visits are few and large. One that hangs is soon not counted: it delays no others.
_MOST_PROMPT_VISITS = 4

Schedule = Callable[[Snapshot], Plan | None]


@dataclass(frozen=True, slots=True)
class Observation:
    """A visit that reads reports: of these agents, or of all that the inventory names `without` some."""

    visit: int
    agent_ids: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Convergence:
    """A visit that makes agents match their manifests; `launches` are sessions that it begins.

    The agent `overlay_keeper` makes and removes the overlay networks of all sessions.
    """

    visit: int
    agents: tuple[Agent, ...]
    launches: tuple[Session, ...]
    overlay_keeper: str | None


Visit = Observation | Convergence


@dataclass(frozen=True, slots=True)
class Turn:
    """The result of a turn. Visits and pulls begin once all events are committed; the ledger counts from then on.

    Where the store refuses an event, the world has changed: the turn is thrown away, and another one taken. With
    `again` another one follows in any case. `snapshot` is as it will be once the events are committed. `waits` says why
    sessions are PENDING; None: as before. `agents` are those that the clock has changed, `records` the launch records
    that it has, by agent id. Agents that are `awaited` are being observed, and sessions need them to start or to end.
    """

    events: tuple[Event, ...]
    ledger: Ledger
    snapshot: Snapshot
    visits: tuple[Visit, ...] = ()
    pulls: tuple[ImagePull, ...] = ()
    waits: Waits | None = None
    agents: tuple[Agent, ...] = ()
    records: Mapping[str, LaunchRecord] = field(default_factory=dict)
    awaited: frozenset[str] = frozenset()
    again: bool = False


def turn(snapshot: Snapshot, ledger: Ledger, schedule: Schedule, rules: TurnRules) -> Turn:
    """Return what is to be committed and begun now.

    `schedule` is the scheduler with the site's plugins, whose order of sessions depends on the store's record of
    earlier usage. It returns None when it cannot decide. Conclusions are therefore committed first, in a turn that goes
    no further. What the scheduler keeps between turns is a cache: it belongs to the caller and does not change
    decisions.
    """
    if ledger.adoption is not None:
        return _turn_of_adoption(snapshot, ledger, ledger.adoption, rules)
    agents, records = agents_by_the_clock(snapshot, ledger, rules), records_by_the_clock(snapshot, rules)
    if agents or records:
        snapshot = with_agents(snapshot, agents, records)
        return Turn((), ledger, snapshot, agents=agents, records=records, again=True)
    snapshot = with_late_signals(ledger.with_slow(snapshot, rules), ledger)
    events, ledger = conclude(snapshot, ledger, rules)
    if events:
        return Turn(events, ledger, applied(snapshot, events), again=True)
    plan = schedule(snapshot)
    if plan is not None:
        events = (*transitions.place(plan, snapshot), *transitions.preempt(plan, snapshot, ledger.asked(snapshot)))
    waits = plan.waits if plan is not None else None
    snapshot = applied(snapshot, events)
    if ledger.pauses(snapshot.now):
        return Turn(events, ledger, snapshot, waits=waits)
    pull_events, pulls = _pulls(snapshot, ledger)
    snapshot = applied(snapshot, pull_events)
    ledger = replace(ledger, pulls=ledger.pulls.begun(pulls))
    observations, ledger = _observations(snapshot, ledger)
    convergences, awaited, ledger = _convergences(snapshot, ledger)
    # Now, since an agent that is visited anyway tells of deaths in its answer.
    of_deaths, ledger = _due_observations(snapshot, ledger.observing_deaths(snapshot, ledger.deaths))
    visits = (*observations, *convergences, *of_deaths)
    return Turn((*events, *pull_events), ledger, snapshot, visits, pulls, waits, awaited=awaited)


def _turn_of_adoption(snapshot: Snapshot, ledger: Ledger, adoption: Adoption, rules: TurnRules) -> Turn:
    """Ask all agents what runs, and go by that once each has answered or is LOST. Nothing else happens before.

    One that hangs is waited for as long as one that is silent.
    """
    agents = agents_by_the_clock(snapshot, ledger, rules)
    if agents:
        return Turn((), ledger, with_agents(snapshot, agents, {}), agents=agents, again=True)
    if adoption.visit is None:
        if ledger.pauses(snapshot.now):
            return Turn((), ledger, snapshot)
        known = {agent.id for agent in snapshot.agents} - ledger.visits.in_flight
        opened = ledger.visits.opened(known, snapshot.now, everywhere=True, observes=True)
        asked = replace(ledger, visits=opened, to_observe_all=False, adoption=adoption.asking(opened.last_number))
        return Turn((), asked, snapshot, (Observation(opened.last_number),))
    visit = ledger.visits.find(adoption.visit)
    if visit is not None and visit.since >= snapshot.now - rules.lost_after_s:
        return Turn((), ledger, snapshot)
    hanging = ledger.visits.slow(rules.lost_after_s, snapshot.now)
    there = {a.id for a in snapshot.agents if a.state is not AgentState.LOST and not a.has_left}
    if there - adoption.heard - hanging:
        paused_until = snapshot.now + PAUSE_AFTER_FAILURE_S
        return Turn((), replace(ledger, adoption=adoption.asking(None), paused_until=paused_until), snapshot)
    events = adoptions(snapshot, adoption)
    # No visit has sent a signal since then, and what was heard first may be old by now.
    after = with_late_signals(applied(snapshot, events), ledger)
    ledger = asking_before_ends(after, ledger)
    events += observations(after, adoption, ledger.asked(after))
    return Turn(events, replace(ledger, adoption=None), applied(snapshot, events), again=True)


def turn_of_deaths(snapshot: Snapshot, ledger: Ledger, rules: TurnRules) -> Turn:
    """Return what may begin for deaths before anything is decided: observations of agents with nothing else to do.

    A decision may go over a long queue, and from these deaths nothing follows until their agents have reported. All
    others are left to the next turn, whose visits tell of them. `snapshot` is what the last turn left, at this time.
    """
    if ledger.adoption is not None:
        return Turn((), ledger, snapshot)
    snapshot = ledger.with_slow(snapshot, rules)
    known = {agent.id for agent in snapshot.agents} - ledger.visits.in_flight
    live = {session.id for session in snapshot.placed if session.state in LIVE}
    plain = {agent_id for agent_id in ledger.deaths.keys() & known if ledger.deaths[agent_id] <= live}
    if plain:
        plain -= _touched(snapshot, ledger).agents
    if not plain or ledger.pauses(snapshot.now):
        return Turn((), ledger, snapshot)
    observations, ledger = _due_observations(snapshot, ledger.observing_deaths(snapshot, plain))
    return Turn((), ledger, snapshot, tuple(observations))


def _pulls(snapshot: Snapshot, ledger: Ledger) -> tuple[tuple[Event, ...], tuple[ImagePull, ...]]:
    """Return SCHEDULED → PREPARING for sessions that lack images, and the pulls that are not under way."""
    agents = {agent.id: agent for agent in snapshot.agents}
    events: list[Event] = []
    pulls: dict[tuple[str, str], ImagePull] = {}
    for session in snapshot.placed:
        if not _is_before_launch(session):
            continue
        missing = ledger.pulls.missing(session, agents)
        if missing and session.state is SessionState.SCHEDULED:
            events.append(transitions.pull(session, missing, snapshot.now))
        for image, agent_ids in missing.items():
            pulls |= {(agent_id, image): ImagePull(agents[agent_id], image) for agent_id in sorted(agent_ids)}
    return tuple(events), tuple(pull for key, pull in pulls.items() if key not in ledger.pulls.under_way)


def _observations(snapshot: Snapshot, ledger: Ledger) -> tuple[list[Visit], Ledger]:
    agents = {agent.id: agent for agent in snapshot.agents}
    visits: list[Visit] = []
    if ledger.to_observe_all:
        in_flight = ledger.visits.in_flight
        kept = kept_for_gangs(snapshot, _launchable(snapshot, ledger, agents), in_flight)
        ledger = replace(ledger, to_observe_all=False).observing(kept)
        left_out = in_flight | kept
        if agents.keys() - left_out or not (agents or ledger.visits.is_everywhere):
            opened = ledger.visits.opened(agents.keys() - left_out, snapshot.now, everywhere=True, observes=True)
            ledger = replace(ledger, visits=opened)
            visits.append(Observation(opened.last_number, without=tuple(sorted(left_out))))
    due, ledger = _due_observations(snapshot, ledger)
    return [*visits, *due], ledger


def _due_observations(snapshot: Snapshot, ledger: Ledger) -> tuple[list[Visit], Ledger]:
    agents = {agent.id: agent for agent in snapshot.agents}
    in_flight = ledger.visits.in_flight
    to_observe = ledger.to_observe & agents.keys()
    free = to_observe - in_flight
    free -= kept_for_gangs(snapshot, _launchable(snapshot, ledger, agents), in_flight) if free else frozenset()
    ledger = replace(ledger, to_observe=to_observe - free)
    if not free:
        return [], ledger
    opened = ledger.visits.opened(free, snapshot.now, observes=True)
    return [Observation(opened.last_number, tuple(sorted(free)))], replace(ledger, visits=opened)


def _convergences(snapshot: Snapshot, ledger: Ledger) -> tuple[list[Visit], frozenset[str], Ledger]:
    """Return the visit to agents that can be visited now, and those that sessions need and that are being observed."""
    if len(ledger.visits.prompt(PROMPT_S, snapshot.now)) >= _MOST_PROMPT_VISITS:
        return [], frozenset(), ledger
    touched = _touched(snapshot, ledger)
    awaited = touched.needed & ledger.visits.observed
    if not touched.agents:
        return [], awaited, ledger
    agents = {agent.id: agent for agent in snapshot.agents}
    visited = tuple(agents[agent_id] for agent_id in sorted(touched.agents))
    tried = {agent.id: leftovers(agent, snapshot) for agent in visited}
    opened = ledger.visits.opened(touched.agents, snapshot.now)
    keeper = snapshot.overlay_keeper
    visit = Convergence(opened.last_number, visited, touched.launches, keeper.id if keeper else None)
    return [visit], awaited, replace(ledger, visits=opened, leftovers_tried={**ledger.leftovers_tried, **tried})


def _touched(snapshot: Snapshot, ledger: Ledger) -> Touched:
    in_flight = ledger.visits.in_flight
    return touches(
        snapshot,
        free={a.id for a in snapshot.agents if _may_be_visited(a, snapshot) and a.id not in in_flight},
        launchable=_launchable(snapshot, ledger, {agent.id: agent for agent in snapshot.agents}),
        done_by={session.id: ledger.outcomes_of(session).keys() for session in snapshot.placed},
        unclear=ledger.unclear,
        resisting={a.id for a in snapshot.agents if leftovers(a, snapshot) <= ledger.tried_on(a.id)},
    )


def _may_be_visited(agent: Agent, snapshot: Snapshot) -> bool:
    is_kept = runs_foreign_kernels(agent, snapshot) or runs_kernels_of_others(agent, snapshot)
    return agent.state is AgentState.ALIVE and not is_kept


def _launchable(snapshot: Snapshot, ledger: Ledger, agents: Mapping[str, Agent]) -> set[str]:
    return {session.id for session in snapshot.placed if _may_launch(session, ledger, agents)}


def _may_launch(session: Session, ledger: Ledger, agents: Mapping[str, Agent]) -> bool:
    if any(_lacks_memory(agents[agent_id], ledger) for agent_id in session.agents if agent_id in agents):
        return False
    if _is_before_launch(session):
        return not ledger.pulls.missing(session, agents)
    # What came of it is known by now, and it was not enough to adopt.
    return session.step is LaunchStep.STARTING and ledger.unclear.get(session.id) == frozenset()


def _lacks_memory(agent: Agent, ledger: Ledger) -> bool:
    """Return whether the agent has accepted no manifest yet, and was sent none since it was observed."""
    return agent.report.generation is None and NO_MEMORY not in ledger.tried_on(agent.id)


def _is_before_launch(session: Session) -> bool:
    return session.state is SessionState.SCHEDULED or session.step is LaunchStep.PULLING
