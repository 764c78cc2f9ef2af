"""Apply events to a snapshot as the store would: a decision can go on from that without another read."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from muster.core.agents.agent import Agent
from muster.core.agents.launch_record import LaunchRecord
from muster.core.lifecycle.transitions import Event
from muster.core.model.session import FINAL, Session
from muster.core.model.snapshot import Snapshot


def applied(snapshot: Snapshot, events: Iterable[Event]) -> Snapshot:
    """Return the snapshot as the store would give it once these events are committed, one after the other.

    An event is dropped where its session is no longer in its `from_state`, or not as it `expects`.
    """
    events = list(events)
    if not events:
        return snapshot
    sessions = {session.id: session for session in snapshot.sessions}
    for event in events:
        if event.session_id in sessions:
            sessions[event.session_id] = applied_to(sessions[event.session_id], event)
    active = tuple(session for session in sessions.values() if session.state not in FINAL)
    ended = {session.id: session for session in sessions.values() if session.state in FINAL} | dict(snapshot.ended)
    return replace(snapshot, sessions=active, ended=_depended_on(active, ended) if ended else {})


def with_agents(snapshot: Snapshot, agents: Iterable[Agent], records: Mapping[str, LaunchRecord]) -> Snapshot:
    """Return the snapshot as the store would give it once these agents and launch records, by agent id, are saved.

    What an agent says of itself changes neither its drain nor its record.
    """
    known = {agent.id: agent for agent in snapshot.agents}
    for agent in agents:
        before = known.get(agent.id, agent)
        known[agent.id] = replace(agent, drain_reason=before.drain_reason, launch_record=before.launch_record)
    known |= {key: replace(known[key], launch_record=record) for key, record in records.items() if key in known}
    return snapshot.of_same_sessions(agents=tuple(known[key] for key in sorted(known)))


def applied_to(session: Session, event: Event) -> Session:
    """Return the session after the event; the same one where the event is dropped."""
    as_expected = all(getattr(session, name) == value for name, value in event.expects.items())
    if session.state is not event.from_state or not as_expected:
        return session
    changes: dict[str, Any] = {**event.session, "state": event.to_state}
    if event.in_story:
        changes["reason"] = event.reason
    if event.kernels:
        changes["kernels"] = tuple(replace(k, **event.kernels.get(k.id, {})) for k in session.kernels)
        if session.spare:
            changes["spare"] = tuple(replace(k, **event.kernels.get(k.id, {})) for k in session.spare)
    changed = replace(session, **changes)
    return changed if changed.given == session.given else changed.of_size(changed.given)


def _depended_on(active: Iterable[Session], ended: dict[str, Session]) -> dict[str, Session]:
    needed = {key for session in active for key in session.spec.dependencies}
    return {key: session for key, session in ended.items() if key in needed}
