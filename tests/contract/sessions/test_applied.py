"""The core's own `applied` says of events exactly what the store then holds: a turn goes on from that value."""

from dataclasses import replace

import pytest

from muster.core.lifecycle import transitions
from muster.core.lifecycle.applied import applied
from muster.core.model.session import Allocation, GpuShare, Result, SessionState
from tests.strategies.sessions import make_session
from tests.strategies.values import NOW

S = SessionState


@pytest.fixture
def commit(store):
    """Applies events, and holds what the core foresaw against what the store holds; returns the sessions by name."""

    def apply(*events):
        foreseen = applied(store.snapshot(NOW), events)
        store.apply(events)
        found = store.snapshot(NOW)
        assert foreseen == found
        return {session.name: session for session in found.sessions}

    return apply


def scheduled(session):
    allocation = Allocation("a1", (GpuShare("GPU-1", 500, whole=False),), (0,))
    return transitions.transition(
        session,
        S.SCHEDULED,
        "placed on a1",
        NOW,
        placed_mode="single-node",
        wait=None,
        stranded_on=(),
        kernels={kernel.id: {"allocation": allocation} for kernel in session.kernels},
    )


def test_applied_events_match_the_store_from_the_queue_to_the_end_and_back(store, commit):
    session = make_session(1, cluster_size=2, requeue=True, image="debian:13")
    store.add([session, make_session(2)])
    session = commit(scheduled(session))["s1"]
    session = commit(transitions.pull(session, {"debian:13": {"a1"}}, NOW))["s1"]
    session = commit(transitions.launch(session, 7, "ssh-ed25519 AAAA", NOW, {}))["s1"]
    session = commit(transitions.all_started(session, {}, NOW))["s1"]
    facts = {"container_id": "c1", "container_state": "running", "address": "10.0.0.2", "ssh_port": 49153}
    session = commit(transitions.all_run(session, {session.id: facts}, NOW + 5))["s1"]
    commit(replace(transitions.transition(session, S.RUNNING, "", NOW), kernels={session.id: {"address": None}}))
    requeued = transitions.transition(session, S.TERMINATING, "lost", NOW, requeue_after_end=True, stranded_on=("a1",))
    session = commit(requeued)["s1"]
    session = commit(transitions.ended(session, {}, NOW))["s1"]
    assert (session.state, session.requeues, session.agents) == (S.PENDING, 1, ())


def test_applied_events_match_the_store_for_several_events_of_one_session(store, commit):
    session = make_session(1)
    store.add([session])
    session = commit(scheduled(session))["s1"]
    ending = transitions.terminate(session, "enough", Result.FAILURE, NOW, exit_code=3)
    after = replace(session, state=S.TERMINATING, reason="enough", result=Result.FAILURE, exit_code=3)
    assert commit(ending, transitions.ended(after, {}, NOW)) == {}


def test_applied_events_match_the_store_for_an_awaited_end(store, commit):
    first = make_session(1)
    store.add([first, make_session(2, after_any=[first.id]), make_session(3)])
    assert commit(transitions.end_by_user(first, "ada", NOW)).keys() == {"s2", "s3"}
    assert store.snapshot(NOW).ended.keys() == {first.id}


def test_applied_events_match_the_store_when_events_are_dropped(store, commit):
    session = make_session(1)
    store.add([session])
    held = transitions.hold(session, "ada", NOW)
    commit(held)
    assert commit(held)["s1"].held_by == "ada"
    commit(scheduled(session))
    assert commit(transitions.end_by_user(session, "ada", NOW))["s1"].state is S.SCHEDULED
