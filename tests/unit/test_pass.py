"""The pass, with a real store and simulated agents: examples, and a machine that crashes it anywhere."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from muster.ansible_gateway.templates import Templates
from muster.core import lifecycle
from muster.core.agent import AgentState
from muster.core.lifecycle import MAX_LAUNCHES, TRANSITIONS
from muster.core.manifest import LaunchPolicy
from muster.core.session import FINAL, Result, Session, SessionState
from muster.service.logs import KeptLogs
from muster.service.queue_pass import PassDependencies, PassSummary, run_pass
from muster.store.store import Store
from tests.simulated_agents import Container, Failing, SimulatedAgent, SimulatedGateway, report_of
from tests.strategies import NOW, fake_key_pair, make_session, placed_on

S = SessionState


class Crash(BaseException):
    """The control node is gone."""


class CrashingStore(Store):
    """Dies at its n-th writing transaction from now: just before the commit, or just after it."""

    crash_in = 0
    after_commit = False
    commits = 0

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        with super()._writing() as connection:
            yield connection
            self.crash_in -= 1
            if self.crash_in == 0 and not self.after_commit:
                raise Crash
        self.commits += 1
        if self.crash_in == 0 and self.after_commit:
            raise Crash


class ControlNode:
    """Store, simulated agents and a clock, put together as `muster.service.control_node` does it."""

    def __init__(self, directory: Path, *agents: SimulatedAgent) -> None:
        self.directory = directory
        self.gateway = SimulatedGateway(*agents)
        self.now = NOW
        self.numbers = count(1)
        self.open()
        for agent in agents:
            agent.removed = self._removed
        self.wrongly_removed: list[Container] = []

    def open(self) -> None:
        self.store = CrashingStore(f"sqlite:///{self.directory / 'muster.db'}")
        self.logs = KeptLogs(self.directory / "logs")
        self.shell = PassDependencies(
            store=self.store,
            gateway=self.gateway,
            logs=self.logs,
            render=Templates().render,
            make_key_pair=fake_key_pair,
            launch_policy=LaunchPolicy(),
            clock=lambda: self.now,
        )

    def restart(self) -> None:
        self.store.close()
        self.gateway.crash_before = self.gateway.crash_after = None
        self.open()

    def submit(self, **values: object) -> Session:
        session = replace(make_session(next(self.numbers), **values), submitted_at=self.now)
        self.store.add([session])
        return session

    def end(self, session: Session) -> None:
        self.store.apply([lifecycle.end_by_user(self.session(session), "ada", self.now)])

    def session(self, session: Session) -> Session:
        return self.store.get([session.id])[session.id]

    def state(self, session: Session) -> SessionState:
        return self.session(session).state

    def run(self, *, observe: bool = True) -> PassSummary:
        self.now += 1
        return run_pass(self.shell, observe=observe)

    def story(self, session: Session) -> list[str]:
        return [line.to_state for line in self.store.story(session.id)]

    def _removed(self, container: Container) -> None:
        session = self.store.get([container.session_id]).get(container.session_id)
        if session and session.state is S.RUNNING and session.generation == container.generation:
            self.wrongly_removed.append(container)


def an_agent(agent_id: str = "a1", **hardware: Any) -> SimulatedAgent:
    return SimulatedAgent(agent_id, report_of(agent_id, **hardware))


@pytest.fixture
def agent() -> SimulatedAgent:
    return an_agent(cpus=4)


@pytest.fixture(autouse=True)
def _migrated(tmp_path: Path, empty_database: Path) -> None:
    shutil.copy(empty_database, tmp_path / "muster.db")


@pytest.fixture
def node(tmp_path: Path, agent: SimulatedAgent) -> Iterator[ControlNode]:
    made = ControlNode(tmp_path, agent)
    yield made
    made.store.close()


# Examples


def test_one_pass_takes_a_session_from_the_queue_to_running(node, agent):
    session = node.submit(cluster_size=3)
    summary = node.run()
    assert (summary.scheduled, summary.started, summary.changed) == ([session.id], [session.id], True)
    assert node.story(session) == ["PENDING", "SCHEDULED", "PREPARING", "RUNNING"]
    assert [c.name for c in agent.of_session(session.id)] == ["main1", "sub1", "sub2"]
    running = node.session(session)
    assert (running.main.ssh_port, running.main.container_state) == (49153, "running")
    assert running.public_key == f"ssh-ed25519 AAAA muster-{session.name}"


def test_a_session_that_waits_starts_when_another_ends(node):
    first, second = node.submit(cpu=3), node.submit(cpu=3)
    assert node.run().waiting == 1
    assert node.session(second).wait["code"] == "busy"
    node.end(first)
    node.run()
    node.run()
    assert (node.state(first), node.state(second)) == (S.TERMINATED, S.RUNNING)
    assert node.session(second).wait == {}


def test_a_batch_session_ends_with_its_command_and_leaves_its_log(node, agent):
    session = node.submit(command="python train.py", cluster_size=2)
    node.run()
    agent.containers[session.id].end(3)
    node.run()
    ended = node.session(session)
    assert (ended.state, ended.result, ended.exit_code) == (S.TERMINATED, Result.FAILURE, 3)
    assert ended.ended_at is not None
    assert (agent.containers, agent.networks) == ({}, {})
    assert node.logs.read(session.id, "main1") == b"main1\n"
    assert node.logs.read(session.id, "sub1") == b"sub1\n"


def test_nothing_is_converged_and_nothing_written_when_there_is_nothing_to_do(node):
    node.submit()
    node.submit(cpu=4)
    node.run()
    asked, known = len(node.gateway.manifests), node.store.search()
    for _ in range(3):
        assert not node.run().changed
    assert len(node.gateway.manifests) == asked
    assert node.store.search() == known


def test_without_observing_the_last_reports_serve(node):
    node.run()
    session = node.submit()
    node.run(observe=False)
    assert (node.state(session), node.gateway.observations) == (S.RUNNING, 1)


@pytest.mark.parametrize("stray", [{"session_id": "stray"}, {"generation": 1}])
def test_a_container_that_no_session_accounts_for_is_removed(node, agent, stray):
    session = node.submit()
    node.run()
    agent.containers["stray"] = replace(agent.containers[session.id], kernel_id="stray", **stray)
    assert not node.run().changed
    assert list(agent.containers) == [session.id]
    assert node.state(session) is S.RUNNING


def test_a_network_that_no_session_accounts_for_is_removed(node, agent):
    session = node.submit()
    node.run()
    agent.networks["stray"] = 1
    node.run()
    assert list(agent.networks) == [session.id]


def test_a_launch_over_two_agents_is_repeated_when_both_answer(tmp_path):
    first, second = an_agent("a1"), an_agent("a2")
    node = ControlNode(tmp_path, first, second)
    session = placed_on(make_session(cluster_size=2), "a1", "a2", state=S.PREPARING)
    node.store.add([session])
    node.run()
    assert node.state(session) is S.RUNNING
    second.reachable = False
    other = placed_on(make_session(2, cluster_size=2), "a1", "a2", state=S.PREPARING)
    node.store.add([other])
    node.run()
    assert (node.state(other), first.of_session(other.id)) == (S.PREPARING, [])
    second.reachable = True
    node.run()
    assert node.state(other) is S.RUNNING
    assert [len(agent.of_session(other.id)) for agent in (first, second)] == [1, 1]
    node.store.close()


def test_a_launch_that_fails_now_is_tried_again_and_may_succeed(node, agent):
    agent.next_launches = [Failing.TRANSIENT]
    session = node.submit()
    node.run()
    assert node.state(session) is S.PENDING
    assert node.session(session).agents == ()
    assert (agent.containers, agent.networks) == ({}, {})
    node.run()
    assert node.session(session).wait["code"] == "retry"
    node.now += 60
    node.run()
    assert node.state(session) is S.RUNNING


def test_a_launch_that_fails_again_and_again_is_an_error(node, agent):
    agent.next_launches = [Failing.TRANSIENT] * MAX_LAUNCHES
    session = node.submit()
    for _ in range(MAX_LAUNCHES):
        assert node.state(session) is S.PENDING
        node.run()
        node.now += 3600
    assert (node.state(session), node.session(session).result) == (S.ERROR, Result.FAILURE)


def test_a_launch_that_fails_for_good_is_an_error_at_once(node, agent):
    agent.next_launches = [Failing.PERMANENT]
    session = node.submit()
    assert node.run().failed == [session.id]
    assert "it fails" in node.session(session).reason


def test_an_agent_whose_module_fails_has_failed_the_launch(node, agent):
    agent.module_fails = "the engine does not answer"
    session = node.submit()
    assert node.run().problems == {"a1": "the engine does not answer"}
    assert node.state(session) is S.PENDING
    assert "the engine does not answer" in node.session(session).reason


def test_an_unreachable_agent_is_lost_and_its_sessions_stay_as_they_are(node, agent):
    session = node.submit()
    node.run()
    agent.reachable = False
    assert node.run().problems == {"a1": "it does not answer"}
    assert node.store.snapshot(NOW).agents[0].state is AgentState.LOST
    assert node.state(session) is S.RUNNING
    waits = node.submit()
    node.run()
    assert "can be reached" in str(node.session(waits).wait["message"])
    agent.reachable = True
    node.run()
    assert (node.state(session), node.state(waits)) == (S.RUNNING, S.RUNNING)


def test_a_session_on_an_unreachable_agent_ends_when_the_agent_is_back(node, agent):
    session = node.submit()
    node.run()
    agent.reachable = False
    node.end(session)
    node.run()
    assert node.state(session) is S.TERMINATING
    agent.reachable = True
    node.run()
    assert node.state(session) is S.TERMINATED
    assert agent.containers == {}


def test_a_launch_whose_answer_was_lost_is_adopted(node, agent):
    agent.answer_gets_lost = True
    session = node.submit()
    node.run()
    assert node.state(session) is S.PREPARING
    agent.answer_gets_lost = False
    node.run()
    assert node.story(session) == ["PENDING", "SCHEDULED", "PREPARING", "RUNNING"]
    assert agent.made == 1


def test_a_session_ended_while_it_is_launched_does_not_stay(node, agent):
    session = node.submit()
    node.gateway.meanwhile = lambda: node.end(session)
    node.run()
    assert node.state(session) is S.TERMINATING
    node.gateway.meanwhile = lambda: None
    node.run()
    assert node.logs.read(session.id, "main1") == b"main1\n"
    assert node.state(session) is S.TERMINATED
    assert agent.containers == {}


def test_other_sessions_are_kept_while_one_is_launched_and_one_is_stopped(node, agent):
    kept, ended = node.submit(), node.submit()
    node.run()
    node.end(ended)
    started = node.submit()
    node.run()
    desired = {entry["id"]: entry["desired"] for entry in node.gateway.manifests[-1]["a1"]["sessions"]}
    assert desired == {kept.id: "keep", ended.id: "stop", started.id: "launch"}
    assert agent.containers[kept.id].number == 1


def test_an_agent_taken_out_of_the_inventory_is_forgotten_once_nothing_is_on_it(tmp_path):
    node = ControlNode(tmp_path, an_agent("a1"), an_agent("a2"))
    session = node.submit()
    node.run()
    held = node.session(session).agents[0]
    for agent_id in list(node.gateway.agents):
        del node.gateway.agents[agent_id]
    node.run()
    (agent,) = node.store.snapshot(NOW).agents
    assert (agent.id, agent.state, agent.problem) == (held, AgentState.LOST, "it is no longer in the inventory")
    node.store.close()


def test_a_manifest_says_all_that_a_kernel_needs(node):
    session = node.submit(
        cluster_size=2, cpu=1.5, mem="2G", shm="128M", command="hostname", env={"A": "1"}, mounts=["data:/data:ro"]
    )
    node.run()
    manifest = node.gateway.manifests[-1]["a1"]
    assert manifest["generation"] == node.session(session).generation
    (entry,) = manifest["sessions"]
    main, sub = entry["kernels"]
    assert (main["command"], sub["command"]) == (["sh", "-c", "hostname"], [])
    assert (len(main["publish"]), sub["publish"]) == (1, [])
    assert main["env"]["A"] == "1"
    assert main["resources"] == {
        "cpu_milli": 1500,
        "mem_bytes": 2 << 30,
        "shm_bytes": 128 << 20,
        "pids": 4096,
        "cpuset": None,
        "gpu_uuids": [],
    }
    assert main["mounts"] == [{"folder": "data", "target": "/data", "read_only": True}]
    assert entry["network"]["name"] == f"muster-{session.id.replace('-', '')[:12]}"
    assert main["files"]["id_ed25519"] == {"content": "private", "mode": "0600"}
    assert "sub1 slots=1" in main["files"]["hostfile"]["content"]


def test_a_kernel_gets_the_gpus_that_it_was_given(tmp_path):
    node = ControlNode(tmp_path, an_agent(gpus=2, units_per_gpu=1))
    node.submit(fgpu="0.5")
    node.submit(gpu=1)
    node.run()
    sessions = node.gateway.manifests[-1]["a1"]["sessions"]
    given = [entry["kernels"][0]["resources"]["gpu_uuids"] for entry in sessions]
    assert sorted(map(len, given)) == [1, 1]
    assert given[0] != given[1]
    node.store.close()


@pytest.mark.parametrize("after_commit", [False, True])
@pytest.mark.parametrize("commit", range(1, 8))
def test_a_crash_at_any_commit_of_a_launch_is_healed_by_the_next_pass(node, agent, commit, after_commit):
    session = node.submit(cluster_size=2)
    node.store.crash_in, node.store.after_commit = commit, after_commit
    with suppress(Crash):
        node.run()
    node.restart()
    node.run()
    assert node.state(session) is S.RUNNING
    assert [c.name for c in agent.of_session(session.id)] == ["main1", "sub1"]
    assert {c.generation for c in agent.containers.values()} == {node.session(session).generation}


@pytest.mark.parametrize("after_commit", [False, True])
@pytest.mark.parametrize("commit", range(1, 6))
def test_a_crash_at_any_commit_of_an_end_is_healed_and_the_log_is_kept(node, agent, commit, after_commit):
    session = node.submit(command="true")
    node.run()
    agent.containers[session.id].end(0)
    node.store.crash_in, node.store.after_commit = commit, after_commit
    with suppress(Crash):
        node.run()
    node.restart()
    node.run()
    ended = node.session(session)
    assert (ended.state, ended.result, ended.main.exit_code) == (S.TERMINATED, Result.SUCCESS, 0)
    assert node.logs.read(session.id, "main1") == b"main1\n"
    assert agent.containers == {}


@pytest.mark.parametrize("when", ["crash_before", "crash_after"])
def test_a_crash_while_agents_act_is_healed(node, agent, when):
    session = node.submit()
    setattr(node.gateway, when, Crash())
    with pytest.raises(Crash):
        node.run()
    node.restart()
    node.run()
    assert node.state(session) is S.RUNNING
    assert agent.made == 1


# The machine


@pytest.fixture(scope="module", autouse=True)
def _shared(empty_database: Path) -> None:
    SHARED.empty_database = empty_database


SHARED = SimpleNamespace()


class Cluster(RuleBasedStateMachine):
    """Users, agents and bad luck in any order; the control node may die at any commit."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="muster-machine-"))
        shutil.copy(SHARED.empty_database, self.directory / "muster.db")
        agents = [an_agent("a1", cpus=4, gpus=2, units_per_gpu=1), an_agent("a2", cpus=2)]
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
        size=st.integers(1, 3),
        cpu=st.sampled_from(["250m", "1", "2", "5"]),
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
        if session.state not in FINAL | {S.TERMINATING}:
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

    @rule(seconds=st.sampled_from([5, 60]))
    def time_passes(self, seconds: int) -> None:
        self.node.now += seconds

    # What the control node does

    @rule(observe=st.sampled_from([True, True, False]))
    def a_pass(self, *, observe: bool) -> None:
        self._pass(observe=observe)

    @rule(commit=st.integers(1, 8), after_commit=st.booleans())
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

    def _pass(self, *, observe: bool = True, meanwhile: Callable[[], None] | None = None) -> None:
        self.node.gateway.meanwhile = meanwhile or (lambda: None)
        try:
            self.node.run(observe=observe)
        finally:
            self.node.gateway.meanwhile = lambda: None
        well = all(a.reachable and not a.module_fails and not a.answer_gets_lost for a in self.agents)
        if observe and well and meanwhile is None:
            self._gangs_are_whole()

    # What must hold

    def _gangs_are_whole(self) -> None:
        for session in self.node.store.get([session.id for session in self.sessions]).values():
            there = [c for agent in self.agents for c in agent.of_session(session.id)]
            assert len(there) == (len(session.kernels) if session.state is S.RUNNING else 0), session
            assert {c.generation for c in there} <= {session.generation}

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
        for session in self.node.store.search():
            if session.state is not S.TERMINATING:
                self.node.end(session)
        self.node.run()
        assert self.node.store.search() == []
        self.node.run()
        for agent in self.agents:
            assert (agent.containers, agent.networks) == ({}, {})


TestCluster = Cluster.TestCase
TestCluster.settings = settings(max_examples=max(10, settings.default.max_examples // 2), deadline=None)
