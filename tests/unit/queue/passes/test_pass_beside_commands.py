"""What users and administrators do between a decision's look at the cluster and its commit is not undone by it."""

from collections.abc import Callable, Sequence
from uuid import uuid4

import pytest

from muster.core.lifecycle import transitions
from muster.core.lifecycle.transitions import Event
from muster.core.lifecycle.update import updated
from muster.core.model.reservation import Reservation
from muster.core.model.session import SessionState
from muster.store.sessions.pending import PendingCheck
from muster.store.sessions.updating import Update

S = SessionState
Beside = Callable[[Callable[[], object]], None]


@pytest.fixture
def beside(node, monkeypatch) -> Beside:
    """Lets something happen right before the next decision is committed."""

    def happens(command: Callable[[], object]) -> None:
        apply = node.store.apply

        def applied(events: Sequence[Event]) -> list[Event]:
            if events:
                monkeypatch.setattr(node.store, "apply", apply)
                command()
            return apply(events)

        monkeypatch.setattr(node.store, "apply", applied)

    return happens


def changes(node, session, change: Callable[..., Event], *arguments: object) -> Callable[[], object]:
    return lambda: node.store.apply([change(node.session(session), *arguments, "ada", node.now)])


def test_a_session_that_is_held_while_it_is_placed_does_not_start(node, beside):
    session = node.submit()
    beside(changes(node, session, transitions.hold))
    node.run(observe=False)
    assert (node.state(session), node.session(session).held_by) == (S.PENDING, "ada")
    changes(node, session, transitions.release)()
    node.run(observe=False)
    assert node.state(session) is S.RUNNING


def test_a_session_that_is_updated_while_it_is_placed_starts_as_it_was_updated(node, beside):
    session = node.submit()

    def update() -> None:
        before = node.session(session)
        after = updated(before, before.spec.model_copy(update={"cluster_size": 2, "cpu": 500}), lambda: str(uuid4()))
        check = PendingCheck(node.store.pending(), lambda _: None)
        assert node.store.update([Update(before, after, "updated by ada")], node.now, check)

    beside(update)
    node.run(observe=False)
    after = node.session(session)
    assert (after.state, [kernel.slots.cpu for kernel in after.kernels]) == (S.RUNNING, [500, 500])
    assert all(kernel.container_id for kernel in after.kernels)


def test_no_session_starts_on_an_agent_that_is_drained_while_it_is_placed(node, agents, beside):
    session = node.submit()
    beside(lambda: node.store.agents.drain("a1", "disks"))
    node.run(observe=False)
    assert (node.state(session), node.session(session).agents) == (S.RUNNING, ("a2",))
    assert agents[0].made == 0


def test_no_session_starts_on_an_agent_that_is_reserved_while_it_is_placed(node, agents, beside):
    session = node.submit()
    disks = Reservation("disks", node.now, node.now + 600, agents=frozenset({"a1"}))
    beside(lambda: node.store.reservations.add(disks))
    node.run(observe=False)
    assert (node.state(session), node.session(session).agents) == (S.RUNNING, ("a2",))
    assert agents[0].made == 0


def test_a_session_that_is_extended_while_its_time_limit_ends_it_goes_on(node, beside):
    session = node.submit(time_limit="10m")
    node.run()
    node.now += 600
    beside(changes(node, session, transitions.extend, 600))
    node.run()
    assert node.state(session) is S.RUNNING
    node.now += 600
    node.run()
    assert (node.state(session), node.session(session).reason) == (S.TERMINATED, "its time limit of 20m is reached")


def test_a_session_that_is_extended_while_it_is_warned_has_no_warning_of_the_earlier_end(node, beside):
    session = node.submit(time_limit="1h")
    node.run()
    node.now += 3300
    beside(changes(node, session, transitions.extend, 3600))
    node.run()
    assert node.session(session).notice is None
    node.now += 3600
    node.run()
    assert "its time limit of 2h is reached at" in node.session(session).notice


def test_a_session_that_is_extended_while_its_signal_is_decided_on_gets_it_before_the_new_end(node, beside):
    session = node.submit(command="train", signal="USR1@60", time_limit="10m")
    node.run()
    node.now += 550
    beside(changes(node, session, transitions.extend, 600))
    node.run()
    assert node.session(session).signals == 0
    node.now += 600
    node.run()
    assert node.session(session).signals == 1
