"""Derive the events of placed sessions from the snapshot and the ledger, without starting anything."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial

from muster.core.agents.agent import Agent, AgentState
from muster.core.lifecycle import observation, transitions
from muster.core.lifecycle.applied import applied
from muster.core.lifecycle.dependencies import cancel_impossible
from muster.core.lifecycle.outcomes import NOTHING_GONE, record
from muster.core.lifecycle.taking_back import take_back
from muster.core.lifecycle.transitions import Event, FitsElsewhere
from muster.core.model.session import LaunchStep, Session, SessionState
from muster.core.model.snapshot import Snapshot
from muster.core.turn.late_ends import asking_before_ends
from muster.core.turn.late_signals import with_late_signals
from muster.core.turn.ledger import Ledger, TurnRules

_ANSWERED_FOR = frozenset({SessionState.PREPARING, SessionState.TERMINATING})


def conclude(snapshot: Snapshot, ledger: Ledger, rules: TurnRules) -> tuple[tuple[Event, ...], Ledger]:
    """Return all events that follow, those that follow from them in turn, and the ledger after that.

    Nothing follows in a restored database before it is known what runs.
    """
    if ledger.adoption is not None:
        return (), ledger
    snapshot = with_late_signals(ledger.with_slow(snapshot, rules), ledger)
    concluded: list[Event] = []
    while True:
        ledger = ledger.only(snapshot)
        events, ledger = _conclude_once(snapshot, ledger, rules)
        if not events:
            return tuple(concluded), ledger
        concluded += events
        snapshot = applied(snapshot, events)


def _conclude_once(snapshot: Snapshot, ledger: Ledger, rules: TurnRules) -> tuple[list[Event], Ledger]:
    """Return at most one event for each session."""
    ledger = asking_before_ends(snapshot, ledger)
    asked = ledger.asked(snapshot)
    events = [*transitions.lose(snapshot), *take_back(snapshot), *observation.observe(snapshot, {}, asked)]
    impossible = cancel_impossible(snapshot) if rules.cancels_impossible else []
    cancelled = {event.session_id for event in impossible}
    events += [*impossible, *(e for e in transitions.retry_at_once(snapshot) if e.session_id not in cancelled)]
    events += ledger.usage.events(snapshot, rules.idle_rules, {event.session_id for event in events}, asked)
    decided = {event.session_id for event in events}
    agents = {agent.id: agent for agent in snapshot.agents}
    for session in snapshot.placed:
        if session.id not in decided:
            elsewhere = partial(_fits_elsewhere, snapshot, rules, session)
            event, ledger = _conclusion(session, ledger, agents, snapshot.now, elsewhere)
            events += [event] if event else []
    return events, ledger


def _conclusion(
    session: Session, ledger: Ledger, agents: Mapping[str, Agent], now: float, fits_elsewhere: FitsElsewhere
) -> tuple[Event | None, Ledger]:
    if session.step is LaunchStep.PULLING:
        missing = ledger.pulls.missing(session, agents)
        failure = ledger.pulls.failure(missing)
        if failure:
            failed_on = ledger.pulls.failed_on(missing)
            event = transitions.launch_failed(
                session,
                str(failure),
                now,
                permanent=failure.permanent,
                failed_on=failed_on,
                fits_elsewhere=fits_elsewhere,
            )
            return event, ledger
    outcomes = ledger.outcomes_of(session)
    ending = session.state is SessionState.TERMINATING
    awaited = [agent_id for agent_id in session.agents if not (ending and _is_lost(agents, agent_id))]
    if session.state in _ANSWERED_FOR and outcomes.keys() >= set(awaited):
        failing = {agent_id for agent_id, outcome in outcomes.items() if outcome.outcome == "failed"}
        gone = ledger.pulls.missing(session, agents) if failing else NOTHING_GONE
        reports = {agent_id: agents[agent_id].report for agent_id in session.agents if agent_id in agents}
        ledger = replace(ledger, pulls=ledger.pulls.without_unshown(failing)) if failing else ledger
        return record(session, outcomes, reports, now, fits_elsewhere, gone), ledger
    if session.state is SessionState.RUNNING:
        failed = [outcome.error for outcome in outcomes.values() if outcome.outcome == "failed"]
        return transitions.fail_begun(session, failed[0] or "it failed", now) if failed else None, ledger
    if session.step is LaunchStep.STARTING:
        return _cut_short(session, ledger, agents, now)
    return None, ledger


def _fits_elsewhere(snapshot: Snapshot, rules: TurnRules, session: Session, agent_ids: Collection[str]) -> bool:
    """Return whether agents of its group other than these, which take sessions, could hold it if they were empty."""
    group = [agent for agent in snapshot.agents if agent.resource_group == session.spec.resource_group]
    others = [agent for agent in group if agent.takes_sessions and agent.id not in agent_ids]
    # Where it is elastic, fewer kernels than it was given now may do.
    return rules.could_hold(session.of_size(None), others, snapshot)


def _cut_short(
    session: Session, ledger: Ledger, agents: Mapping[str, Agent], now: float
) -> tuple[Event | None, Ledger]:
    """Find out what became of a launch when an agent's answer will not come, or give the launch up."""
    launch = (session.id, session.generation)
    if launch in ledger.launches:
        answering = ledger.outcomes_of(session).keys() | ledger.visits.in_flight
        if answering >= set(session.agents):
            return None, ledger
        ledger = replace(ledger, launches=ledger.launches - {launch})
    silent = [a for a in session.agents if a not in agents or agents[a].state is not AgentState.ALIVE]
    if silent and session.spans_agents:
        # None of its commands has begun: they are released when every agent has answered.
        reason = f"agent {silent[0]} stopped answering during the launch"
        return transitions.back_to_the_queue(session, reason, now), ledger
    if silent:
        return None, ledger
    reports = {agent_id: agents[agent_id].report for agent_id in session.agents}
    if missed := observation.missed_the_launch(session, reports):
        return transitions.back_to_the_queue(session, f"agent {missed} was rebooted before the launch", now), ledger
    if session.id not in ledger.unclear:
        ledger = replace(ledger, unclear={**ledger.unclear, session.id: frozenset(session.agents)})
    if ledger.unclear[session.id]:
        return None, ledger
    return observation.adopt(session, reports, now), ledger


def _is_lost(agents: Mapping[str, Agent], agent_id: str) -> bool:
    return agent_id not in agents or agents[agent_id].state is AgentState.LOST
