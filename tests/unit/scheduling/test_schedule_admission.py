"""Sessions that are not admitted, in a whole decision: they never start, have a reason, and delay no other."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.core.agents.agent import AgentState
from muster.core.model.policy import Limit, Limits, SchedulingPolicy
from muster.core.model.reservation import Reservation
from muster.core.model.snapshot import Snapshot
from muster.core.model.wait import WaitCode
from muster.core.scheduling.schedule import schedule
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session, placed_on
from tests.strategies.snapshots import snapshots
from tests.strategies.values import NOW

HOUR = 3600.0
ONE = (make_agent("a1", cpus=4, swarm="manager"),)
SMALL = {"cpu": 1, "mem": "64M", "shm": 0}


def decided(*sessions, agents=ONE, **fields):
    """Return ids of those that start, and the codes of those that wait."""
    plan = schedule(Snapshot(agents, sessions, NOW, **fields))
    return {p.session_id for p in plan.placements}, {key: plan.waits[key].code for key in plan.waits}


def test_a_refused_session_delays_no_other():
    limits = SchedulingPolicy(limits=Limits(users={"ada": Limit(running={"sessions": 0})}))
    refused = [
        make_session(1, priority=100, cpu=4, held_by="ada", owner="bob"),
        make_session(2, priority=100, cpu=4, begin=NOW + 5, owner="bob"),
        make_session(3, priority=100, cpu=4, after=("nosuch",), owner="bob"),
        make_session(4, priority=100, cpu=4),
    ]
    last = make_session(5, owner="bob", cpu=4)
    started, waits = decided(*refused, last, policy=limits)
    assert started == {last.id}
    assert [waits[s.id] for s in refused] == [
        WaitCode.HELD,
        WaitCode.BEGIN,
        WaitCode.NEVER_RUNS,
        WaitCode.NEVER_RUNS,
    ]


def test_an_array_starts_up_to_its_limit_and_sessions_behind_it_go_on():
    array = [
        make_session(n, name=f"a-{n}", array="1-3%2", array_id="x", array_index=n, priority=60, **SMALL)
        for n in (1, 2, 3)
    ]
    behind = make_session(4, **SMALL)
    started, waits = decided(*array, behind)
    assert started == {array[0].id, array[1].id, behind.id}
    assert waits == {array[2].id: WaitCode.ARRAY}


def test_a_chain_goes_on_when_what_it_waits_for_is_through():
    first = placed_on(make_session(1, **SMALL), "a1")
    after, after_ok = make_session(2, after=(first.id,), **SMALL), make_session(3, after_ok=(first.id,), **SMALL)
    started, waits = decided(first, after, after_ok)
    assert (started, waits) == ({after.id}, {after_ok.id: WaitCode.DEPENDENCY})


def test_a_maintenance_window_lets_in_only_what_ends_before_it():
    window = Reservation("disks", NOW + HOUR, NOW + 2 * HOUR)
    endless, short = make_session(1, **SMALL), make_session(2, time_limit="30m", **SMALL)
    started, waits = decided(endless, short, reservations=(window,))
    assert (started, waits) == ({short.id}, {endless.id: WaitCode.WINDOW})


@pytest.mark.parametrize(("elsewhere", "start"), [(None, None), ("5h", NOW + 5 * HOUR), ("1h", NOW + HOUR)])
def test_no_start_is_promised_for_a_time_at_which_a_window_keeps_the_session_out(elsewhere, start):
    """In two hours a1 is free, and set aside in three: the session, which may last for two, has to start elsewhere."""
    agents = [make_agent("a1", cpus=4), *([make_agent("a2", cpus=4)] if elsewhere else ())]
    runs = [placed_on(make_session(1, cpu=4, time_limit="2h"), "a1")]
    runs += [placed_on(make_session(2, cpu=4, time_limit=elsewhere), "a2")] if elsewhere else []
    waiting = make_session(3, cpu=4, time_limit="2h")
    window = Reservation("disks", NOW + 3 * HOUR, NOW + 4 * HOUR, agents=frozenset({"a1"}))
    snapshot = Snapshot(tuple(agents), (*runs, waiting), NOW, reservations=(window,))
    assert schedule(snapshot).waits[waiting.id].estimated_start == start


def test_no_start_is_promised_behind_the_head_either():
    agents = make_agent("a1", cpus=4), make_agent("a2", cpus=4)
    runs = [placed_on(make_session(n, cpu=4, time_limit=limit), f"a{n}") for n, limit in ((1, "2h"), (2, "1h"))]
    head, second = (make_session(number, cpu=4, time_limit="3h") for number in (3, 4))
    window = Reservation("disks", NOW + 4.5 * HOUR, NOW + 9 * HOUR)
    waits = schedule(Snapshot(agents, (*runs, head, second), NOW, reservations=(window,))).waits
    assert (waits[head.id].estimated_start, waits[second.id].estimated_start) == (NOW + HOUR, None)


def test_no_end_of_a_window_is_promised_where_other_agents_may_be_free_before_it():
    """The second one starts on a2, when the first has ended: long before a1 is back."""
    agents = make_agent("a1", cpus=4), make_agent("a2", cpus=4)
    runs = placed_on(make_session(1, cpu=4, time_limit="5m"), "a2")
    first, second = (make_session(number, cpu=4, time_limit="5m") for number in (2, 3))
    window = Reservation("disks", NOW - 1, NOW + 24 * HOUR, agents=frozenset({"a1"}))
    wait = schedule(Snapshot(agents, (runs, first, second), NOW, reservations=(window,))).waits[second.id]
    assert (wait.code, wait.estimated_start, wait.until) == (WaitCode.WINDOW, NOW + 600, None)


def test_each_session_is_told_why_agents_are_closed_to_it_and_not_to_another():
    """All of them ask for the same, and the same agent is closed to them."""
    agents = make_agent("a1", cpus=4), make_agent("a2", cpus=4, swarm="manager")
    runs = placed_on(make_session(0, cpu=4), "a2")
    ada, bob, eve = (make_session(number, cpu=4, owner=who) for number, who in enumerate(("ada", "bob", "eve"), 1))
    failed = replace(make_session(4, cpu=4, owner="cleo"), failed_on=("a1",))
    windows = (
        Reservation("for-bob", NOW - 1, NOW + HOUR, agents=frozenset({"a1"}), users=frozenset({"bob", "cleo"})),
        Reservation("for-ada", NOW - 1, NOW + 2 * HOUR, agents=frozenset({"a1"}), users=frozenset({"ada", "cleo"})),
    )
    waits = schedule(Snapshot(agents, (runs, ada, bob, eve, failed), NOW, reservations=windows)).waits
    message = "agents are closed to it: 1 for "
    assert waits[bob.id].message == f"{message}reservation for-ada"
    assert waits[eve.id].message == f"{message}reservation for-ada"
    assert waits[failed.id].message == f"{message}an earlier launch of it that failed there"


def test_a_reservation_admits_the_users_that_it_names():
    window = Reservation("night", NOW - 1, NOW + HOUR, users=frozenset({"bob"}))
    ada, bob = make_session(1, **SMALL), make_session(2, owner="bob", **SMALL)
    started, waits = decided(ada, bob, reservations=(window,))
    assert (started, waits) == ({bob.id}, {ada.id: WaitCode.WINDOW})


def test_a_gang_gets_the_repaired_room_of_its_agents_although_others_go_before_it():
    agents = tuple(make_agent(f"a{n}", cpus=4, swarm="manager") for n in (1, 2))
    asks = {"cpu": 4, "mem": "64M", "shm": 0}
    gang = make_session(1, cluster_size=2, cluster_mode="multi-node", stranded_on=("a1", "a2"), requeues=1, **asks)
    rival = make_session(2, priority=90, **asks)
    started, _ = decided(gang, rival, agents=agents)
    assert started == {gang.id}
    lost = replace(agents[1], state=AgentState.LOST, unreachable_since=NOW - 60)
    assert decided(gang, rival, agents=(agents[0], lost))[0] == set()
    long_lost = replace(lost, unreachable_since=NOW - HOUR)
    assert decided(gang, rival, agents=(agents[0], long_lost))[0] == {rival.id}


@given(snapshots(), st.integers(0, 3), st.integers(0, 4))
def test_no_pass_takes_a_user_over_their_limits(snapshot, most_sessions, most_cores):
    limit = Limit(running={"sessions": most_sessions, "cpu": most_cores * 1000})
    plan = schedule(replace(snapshot, policy=SchedulingPolicy(limits=Limits(users={"*": limit}))))
    by_id = {session.id: session for session in snapshot.pending}
    started = [by_id[placement.session_id] for placement in plan.placements]
    placed = [*snapshot.placed, *started]
    if started:
        assert len(placed) <= most_sessions
        assert sum(session.slots.cpu for session in placed) <= most_cores * 1000
    for session_id in plan.waits:
        if plan.waits[session_id].code is WaitCode.LIMIT:
            beside = [*placed, by_id[session_id]]
            cpu = sum(session.slots.cpu for session in beside)
            assert len(beside) > most_sessions or cpu > most_cores * 1000
