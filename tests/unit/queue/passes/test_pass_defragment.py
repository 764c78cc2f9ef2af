"""Defragmentation in the pass: a session is queued again, and launched elsewhere behind the one it moved for."""

from dataclasses import replace

from muster.core.model.policy import GroupPolicy, SchedulingPolicy
from muster.core.model.session import SessionState
from tests.simulated.control_node import an_agent

S = SessionState


def test_the_head_takes_the_place_and_the_moved_one_runs_elsewhere(control_node):
    node = control_node(*(an_agent(name, cpus=4) for name in ("a1", "a2")))
    policy = SchedulingPolicy(GroupPolicy(defragment=True))
    node.shell = replace(node.shell, with_policy=lambda snapshot: replace(snapshot, policy=policy))
    node.worker = type(node.worker)(node.shell, node.inbox.put)
    large, short, moves = (node.submit(cpu=cpu, requeue=True) for cpu in (3, 1, 1))
    node.run()
    assert [node.session(session).agents for session in (large, short, moves)] == [("a1",), ("a1",), ("a2",)]
    node.end(short)
    node.run()
    head = node.submit(cpu=4)
    node.run()
    node.run()
    assert [(node.state(s), node.session(s).agents) for s in (large, head, moves)] == [
        (S.RUNNING, ("a1",)),
        (S.RUNNING, ("a2",)),
        (S.RUNNING, ("a1",)),
    ]
    after = node.session(moves)
    assert (after.requeues, after.moved_for, node.session(large).requeues) == (1, None, 0)
    story = [line.reason for line in node.store.story(moves.id)]
    assert f"starts anew elsewhere, since {head.name} fits in its place; the session is queued again" in story
