"""The loop around the queue's worker: its nudges, its promises to callers that wait for a pass, and its end."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from muster.core.model.heartbeat import Heartbeat, Worker
from muster.core.model.session import Result, SessionState
from muster.core.model.snapshot import Snapshot
from muster.core.values.errors import AnsibleFailedError, QueueLockLostError
from muster.service.queue import loop as module
from muster.service.queue.loop import KernelDied, Nudge, QueueLoop
from muster.settings import Settings
from tests.simulated.control_node import ControlNode
from tests.strategies.sessions import make_session
from tests.strategies.values import NOW

S = SessionState


class Lock:
    """A lock that is held until it is `lost`; it counts the decisions that were made under it."""

    def __init__(self) -> None:
        self.decisions = 0
        self.lost = False

    def check(self) -> None:
        if self.lost:
            raise QueueLockLostError
        self.decisions += 1


def eventually(reached: Callable[[], object]) -> None:
    give_up_at = time.monotonic() + 30
    while not reached():
        assert time.monotonic() < give_up_at, "it did not come to that"
        time.sleep(0.01)


def start_thread(run: Callable[[], None]) -> None:
    threading.Thread(target=run, daemon=True).start()


@pytest.fixture
def node(control_node, agents):
    made = control_node(*agents)
    made.run()
    yield made
    made.gateway.let_go.set()


@pytest.fixture
def lock() -> Lock:
    return Lock()


@contextmanager
def daemon(
    node: ControlNode,
    lock: Lock,
    *,
    interval_s: float = 600,
    slow_after_s: float = 600,
    clock: Callable[[], float] = time.time,
) -> Iterator[QueueLoop]:
    """Yield a loop that has made its first observation; it is stopped at the end."""
    settings = Settings(observe_interval_s=interval_s, slow_after_s=slow_after_s)
    rules = replace(node.shell.rules, slow_after_s=slow_after_s)
    shell = replace(node.shell, start=start_thread, clock=clock, rules=rules)
    loop = QueueLoop(settings, shell, lock)
    thread = threading.Thread(target=loop.run)
    looked = len(node.gateway.observations)
    thread.start()
    try:
        eventually(lambda: len(node.gateway.observations) > looked)
        yield loop
    finally:
        loop.send(Nudge.STOP)
        thread.join(30)
        assert not thread.is_alive()


# The heartbeat


def test_a_pass_and_a_daemon_say_that_they_work_the_queue(node, lock):
    node.shell = replace(node.shell, clock=lambda: NOW + 5)
    QueueLoop(Settings(), replace(node.shell, start=start_thread), lock).run_until_idle()
    assert node.store.heartbeats.last() == Heartbeat(NOW + 5, Worker.ONCE, socket.gethostname(), os.getpid())
    loop = QueueLoop(Settings(), replace(node.shell, start=start_thread), lock, worker=Worker.DAEMON)
    loop.send(Nudge.STOP)
    loop.run()
    assert node.store.heartbeats.last().worker == Worker.DAEMON


def test_a_loop_that_cannot_decide_has_no_heartbeat(node, lock):
    lock.lost = True
    with pytest.raises(QueueLockLostError):
        QueueLoop(Settings(), node.shell, lock).run()
    assert node.store.heartbeats.last() is None


# One pass


def test_a_pass_ends_when_nothing_more_follows(node, lock):
    session = node.submit(cluster_size=4, cluster_mode="multi-node", image="debian:13")
    work = QueueLoop(Settings(), replace(node.shell, start=start_thread), lock).run_until_idle()
    assert (work.scheduled, work.started) == ([session.id], [session.id])
    assert node.state(session) is S.RUNNING


def test_a_pass_says_why_ansible_reached_no_host(node, lock):
    node.gateway.fails = AnsibleFailedError("the inventory cannot be read")
    with pytest.raises(AnsibleFailedError, match="the inventory cannot be read"):
        QueueLoop(Settings(), node.shell, lock).run_until_idle()


def test_nothing_is_decided_without_the_lock(node, lock):
    session = node.submit()
    lock.lost = True
    for work in ("run_until_idle", "run"):
        with pytest.raises(QueueLockLostError):
            getattr(QueueLoop(Settings(), node.shell, lock), work)()
    assert node.state(session) is S.PENDING


def test_each_agent_that_gave_a_report_is_passed_to_the_callback(node, lock, agents):
    agents[1].reachable = False
    seen: list[str] = []
    QueueLoop(Settings(), node.shell, lock, lambda agent: seen.append(agent.id)).run_until_idle()
    assert seen == ["a1"]


# What wakes it


def test_all_agents_are_observed_on_an_interval(node, lock):
    with daemon(node, lock, interval_s=0.05):
        eventually(lambda: len(node.gateway.observations) >= 4)
    assert all(requested == ["a1", "a2"] for requested in node.gateway.observations)


def test_a_nudge_works_the_queue_without_an_observation(node, lock):
    with daemon(node, lock) as loop:
        looked = len(node.gateway.observations)
        session = node.submit()
        loop.send(Nudge.QUEUE)
        eventually(lambda: node.state(session) is S.RUNNING)
        assert len(node.gateway.observations) == looked


def test_a_nudge_may_ask_for_an_observation(node, lock):
    with daemon(node, lock) as loop:
        looked = len(node.gateway.observations)
        loop.send(Nudge.AGENTS)
        eventually(lambda: len(node.gateway.observations) == looked + 1)


def test_a_kernel_that_died_has_its_agent_observed_and_no_other(node, lock, agents):
    with daemon(node, lock) as loop:
        session = node.submit(command="true")
        loop.send(Nudge.QUEUE)
        eventually(lambda: node.state(session) is S.RUNNING)
        agents[0].containers[session.id].end(0)
        loop.send(KernelDied("a1", session.id))
        eventually(lambda: node.state(session) is S.TERMINATED)
        assert node.gateway.observations[-1] == ["a1"]


def test_the_end_of_a_kernel_is_recorded_before_the_queue_is_decided_on(node, lock, agents, monkeypatch):
    session = node.submit(command="true")
    loop = QueueLoop(Settings(), node.shell, lock)
    loop.run_until_idle()
    assert node.state(session) is S.RUNNING
    monkeypatch.setattr(loop._worker, "decide", lambda: pytest.fail("the queue is decided on"))
    agents[0].containers[session.id].end(0)
    loop.send(KernelDied("a1", session.id))
    loop._take(300)
    assert node.state(session) is S.TERMINATING


def test_a_death_that_the_answer_of_a_visit_tells_of_makes_no_other_visit(node, lock, agents):
    released = agents[0].was_released

    def dies_before_the_report(container):
        released(container)
        container.end(0)
        loop.send(KernelDied("a1", session.id))

    with daemon(node, lock) as loop:
        looked = len(node.gateway.observations)
        session = node.submit(command="true")
        agents[0].was_released = dies_before_the_report
        loop.send(Nudge.QUEUE)
        eventually(lambda: node.state(session) is S.TERMINATED)
        assert len(node.gateway.observations) == looked


def test_a_kernel_that_dies_while_its_launch_is_answered_ends_its_session_at_once(node, lock, agents):
    """The report in the answer is older than the death, and the next observation of all agents is far off."""
    died = []

    def dies_after_the_report(said):
        if said.get("sessions") and not died:
            died.append(True)
            agents[0].containers[session.id].end(0)
            loop.send(KernelDied("a1", session.id))
        return said

    with daemon(node, lock) as loop:
        session = node.submit(command="true", cluster_size=2)
        agents[0].says = dies_after_the_report
        loop.send(Nudge.QUEUE)
        eventually(lambda: node.state(session) is S.TERMINATED)
    assert node.session(session).result is Result.SUCCESS


def test_deaths_on_an_agent_in_flight_are_waited_with_for_its_answer(node, lock, monkeypatch):
    loop = QueueLoop(Settings(), node.shell, lock)
    received, came = loop._received, []

    def then_a_stop(timeout_s):
        if came:
            loop.send(Nudge.STOP)
        came.append(received(timeout_s))
        return came[-1]

    monkeypatch.setattr(loop, "_received", then_a_stop)
    loop.send(KernelDied("a1", "s1"))
    assert not loop._take(60)
    came.clear()
    ledger = loop._worker.ledger
    loop._worker.ledger = replace(ledger, visits=ledger.visits.opened(["a1"], NOW))
    loop.send(KernelDied("a1", "s2"))
    assert loop._take(60)
    assert came == [[KernelDied("a1", "s2")], [Nudge.STOP]]
    assert loop._worker.ledger.deaths == {"a1": {"s1", "s2"}}


def test_a_launch_on_one_agent_waits_for_no_other_answer(node, lock, monkeypatch):
    with daemon(node, lock) as loop:
        eventually(lambda: loop._worker.is_idle)
        monkeypatch.setattr(module, "_GATHER_S", 600)
        session = node.submit(agents=["a1"])
        loop.send(Nudge.QUEUE)
        eventually(lambda: node.state(session) is S.RUNNING)


def test_answers_of_several_agents_are_decided_on_together(node, lock, monkeypatch):
    loop = QueueLoop(Settings(), node.shell, lock)
    gathered = []

    def gather(_):
        gathered.append(loop._inbox.qsize())

    monkeypatch.setattr(time, "sleep", gather)
    loop.run_until_idle()
    # The answer of a2 and the end of the visit.
    assert gathered == [2]


def test_a_visit_that_lasts_wakes_the_loop_when_it_is_late_and_when_it_is_slow(node, lock):
    clock = [NOW]
    settings = Settings(observe_interval_s=600, slow_after_s=15)
    loop = QueueLoop(settings, replace(node.shell, clock=lambda: clock[0]), lock)
    ledger = loop._worker.ledger
    loop._worker.ledger = replace(ledger, visits=ledger.visits.opened(["a1"], NOW))
    for passed, due_in in ((0, 3), (1, 2), (3.05, 11.95), (15.05, 600)):
        clock[0] = NOW + passed
        loop._worker.snapshot = Snapshot((), (), NOW + passed)
        assert loop._due_in() == pytest.approx(due_in + 0.05, abs=0.001)


def test_the_clock_brings_a_retry(node, lock):
    session = replace(make_session(), retry_at=time.time() + 0.5)
    node.store.add([session])
    with daemon(node, lock):
        eventually(lambda: node.state(session) is S.RUNNING)


def test_the_clock_brings_the_end_of_a_time_limit(node, lock):
    session = node.submit(time_limit="1s")
    with daemon(node, lock):
        eventually(lambda: node.state(session) is S.TERMINATED)
    assert "time limit" in node.session(session).reason


def test_a_place_on_an_agent_that_is_slow_is_taken_back_without_a_nudge(node, lock, agents):
    clock = [node.now]
    running = node.submit(cpu=0.1, agents=["a2"])
    node.run()
    with daemon(node, lock, slow_after_s=0.3, clock=lambda: clock[0]) as loop:
        agents[0].hangs = True
        loop.send(KernelDied("a1", running.id))
        eventually(lambda: node.gateway.observations[-1] == ["a1"])
        node.end(running)
        loop.send(Nudge.QUEUE)
        eventually(lambda: node.state(running) is S.TERMINATED)
        session = node.submit(cpu=2)
        loop.send(Nudge.QUEUE)
        eventually(lambda: node.session(session).agents == ("a1",))
        clock[0] += 1
        eventually(lambda: node.state(session) is S.RUNNING)
        assert "agent a1 is slow to answer" in [line.reason for line in node.store.story(session.id)]


# Callers that wait for a pass


def requested(node: ControlNode, loop: QueueLoop) -> int:
    number = node.store.queue.request_pass()
    loop.send(Nudge.AGENTS)
    return number


def test_a_requested_pass_is_over_when_what_followed_from_its_observation_is(node, lock, agents):
    finished_before: list[int] = []
    with daemon(node, lock) as loop:
        node.gateway.meanwhile = lambda: finished_before.append(node.store.queue.finished_pass())
        agents[1].hardware["cpu_count"] = 8
        session = node.submit(cpu=8)
        number = requested(node, loop)
        eventually(lambda: node.store.queue.finished_pass() >= number)
        assert node.state(session) is S.RUNNING
    assert finished_before == [number - 1] * len(finished_before)
    assert finished_before


def test_a_requested_pass_does_not_wait_for_an_agent_that_hangs(node, lock, agents):
    with daemon(node, lock, slow_after_s=0.3) as loop:
        agents[0].hangs = True
        number = requested(node, loop)
        eventually(lambda: node.store.queue.finished_pass() >= number)


def test_a_pass_that_was_not_requested_finishes_no_request(node, lock):
    with daemon(node, lock, interval_s=0.05):
        eventually(lambda: lock.decisions > 10)
    assert node.store.queue.finished_pass() == 0


def test_a_requested_pass_is_not_over_before_ansible_is_tried_again(node, lock):
    """After a failure, Ansible is not run again for a while."""
    clock = [node.now]
    loop = QueueLoop(Settings(), replace(node.shell, clock=lambda: clock[0]), lock)
    thread = threading.Thread(target=loop.run)
    node.gateway.fails = AnsibleFailedError("the inventory cannot be read")
    thread.start()
    eventually(lambda: lock.decisions >= 2)
    looked, number = len(node.gateway.observations), requested(node, loop)
    seen = lock.decisions
    loop.send(Nudge.QUEUE)
    eventually(lambda: lock.decisions > seen)
    node.gateway.fails = None
    assert node.store.queue.finished_pass() < number
    clock[0] += 60
    loop.send(Nudge.QUEUE)
    eventually(lambda: node.store.queue.finished_pass() >= number)
    assert len(node.gateway.observations) > looked
    loop.send(Nudge.STOP)
    thread.join(30)


# Stopping


def test_stopping_waits_for_manifests_under_way(node, lock, agents):
    with daemon(node, lock) as loop:
        session = node.submit(cpu=2)
        agents[0].hangs = True
        loop.send(Nudge.QUEUE)
        eventually(lambda: node.gateway.manifests and node.state(session) is S.PREPARING)
        loop.send(Nudge.STOP)
        node.gateway.let_go.set()
    assert node.state(session) is S.RUNNING


def test_an_answer_that_comes_with_the_request_to_stop_is_recorded(node, lock):
    session = node.submit()
    loop = QueueLoop(Settings(), node.shell, lock)
    node.gateway.meanwhile = lambda: loop.send(Nudge.STOP)
    loop.run()
    assert node.state(session) is S.RUNNING


def test_stopping_does_not_wait_for_an_agent_that_hangs(node, lock, agents):
    running = node.submit()
    node.run()
    with daemon(node, lock, slow_after_s=0.2) as loop:
        agents[0].hangs = True
        loop.send(KernelDied("a1", running.id))
        eventually(lambda: node.gateway.observations[-1] == ["a1"])
    assert not node.gateway.let_go.is_set()
