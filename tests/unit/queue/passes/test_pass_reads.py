"""One snapshot serves a turn; a turn that the store refuses a part of is thrown away."""

import pytest

from muster.core.model.session import SessionState

S = SessionState


@pytest.fixture
def reads(node, monkeypatch):
    """Return the moments at which a snapshot was read since."""
    moments = []
    read = node.store.snapshot

    def snapshot(now):
        moments.append(now)
        return read(now)

    monkeypatch.setattr(node.store, "snapshot", snapshot)
    return moments


def test_a_pass_with_nothing_to_do_reads_once(node, reads):
    node.submit(cpu=99)
    node.run(observe=False)
    reads.clear()
    node.run(observe=False)
    assert len(reads) == 1


def test_a_launch_is_read_again_before_agents_hear_of_it(node, reads):
    reads_before: list[int] = []
    node.gateway.meanwhile = lambda: reads_before.append(len(reads))
    node.submit()
    node.worker.decide()
    assert reads_before == [2]


def test_a_decision_about_a_session_that_its_user_ended_meanwhile_is_made_again(node, agents, monkeypatch):
    session, other = node.submit(), node.submit()
    apply = node.store.apply

    def apply_after_the_user(events):
        monkeypatch.setattr(node.store, "apply", apply)
        node.end(session)
        return apply(events)

    monkeypatch.setattr(node.store, "apply", apply_after_the_user)
    node.run(observe=False)
    assert (node.state(session), node.state(other)) == (S.CANCELLED, S.RUNNING)
    assert [c.session_id for agent in agents for c in agent.containers.values()] == [other.id]
    assert node.worker.is_idle
