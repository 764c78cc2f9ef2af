"""The pass among users, agents and bad luck in any order (a state machine)."""

import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from muster.core.lifecycle.transitions import TRANSITIONS
from muster.core.model.session import FINAL, Session, SessionState
from muster.core.values.errors import AnsibleFailedError, ImageError
from tests.properties import examples
from tests.simulated.agents import Failing
from tests.simulated.control_node import ControlNode, Crash, an_agent
from tests.strategies.values import NOW

S = SessionState


@pytest.fixture(scope="module", autouse=True)
def _shared(empty_database: Path) -> None:
    SHARED.empty_database = empty_database


SHARED = SimpleNamespace()


class Cluster(RuleBasedStateMachine):
    """A cluster with users, agents and faults in any order. The control node may die at any commit."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="muster-machine-"))
        shutil.copy(SHARED.empty_database, self.directory / "muster.db")
        agents = [
            an_agent("a1", cpus=4, gpus=2, units_per_gpu=1, swarm="manager"),
            an_agent("a2", cpus=2, swarm="manager"),
            an_agent("a3", cpus=2, swarm="worker"),
        ]
        self.node = ControlNode(self.directory, *agents)
        self.agents = agents
        self.sessions: list[Session] = []

    def teardown(self) -> None:
        try:
            self.everything_ends_and_nothing_is_left()
        finally:
            self.node.store.close()
            shutil.rmtree(self.directory)

    # What users do

    @rule(
        size=st.integers(1, 4),
        cluster_mode=st.sampled_from(["single-node", "multi-node"]),
        cpu=st.sampled_from(["250m", "1", "2", "5"]),
        image=st.sampled_from(["busybox", "busybox", "debian:13"]),
        requeue=st.booleans(),
        command=st.sampled_from([None, "true"]),
        run_on=st.sampled_from(["main", "all"]),
        fgpu=st.sampled_from([0, 0, "0.5", "1.5"]),
        time_limit=st.sampled_from([None, None, "30s"]),
        priority=st.sampled_from([50, 50, 80]),
    )
    def submit(self, size: int, **values: Any) -> None:
        self.sessions.append(self.node.submit(cluster_size=size, **values))

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        session = self.node.session(data.draw(st.sampled_from(self.sessions)))
        if session.state not in FINAL and (session.state is not S.TERMINATING or session.requeue_after_end):
            self.node.end(session)

    @rule(data=st.data())
    def end_one_while_agents_act(self, data: st.DataObject) -> None:
        def meanwhile() -> None:
            self.end(data)

        self._pass(meanwhile=meanwhile if self.sessions else None)

    # What happens to kernels and agents

    @precondition(lambda self: any(agent.containers for agent in self.agents))
    @rule(data=st.data(), code=st.sampled_from([0, 0, 1]), oom=st.booleans())
    def kernel_exits(self, data: st.DataObject, code: int, *, oom: bool) -> None:
        running = [c for agent in self.agents for c in agent.containers.values() if c.state == "running"]
        if running:
            data.draw(st.sampled_from(running)).end(code, oom_killed=oom and code == 1)

    @precondition(lambda self: any(agent.containers for agent in self.agents))
    @rule(data=st.data())
    def kernel_vanishes(self, data: st.DataObject) -> None:
        agent = data.draw(st.sampled_from([agent for agent in self.agents if agent.containers]))
        del agent.containers[data.draw(st.sampled_from(sorted(agent.containers)))]

    @rule(data=st.data(), failing=st.sampled_from(Failing))
    def next_launch_fails(self, data: st.DataObject, failing: Failing) -> None:
        data.draw(st.sampled_from(self.agents)).next_launches.append(failing)

    @rule(data=st.data(), what=st.sampled_from(["reachable", "answer_gets_lost", "module_fails"]))
    def agent_changes(self, data: st.DataObject, what: str) -> None:
        agent = data.draw(st.sampled_from(self.agents))
        if what == "module_fails":
            agent.module_fails = "" if agent.module_fails else "the engine does not answer"
        else:
            setattr(agent, what, not getattr(agent, what))

    @rule(data=st.data(), error=st.sampled_from([None, False, True]))
    def pulls_change(self, data: st.DataObject, error: bool | None) -> None:
        agent = data.draw(st.sampled_from(self.agents))
        agent.pull_fails = None if error is None else ImageError("no such image", permanent=error)

    @rule(data=st.data())
    def an_agent_is_drained_or_resumed(self, data: st.DataObject) -> None:
        known = self.node.store.snapshot(NOW).agents
        if known:
            agent = data.draw(st.sampled_from(known))
            if agent.drain_reason is None:
                self.node.store.agents.drain(agent.id, "disks")
            else:
                self.node.store.agents.resume(agent.id)

    @rule(seconds=st.sampled_from([5, 60, 400]))
    def time_passes(self, seconds: int) -> None:
        self.node.now += seconds

    # What the control node does

    @rule(observe=st.sampled_from([True, True, False]))
    def a_pass(self, *, observe: bool) -> None:
        self._pass(observe=observe)

    @rule(commit=st.integers(1, 12), after_commit=st.booleans())
    def a_pass_that_crashes_at_a_commit(self, commit: int, *, after_commit: bool) -> None:
        self.node.store.crash_in, self.node.store.after_commit = commit, after_commit
        with suppress(Crash):
            self._pass()
        self.node.restart()

    @rule(when=st.sampled_from(["crash_before", "crash_after"]))
    def a_pass_that_crashes_while_agents_act(self, when: str) -> None:
        setattr(self.node.gateway, when, Crash())
        with suppress(Crash):
            self._pass()
        self.node.restart()

    @rule()
    def a_pass_in_which_ansible_fails(self) -> None:
        self.node.gateway.fails = AnsibleFailedError("the inventory cannot be read")
        with suppress(AnsibleFailedError):
            self._pass()
        self.node.gateway.fails = None

    @rule()
    def a_fresh_worker(self) -> None:
        self.node.restart()

    def _pass(self, *, observe: bool = True, meanwhile: Callable[[], None] | None = None) -> None:
        self.node.gateway.meanwhile = meanwhile or (lambda: None)
        try:
            self.node.run(observe=observe)
        finally:
            self.node.gateway.meanwhile = lambda: None
        well = all(a.reachable and not a.module_fails and not a.answer_gets_lost for a in self.agents)
        paused = self.node.worker.ledger.paused_until > self.node.now
        if observe and well and meanwhile is None and not paused:
            self._gangs_are_whole()

    # What must hold

    def _gangs_are_whole(self) -> None:
        for session in self.node.store.get([session.id for session in self.sessions]).values():
            there = [c for agent in self.agents for c in agent.of_session(session.id)]
            assert len(there) == (len(session.kernels) if session.state is S.RUNNING else 0), session
            assert {(c.generation, c.released) for c in there} <= {(session.generation, True)}
        overlays = [s.network for s in self.node.store.search() if s.state is S.RUNNING and s.spans_agents]
        assert sorted(self.node.gateway.overlays) == sorted(overlays)

    @invariant()
    def every_story_is_a_path_through_the_table_that_ends_in_the_present_state(self) -> None:
        for session in self.node.store.get([session.id for session in self.sessions]).values():
            story = self.node.store.story(session.id)
            assert (story[0].from_state, story[0].to_state) == (None, S.PENDING)
            assert story[-1].to_state == session.state
            for before, after in pairwise(story):
                assert after.from_state == before.to_state
                assert after.to_state in TRANSITIONS[SessionState(before.to_state)]

    @invariant()
    def no_container_of_a_running_session_was_removed(self) -> None:
        assert self.node.wrongly_removed == []

    @invariant()
    def commands_begin_when_the_whole_gang_is_there_and_no_earlier_launch_runs(self) -> None:
        assert self.node.wrongly_released == []

    @invariant()
    def agents_hold_no_more_than_they_have(self) -> None:
        for agent in self.agents:
            used = sum(c.resources["cpu_milli"] for c in agent.containers.values())
            assert used <= agent.hardware["cpu_count"] * 1000

    @invariant()
    def a_session_is_placed_exactly_while_it_holds_room(self) -> None:
        for session in self.node.store.snapshot(NOW).sessions:
            assert bool(session.agents) == (session.state is not S.PENDING)

    def everything_ends_and_nothing_is_left(self) -> None:
        for agent in self.agents:
            agent.reachable, agent.answer_gets_lost, agent.module_fails, agent.next_launches = True, False, "", []
        self.node.now += 60
        for session in self.node.store.search():
            if session.state is not S.TERMINATING or session.requeue_after_end:
                self.node.end(session)
        self.node.run()
        assert self.node.store.search() == []
        self.node.run()
        for agent in self.agents:
            assert (agent.containers, agent.networks) == ({}, {})
        assert self.node.gateway.overlays == {}


TestCluster = Cluster.TestCase
TestCluster.settings = examples(10)
