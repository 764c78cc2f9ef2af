"""The cluster at a glance, as a user may see it: their sessions, free capacity, the queue's head, agents in trouble."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from muster.core.model.session import Session, SessionState
from muster.core.model.snapshot import Snapshot
from muster.core.values.slots import Slots, total
from muster.core.whatif.explain import HOPELESS
from muster.core.whatif.redaction import redacted
from muster.service.agents.agents import AgentOccupancy, agents_in_use, shown_agents
from muster.service.questions.decided_queue import Queued
from muster.service.sessions.visibility import Sees
from muster.settings import Settings
from muster.store.sessions.list_pages import ListPageRequest, SessionFilter
from muster.store.store import Store

MOST_FAILURES = 5
_FAILED_FOR_S = 7 * 86400.0
_HEAD = 3


@dataclass(frozen=True, slots=True)
class GroupOverview:
    """A resource group. `capacity` and `free` are those of the agents that take sessions; `waiting` counts all users'.

    `head` are the first sessions of its queue that can start; None for one that the user may not see.
    """

    name: str
    agent_count: int
    serving: int
    capacity: Slots
    free: Slots
    waiting: int
    head: Sequence[Session | None]


@dataclass(frozen=True, slots=True)
class Overview:
    """`states` counts the visible sessions that have not ended, `failures` are the user's own newest ones.

    `troubled` are the agents that take no sessions, or whose GPUs are not shared as they should be.
    """

    states: Mapping[SessionState, int]
    failures: Sequence[Session]
    groups: Sequence[GroupOverview]
    troubled: Sequence[AgentOccupancy]


def overview(store: Store, settings: Settings, queue: Sequence[Queued], sees: Sees, user: str) -> Overview:
    snapshot = shown_agents(store, settings)
    uses = agents_in_use(snapshot)
    names = sorted(
        {*(use.agent.resource_group for use in uses), *(queued.session.spec.resource_group for queued in queue)}
    )
    states = Counter(session.state for session in snapshot.sessions if sees(session))
    return Overview(
        states={state: states[state] for state in SessionState if states[state]},
        failures=_failures(store, user),
        groups=[_group(name, uses, queue, snapshot, sees) for name in sorted(names)],
        troubled=[use for use in uses if not use.agent.takes_sessions or use.agent.fgpu_obstacle],
    )


def _failures(store: Store, user: str) -> Sequence[Session]:
    """Return the user's newest sessions that failed in the last week."""
    page = ListPageRequest(MOST_FAILURES, "submitted", descending=True)
    ids, _, _ = store.page(SessionFilter(owner=user, failed=True), page)
    found = store.get(ids)
    since = time.time() - _FAILED_FOR_S
    return [found[key] for key in ids if key in found and (found[key].ended_at or 0.0) >= since]


def _group(
    name: str, uses: Sequence[AgentOccupancy], queue: Sequence[Queued], snapshot: Snapshot, sees: Sees
) -> GroupOverview:
    own = [use for use in uses if use.agent.resource_group == name]
    serving = [use for use in own if use.agent.takes_sessions]
    tried = [one for one in queue if one.session.spec.resource_group == name]
    # What can never start delays nobody, and is no head of a queue.
    may_start = [one for one in tried if one.wait is None or one.wait.code not in HOPELESS]
    return GroupOverview(
        name=name,
        agent_count=len(own),
        serving=len(serving),
        capacity=total(use.agent.capacity for use in serving),
        free=total(use.free for use in serving),
        waiting=len(tried),
        head=[_visible(one, snapshot, sees) for one in may_start[:_HEAD]],
    )


def _visible(queued: Queued, snapshot: Snapshot, sees: Sees) -> Session | None:
    """Return the session with a wait that names no others; None where the user may not see it."""
    session, wait = queued.session, queued.wait
    if not sees(session):
        return None
    if wait is not None:
        others = {other.id: other for other in snapshot.sessions}
        wait = redacted(wait, {key for key in wait.waits_for if key not in others or not sees(others[key])})
    return replace(session, wait=wait)
