"""Elastic sessions in a store: with as many kernels as they were given, and charged for those."""

from dataclasses import replace

from muster.core.lifecycle import transitions
from muster.core.lifecycle.applied import applied
from muster.core.model.session import SessionState
from muster.core.model.snapshot import Snapshot
from muster.core.scheduling.schedule import schedule
from muster.core.usage.kernel import KernelUsage
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session, placed_on
from tests.strategies.values import NOW

S = SessionState


def elastic(number=1, **values):
    return make_session(number, **{"cluster_size": "2-5", "requeue": True, **values})


def decided(store, cpus):
    """Place what waits on one agent, and commit it; return the sessions by name."""
    snapshot = store.snapshot(NOW)
    world = replace(snapshot, agents=(make_agent("a1", cpus=cpus),))
    events = transitions.place(schedule(world), world)
    foreseen = applied(snapshot, events)
    store.apply(events)
    found = store.snapshot(NOW)
    assert found == foreseen
    return {session.name: session for session in found.sessions}


def test_it_is_read_as_it_was_added(store):
    waits, runs = elastic(1), placed_on(elastic(2).of_size(4), "a1")
    store.add([waits, runs])
    assert store.get([waits.id, runs.id]) == {waits.id: waits, runs.id: runs}


def test_what_it_is_given_is_known_from_its_placement_to_its_next_place_in_the_queue(store):
    store.add([elastic()])
    session = decided(store, cpus=4)["s1"]
    assert (session.given, len(session.kernels), len(session.spare)) == (4, 4, 1)
    assert session.reason == "placed on a1, with 4 of 2-5 containers"
    runs = replace(session, state=S.TERMINATING, requeue_after_end=True)
    launched = [
        transitions.launch(session, 7, "ssh-ed25519 AAAA", NOW, {}),
        transitions.all_run(replace(session, state=S.PREPARING), {}, NOW),
        transitions.transition(replace(session, state=S.RUNNING), S.TERMINATING, "lost", NOW, requeue_after_end=True),
        transitions.ended(runs, {}, NOW + 5),
    ]
    assert store.apply(launched) == launched
    waits = store.get([session.id])[session.id]
    assert (waits.state, waits.given, len(waits.kernels), waits.agents) == (S.PENDING, None, 2, ())
    assert len(decided(store, cpus=9)["s1"].kernels) == 5


def test_its_owner_is_charged_for_what_it_was_given(store):
    ended = {"state": S.TERMINATED, "started_at": NOW, "ended_at": NOW + 10}
    store.add([replace(placed_on(elastic().of_size(3), "a1"), **ended)])
    (run,) = store.ended_runs(NOW).values()
    assert run.slots.cpu == 3000


def test_each_run_in_a_report_has_the_size_of_that_run(store):
    session = replace(placed_on(elastic().of_size(4), "a1"), generation=8, started_at=NOW + 50)
    store.add([session])
    earlier = [KernelUsage(k.id, 7, session.id, NOW, NOW + 10, NOW + 10) for k in session.kernels[:3]]
    store.uses.save(earlier)
    first, second = store.uses.runs(NOW, NOW + 1000, NOW + 100)
    assert [(run.kernels, run.slots.cpu) for run in (first, second)] == [(3, 3000), (4, 4000)]


def test_the_snapshot_decides_the_same_as_what_was_submitted(store):
    session = elastic(cluster_mode="multi-node")
    store.add([session])
    agents = (make_agent("a1", cpus=3),)
    submitted = schedule(Snapshot(agents, (session,), NOW)).placements
    assert schedule(replace(store.snapshot(NOW), agents=agents)).placements == submitted
