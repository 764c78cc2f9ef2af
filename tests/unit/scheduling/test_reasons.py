"""Every reason is true: once its obstacle is gone, the session starts or has another reason."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.core.agents.agent import AgentState
from muster.core.model.policy import EACH, Limit, Limits
from muster.core.model.reservation import Reservation
from muster.core.model.session import Result, Session, SessionState
from muster.core.model.snapshot import Snapshot
from muster.core.model.wait import Wait, WaitCode
from muster.core.scheduling.schedule import schedule
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session, placed_on
from tests.strategies.snapshots import snapshots
from tests.strategies.values import NOW

FINALLY = {WaitCode.NEVER_FITS, WaitCode.NO_AGENTS, WaitCode.NEVER_RUNS}


def with_spec(session: Session, **fields: Any) -> Session:
    return replace(session, spec=session.spec.model_copy(update=fields))


@st.composite
def reservations(draw: st.DrawFn, snapshot: Snapshot) -> Reservation:
    names = [agent.id for agent in snapshot.agents]
    return Reservation(
        name="window",
        begins_at=NOW + draw(st.sampled_from((-60, 300, 4000))),
        ends_at=NOW + 8000,
        agents=frozenset(draw(st.sets(st.sampled_from(names)))) if names else frozenset(),
        users=frozenset(draw(st.sets(st.sampled_from(("ada", "bob"))))),
    )


@st.composite
def busy_sites(draw: st.DrawFn) -> Snapshot:
    """Draw snapshots with all that may keep a session out."""
    snapshot = draw(snapshots(max_sessions=7))
    ids = [session.id for session in snapshot.sessions]
    sessions = []
    for session in snapshot.sessions:
        fields: dict[str, Any] = {}
        if draw(st.integers(0, 3)) == 0:
            fields["begin"] = NOW + draw(st.sampled_from((-60, 60)))
        if draw(st.integers(0, 3)) == 0:
            kind = draw(st.sampled_from(("after", "after_ok", "after_any")))
            others = [other for other in ids if other != session.id]
            fields[kind] = tuple(draw(st.sets(st.sampled_from(others), max_size=2))) if others else ()
        held_by = draw(st.sampled_from((None, None, None, "ada")))
        sessions.append(replace(with_spec(session, **fields), owner=draw(st.sampled_from(("ada", "bob")))))
        if session.state is SessionState.PENDING:
            sessions[-1] = replace(sessions[-1], held_by=held_by)
    bounds = st.dictionaries(st.sampled_from(("sessions", "kernels", "gpu", "cpu")), st.integers(0, 4000), max_size=2)
    limits = Limits(
        users={EACH: Limit(running=draw(bounds))},
        resource_groups={"default": Limit(running=draw(bounds))},
    )
    return replace(
        snapshot,
        sessions=tuple(sessions),
        policy=replace(snapshot.policy, limits=limits),
        reservations=tuple(draw(st.lists(reservations(snapshot), max_size=1))),
    )


NO_DEPENDENCIES = {"after": (), "after_ok": (), "after_any": ()}
OWN_REASONS = {
    WaitCode.HELD: lambda session: replace(session, held_by=None),
    WaitCode.RETRY: lambda session: replace(session, retry_at=None),
    WaitCode.BEGIN: lambda session: with_spec(session, begin=None),
    WaitCode.DEPENDENCY: lambda session: with_spec(session, **NO_DEPENDENCIES),
}


def removed(snapshot: Snapshot, session: Session, wait: Wait) -> Snapshot:
    """Return the snapshot without the cause that the wait names, otherwise unchanged."""
    sessions = snapshot.sessions
    if wait.code in OWN_REASONS:
        free = OWN_REASONS[wait.code](session)
        return replace(snapshot, sessions=tuple(free if other is session else other for other in sessions))
    if wait.code is WaitCode.LIMIT:
        return replace(snapshot, policy=replace(snapshot.policy, limits=Limits()))
    if wait.code is WaitCode.WINDOW:
        return replace(snapshot, reservations=())
    if wait.code in {WaitCode.BEHIND, WaitCode.PREEMPTING}:
        return replace(snapshot, sessions=tuple(other for other in sessions if other.id not in wait.waits_for))
    assert wait.code is WaitCode.BUSY
    back = tuple(replace(agent, state=AgentState.ALIVE, drain_reason=None) for agent in snapshot.agents)
    holders = {p.session_id for p in schedule(snapshot).placements} | {other.id for other in snapshot.placed}
    rest = tuple(other for other in sessions if other.id not in holders)
    return replace(snapshot, agents=back, slow=frozenset(), sessions=rest)


def overlay_can_be_had(snapshot: Snapshot) -> bool:
    """Return whether an overlay is possible once every agent is back."""
    return any(agent.manages_overlays for agent in snapshot.agents)


@given(busy_sites())
def test_removing_the_named_cause_of_a_wait_lets_the_session_start(snapshot):
    for session in schedule(snapshot).waits:
        site, seen = snapshot, []
        while (wait := schedule(site).waits.get(session)) is not None and wait.code not in FINALLY:
            if wait.code is WaitCode.BUSY and not overlay_can_be_had(site):
                break
            seen.append(wait.code)
            # Sessions ahead may take capacity that becomes free, each in its turn.
            assert len(seen) < 40, seen
            waiting = next(s for s in site.sessions if s.id == session)
            site = removed(site, waiting, wait)
            again = schedule(site).waits.get(session)
            if wait.code not in {WaitCode.BUSY, WaitCode.BEHIND, WaitCode.PREEMPTING}:
                assert again is None or again.code is not wait.code
        if wait is None:
            assert session in {placement.session_id for placement in schedule(site).placements}


@given(busy_sites())
def test_nothing_starts_beyond_a_limit_before_its_time_or_against_a_hold(snapshot):
    plan = schedule(snapshot)
    by_id = {session.id: session for session in snapshot.sessions}
    for placement in plan.placements:
        session = by_id[placement.session_id]
        assert session.held_by is None
        assert session.spec.begin is None or session.spec.begin <= NOW
        for other in (*session.spec.after_ok, *session.spec.after_any):
            assert by_id[other].state in {SessionState.TERMINATED, SessionState.ERROR, SessionState.CANCELLED}
    started = {placement.session_id for placement in plan.placements}
    for owner in ("ada", "bob"):
        for counted, bound in snapshot.policy.limits.users[EACH].running.items():
            before = [s for s in snapshot.placed if s.owner == owner]
            after = before + [by_id[session_id] for session_id in started if by_id[session_id].owner == owner]
            if any(session.id in started for session in after) and grew(counted, before, after):
                assert amount(counted, after) <= bound


def amount(counted: str, sessions: list[Session]) -> int:
    if counted == "sessions":
        return len(sessions)
    if counted == "kernels":
        return sum(len(session.kernels) for session in sessions)
    return sum(int(getattr(session.slots, counted)) for session in sessions)


def grew(counted: str, before: list[Session], after: list[Session]) -> bool:
    return amount(counted, after) > amount(counted, before)


@pytest.mark.parametrize("ended", [{"result": Result.SUCCESS}, {"result": Result.FAILURE}])
def test_a_dependency_that_has_ended_is_looked_up_among_the_ended(ended):
    first = replace(make_session(1, state=SessionState.TERMINATED), **ended)
    then = with_spec(make_session(2), after_ok=(first.id,))
    plan = schedule(Snapshot((make_agent(),), (then,), NOW, ended={first.id: first}))
    if ended["result"] is Result.SUCCESS:
        assert [placement.session_id for placement in plan.placements] == [then.id]
    else:
        assert plan.waits[then.id].code is WaitCode.NEVER_RUNS


def test_a_busy_wait_names_the_missing_resources_and_the_agent():
    runs = placed_on(make_session(1, cpu=3), "a1")
    waits = make_session(2, cpu=4)
    wait = schedule(Snapshot((make_agent(cpus=4),), (runs, waits), NOW)).waits[waits.id]
    assert wait.message == "too little is free now; agent a1 comes closest and lacks 3 CPU"
    assert (wait.exhausted, wait.nearest.agent_id, wait.nearest.missing) == ({"cpu": 1}, "a1", {"cpu": 3000})


@pytest.mark.parametrize(
    ("agent", "asks", "message"),
    [
        ({}, {"gpu": 1}, "no agent of group default has a GPU"),
        ({}, {"fgpu": "0.5"}, "no agent of group default has a GPU"),
        ({"gpus": 1, "units_per_gpu": 0}, {"fgpu": "0.5"}, "no agent of group default shares GPUs; ask for whole ones"),
    ],
)
def test_a_group_without_gpus_says_so_in_plain_words(agent, asks, message):
    session = make_session(1, **asks)
    wait = schedule(Snapshot((make_agent(**agent),), (session,), NOW)).waits[session.id]
    assert (wait.code, wait.message) == (WaitCode.NEVER_FITS, message)


def test_a_group_whose_units_are_invalid_may_share_gpus_when_they_are_mended():
    session = make_session(1, fgpu="0.5")
    large = make_session(2, fgpu="0.5", cpu=500)
    agent = make_agent(gpus=1, units_per_gpu="x")
    waits = schedule(Snapshot((agent,), (session, large), NOW)).waits
    message = "no agent of group default takes sessions now (1 misconfigured)"
    assert [(waits[one.id].code, waits[one.id].message) for one in (session, large)] == [(WaitCode.BUSY, message)] * 2
    shares = make_agent("a2", gpus=1, units_per_gpu=2)
    never = schedule(Snapshot((agent, shares), (large,), NOW)).waits[large.id]
    assert never.code is WaitCode.NEVER_FITS
