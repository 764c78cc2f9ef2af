"""What a pass takes over from the one before changes nothing of what it decides."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from muster.contract.report import Report, SwarmReport
from muster.core.agents.agent import Agent
from muster.core.lifecycle.update import updated
from muster.core.model.policy import GroupPolicy, PlacementPolicy, SchedulingPolicy
from muster.core.model.session import Session, SessionState
from muster.core.model.snapshot import Snapshot
from muster.core.scheduling.committed import committed
from muster.core.scheduling.future import holder
from muster.core.scheduling.memory.difference import difference
from muster.core.scheduling.memory.pass_memory import PassMemory
from muster.core.scheduling.memory.placed_sessions import PlacedSessions
from muster.core.scheduling.memory.plain_sessions import PlainSessions
from muster.core.scheduling.memory.requests import Requests
from muster.core.scheduling.placement import gang_of
from muster.core.scheduling.schedule import schedule
from muster.core.whatif.explain import HOPELESS
from tests.properties import cheap, dear
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session, placed_on
from tests.strategies.snapshots import snapshots, uneven_gangs
from tests.strategies.values import NOW


def _reported(agent: Agent, **values: Any) -> Agent:
    """Return the agent as it is after another report, with these values in it."""
    return replace(agent, observed_at=agent.observed_at + 30, report=agent.report.model_copy(update=values))


def _in_use(agent: Agent) -> Agent:
    return _reported(agent, mem_available_bytes=(agent.report.mem_available_bytes or 0) + 4096)


def _drained(agent: Agent) -> Agent:
    return replace(agent, drain_reason="bench" if agent.drain_reason is None else None)


def _off_the_overlay(agent: Agent) -> Agent:
    return _reported(agent, swarm=SwarmReport())


def _the_same(agent: Agent) -> Agent:
    return agent


_FATES = (_the_same, _the_same, _in_use, _in_use, replace, _drained, _off_the_overlay)


@st.composite
def changed(draw: st.DrawFn, snapshot: Snapshot) -> Snapshot:
    """Draw the snapshot a little later: sessions ended, were held or updated, agents were observed again."""
    plan = schedule(snapshot)
    started = {placement.session_id: placement.allocations for placement in plan.placements}
    sessions = []
    for session in snapshot.sessions:
        fate = draw(st.sampled_from(("stays", "stays", "changes", "is updated", "goes")))
        if session.id in started and fate != "goes":
            kernels = tuple(replace(k, allocation=started[session.id][k.id]) for k in session.kernels)
            sessions.append(replace(session, kernels=kernels, state=SessionState.RUNNING, started_at=snapshot.now))
        elif fate == "changes" and session.state is SessionState.PENDING:
            sessions.append(replace(session, held_by=draw(st.sampled_from((None, "ada")))))
        elif fate == "is updated" and session.state is SessionState.PENDING:
            spec = session.spec.model_copy(update=draw(updates()))
            sessions.append(updated(session, spec, lambda: str(draw(st.uuids()))))
        elif fate != "goes":
            sessions.append(session)
    agents = tuple(draw(st.sampled_from(_FATES))(agent) for agent in snapshot.agents)
    later = snapshot.now + draw(st.sampled_from((0, 1, 60, 4000)))
    return replace(snapshot, sessions=tuple(sessions), agents=agents, now=later)


def updates() -> st.SearchStrategy[dict[str, Any]]:
    """Draw the fields of a spec that an update changes."""
    return st.fixed_dictionaries(
        {},
        optional={
            "cpu": st.sampled_from((1000, 4000)),
            "priority": st.sampled_from((20, 80)),
            "cluster_size": st.sampled_from((1, 2, "1-3")),
            "cluster_mode": st.sampled_from(("single-node", "multi-node")),
            "resource_group": st.sampled_from(("default", "other")),
            "gpu_models": st.sampled_from(((), ("A100",))),
            "time_limit": st.sampled_from((None, 600)),
        },
    )


def requests() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "cpu": st.sampled_from((1, 2, 4)),
            "fgpu": st.sampled_from((0, 0.3, 0.5)),
            "mem": st.sampled_from(("1G", "8G")),
        }
    )


@given(st.data(), snapshots(max_sessions=8))
def test_with_and_without_a_memory_the_plan_is_the_same(data, snapshot):
    memory = PassMemory()
    for _ in range(3):
        assert schedule(snapshot, memory) == schedule(snapshot)
        assert schedule(snapshot, memory) == schedule(snapshot)
        snapshot = data.draw(changed(snapshot))


@given(st.data(), snapshots(max_sessions=8))
def test_without_explanations_the_same_sessions_start_and_the_same_never_will(data, snapshot):
    memory = PassMemory()
    for _ in range(2):
        explained, bare = schedule(snapshot), schedule(snapshot, memory, explains=False)
        assert (bare.placements, bare.preemptions) == (explained.placements, explained.preemptions)
        assert list(bare.waits) == list(explained.waits)
        assert {s: w for s, w in bare.waits.items() if w.code in HOPELESS} == {
            s: w for s, w in explained.waits.items() if w.code in HOPELESS
        }
        assert {s: w.passes for s, w in bare.waits.items()} == {s: w.passes for s, w in explained.waits.items()}
        snapshot = data.draw(changed(snapshot))


@given(snapshots(max_sessions=8), st.sampled_from((1, 5, 30, 600, 3600)))
def test_time_alone_is_seen_when_it_makes_a_difference(snapshot, seconds):
    memory = PassMemory()
    schedule(snapshot, memory)
    later = replace(snapshot, now=snapshot.now + seconds)
    with_memory, without = schedule(later, memory), schedule(later)
    assert with_memory.placements == without.placements
    assert with_memory.preemptions == without.preemptions
    assert {s: w.code for s, w in with_memory.waits.items()} == {s: w.code for s, w in without.waits.items()}


def test_an_idle_queue_is_not_worked_again():
    runs = placed_on(make_session(1, cpu=4), "a1")
    snapshot = Snapshot((make_agent(cpus=4),), (runs, make_session(2)), NOW)
    memory = PassMemory()
    plan = schedule(snapshot, memory)
    assert schedule(replace(snapshot, now=NOW + 60), memory) is plan
    assert schedule(replace(snapshot, now=NOW + 60, slow=frozenset({"a1"})), memory) is not plan


def test_the_time_of_the_next_try_is_said_alike_while_it_comes_closer():
    snapshot = Snapshot((make_agent(),), (make_session(1, retry_at=NOW + 5, reason="no port"),), NOW)
    memory = PassMemory()
    for later in (0, 1, 4):
        now = replace(snapshot, now=NOW + later)
        assert schedule(now, memory) == schedule(now)


def test_an_idle_queue_is_not_worked_again_for_what_agents_report_of_use():
    runs = placed_on(make_session(1, cpu=4), "a1")
    agent = replace(make_agent("a1", cpus=4), report=Report(cpu_count=4, kernels=(), mem_available_bytes=1))
    snapshot = Snapshot((agent,), (runs, make_session(2)), NOW)
    memory = PassMemory()
    plan = schedule(snapshot, memory)
    seen = _in_use(agent)
    assert schedule(replace(snapshot, now=NOW + 30, agents=(seen,)), memory) is plan
    for other in (_drained(seen), _reported(seen, cpu_count=8), _reported(seen, architecture="aarch64")):
        assert schedule(replace(snapshot, now=NOW + 60, agents=(other,)), memory) is not plan


@dear
@given(uneven_gangs(), st.lists(requests(), max_size=3), st.lists(requests(), max_size=3))
def test_an_impossible_session_does_not_depend_on_the_previous_passs_queue(case, earlier, later):
    agents, session = case
    memory = PassMemory()
    policy = SchedulingPolicy(GroupPolicy(placement=PlacementPolicy("fragmentation", fragmentation=1.0)))
    for beside in (earlier, later):
        others = [make_session(number, **request) for number, request in enumerate(beside, 10)]
        snapshot = Snapshot(agents, (session, *others), NOW, policy=policy)
        assert schedule(snapshot, memory) == schedule(snapshot)


@st.composite
def long_queues(draw: st.DrawFn) -> Snapshot:
    """Draw more sessions than starts are estimated of, with few requests among them, on agents that some run on."""
    shapes = draw(st.lists(requests(), min_size=1, max_size=3))
    limits = st.sampled_from((None, None, "1m", "10h"))
    agents = tuple(make_agent(f"a{number}", cpus=4) for number in range(draw(st.integers(1, 3))))
    running = [placed_on(make_session(900, cpu=3, time_limit=draw(limits)), "a0")] if draw(st.booleans()) else []
    waiting = [
        make_session(number, priority=draw(st.sampled_from((0, 0, 0, 1))), time_limit=draw(limits), **shape)
        for number, shape in enumerate(draw(st.lists(st.sampled_from(shapes), min_size=20, max_size=50)), 1)
    ]
    policy = SchedulingPolicy(GroupPolicy(backfill=draw(st.booleans()), reserve_after_passes=draw(st.integers(1, 2))))
    return Snapshot(agents, (*waiting, *running), NOW, policy=policy)


@given(long_queues())
def test_a_session_that_is_not_looked_at_for_itself_waits_as_if_it_were(snapshot):
    # With a delay that is over, nothing is different, but each one is looked at.
    each = tuple(
        replace(session, retry_at=NOW - 1) if session.state is SessionState.PENDING else session
        for session in snapshot.sessions
    )
    memory = PassMemory()
    plan = schedule(snapshot, memory)
    assert plan == schedule(replace(snapshot, sessions=each))
    after = replace(committed(snapshot, plan), now=snapshot.now + 1)
    assert schedule(after, memory) == schedule(after)


def test_behind_many_that_would_delay_the_head_a_short_one_with_the_same_request_starts():
    runs = replace(placed_on(make_session(900, cpu=3, time_limit="1h"), "a1"), started_at=NOW)
    long = [make_session(number, cpu=1) for number in range(2, 32)]
    short = make_session(50, cpu=1, time_limit="1m")
    snapshot = Snapshot((make_agent("a1", cpus=4),), (runs, make_session(1, cpu=4), *long, short), NOW)
    assert [placement.session_id for placement in schedule(snapshot).placements] == [short.id]


def test_what_sessions_request_is_kept_for_those_that_are_still_there():
    known = PlainSessions()
    before = []
    for number in range(5):
        # Identities are used again once a session is gone: none may be known by another one's.
        queue = [make_session(1 + index, cpu=1 + number) for index in range(1500)]
        queue[0] = replace(queue[0], held_by="ada")
        known.change(before, queue)
        gangs = known.gangs()
        assert gangs[id(queue[0])] is None
        assert all(gangs[id(session)] == gang_of(session, overlay=True) for session in queue[1:])
        assert len(gangs) == len(queue)
        before = queue


@cheap
@given(st.lists(st.tuples(*[st.lists(st.integers(1, 4), unique=True)] * 2), min_size=1, max_size=6))
def test_sessions_that_moved_are_known_for_as_long_as_they_are_there(passes):
    memory = PassMemory()
    sessions = {number: make_session(number) for number in (1, 2)}
    sessions |= {number: replace(make_session(number), moved_for=f"head-{number}") for number in (3, 4)}
    placed = {number: placed_on(session, "a1") for number, session in sessions.items()}
    for running, waiting in passes:
        pending = [sessions[n] for n in waiting if n not in running]
        snapshot = Snapshot((), (*(placed[n] for n in running), *pending), NOW)
        known = memory.begin(snapshot, {"default": pending})["default"].moved_for
        assert known == {f"head-{n}" for n in (*running, *waiting) if n > 2}


@cheap
@given(st.lists(st.lists(st.integers(1, 6), unique=True), min_size=1, max_size=6), st.sets(st.integers(0, 5)))
def test_the_ends_of_sessions_are_those_of_all_that_are_placed_now(passes, read):
    limits = (None, "1m", "10m", None, "1m", "20m")
    states = (SessionState.RUNNING,) * 4 + (SessionState.TERMINATING, SessionState.SCHEDULED)
    began = (NOW - 100, NOW - 100, NOW - 30, NOW, NOW - 100, None)
    sessions = {
        number: replace(
            placed_on(make_session(number, time_limit=limit), "a1"), state=state, started_at=at, extended_s=number
        )
        for number, (limit, state, at) in enumerate(zip(limits, states, began, strict=True), 1)
    }
    known = PlacedSessions()
    before: list[Session] = []
    for count, numbers in enumerate(passes):
        now = [sessions[number] for number in numbers]
        known.change(*difference(before, now))
        assert {id(session) for session in known.all} == set(map(id, now))
        assert known.endless == sum(session.time_limit is None for session in now)
        if count in read:
            at = NOW + count
            assert sorted(known.holders(at)) == sorted(holder(session, at) for session in now)
        before = now


def test_many_sessions_that_came_together_end_in_their_order():
    known = PlacedSessions()
    some = [
        replace(placed_on(make_session(n, time_limit=f"{1 + n * 37 % 50}m"), "a1"), started_at=NOW)
        for n in range(1, 90)
    ]
    for gone, new in (([], some[:60]), (some[10:20], some[60:])):
        known.change(gone, new)
        ends = [each.end for each in known.holders(NOW)]
        assert ends == sorted(ends)
    assert len(ends) == 79


@dear
@given(st.lists(st.integers(0, 120), min_size=1, max_size=4), st.integers(1, 3))
def test_of_many_sessions_the_same_are_counted_whatever_was_before(steps, shapes):
    known = Requests(sampled=64)
    every = [make_session(number, cpu=1 + number % shapes) for number in range(1, 122)]
    before: list[Session] = []
    for size in steps:
        now = every[:size]
        known.change(*difference(before, now))
        anew = Requests(sampled=64)
        anew.change([], now)
        assert known.of(now, [], {}) == anew.of([], now, {})
        before = now


def test_agents_that_are_read_anew_are_used_in_the_order_of_their_ids():
    memory = PassMemory()
    for ids in (("a2", "a1"), ("a2", "a0", "a1"), ("a2",)):
        snapshot = Snapshot(tuple(map(make_agent, ids)), (make_session(1),), NOW)
        known = memory.begin(snapshot, {"default": snapshot.pending})["default"]
        assert list(known.members(snapshot)) == sorted(ids)
        assert schedule(snapshot, memory) == schedule(snapshot)
