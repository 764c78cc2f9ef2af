"""The pass after a restore: what runs is newer than the database, and is adopted before anything else happens."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from muster.core.lifecycle import transitions
from muster.core.model.session import LaunchStep, Session, SessionState
from muster.service.backup import back_up, restore
from muster.settings import Settings
from tests.simulated.control_node import LOST_AFTER_S, ControlNode, Crash, an_agent
from tests.strategies.sessions import make_session, placed_on

S = SessionState
# With the number of the worker, which is written before it can die.
ADOPTING = 6


@pytest.fixture
def agents():
    return [an_agent(agent_id, cpus=2, swarm="manager", connection="ssh") for agent_id in ("a1", "a2")]


def settings_of(node: ControlNode) -> Settings:
    return Settings(state_dir=node.directory, database=f"sqlite:///{node.directory / 'muster.db'}")


def backed_up(node: ControlNode) -> Path:
    file = node.directory / "backup.tar.gz"
    back_up(settings_of(node), file, force=True)
    return file


def restored(node: ControlNode, backup: Path, *, hold: bool = True) -> None:
    """Restore the backup while nothing works the queue; a fresh worker begins."""
    node.store.close()
    restore(settings_of(node), backup, force=True, hold=hold)
    node.open()


def two_that_fill_their_agents(node: ControlNode) -> tuple[Session, Session]:
    """Return sessions that were launched after the backup that was restored; each fills an agent."""
    sessions = node.submit(cpu=2), node.submit(cpu=2)
    backup = backed_up(node)
    node.run()
    restored(node, backup, hold=False)
    return sessions


def containers(node: ControlNode) -> dict[str, int]:
    """Return the numbers of all containers, by kernel id: one that was made anew has another."""
    return {key: one.number for agent in node.gateway.agents.values() for key, one in agent.containers.items()}


def as_launched(session: Session) -> Session:
    """Return the session without what a restored database cannot know, or says of itself."""
    kernels = tuple(replace(kernel, agent_generation=None) for kernel in session.kernels)
    return replace(session, kernels=kernels, reason="", started_at=None)


def relaunched(node: ControlNode, session: Session) -> None:
    node.store.apply([transitions.restart(node.session(session), "ada", node.now)])
    node.run()


GANG = {"cluster_size": 4, "cluster_mode": "multi-node"}


@pytest.mark.parametrize("hold", [True, False])
@pytest.mark.parametrize("spec", [{}, {"cluster_size": 2}, GANG, {"cluster_size": "1-4", "cluster_mode": "multi-node"}])
def test_a_session_that_was_launched_after_the_backup_runs_on(node, spec, hold):
    session = node.submit(**spec)
    backup = backed_up(node)
    node.run()
    before, there = node.session(session), containers(node)
    restored(node, backup, hold=hold)
    node.run()
    after = node.session(session)
    assert (as_launched(after), containers(node)) == (as_launched(before), there)
    assert after.state is S.RUNNING
    assert abs(after.started_at - before.started_at) <= 1
    assert "put back" in after.reason
    node.end(session)
    node.run()
    assert (node.state(session), containers(node)) == (S.TERMINATED, {})


@pytest.mark.parametrize("spec", [{}, GANG])
def test_a_session_that_was_restarted_after_the_backup_runs_on(node, spec):
    session = node.submit(**spec)
    node.run()
    backup = backed_up(node)
    relaunched(node, session)
    before, there = node.session(session), containers(node)
    restored(node, backup)
    node.run()
    assert (as_launched(node.session(session)), containers(node)) == (as_launched(before), there)


def test_a_session_that_was_queued_again_after_the_backup_runs_on(node, agents):
    session = node.submit(requeue=True)
    node.run()
    backup = backed_up(node)
    agents[0].reboot()
    node.run()
    before, there = node.session(session), containers(node)
    assert (before.requeues, before.state) == (1, S.RUNNING)
    restored(node, backup)
    node.run()
    assert (as_launched(node.session(session)), containers(node)) == (
        replace(as_launched(before), requeues=0),
        there,
    )


def test_what_was_to_be_restarted_in_the_backup_runs_on(node):
    session = node.submit()
    node.run()
    node.store.apply([transitions.restart(node.session(session), "ada", node.now)])
    backup = backed_up(node)
    node.run()
    before, there = node.session(session), containers(node)
    restored(node, backup)
    node.run()
    assert (as_launched(node.session(session)), containers(node)) == (as_launched(before), there)


def test_a_command_that_has_ended_since_ends_its_session_with_its_own_exit_code(node, agents):
    session = node.submit(command="true")
    backup = backed_up(node)
    node.run()
    (agent,) = [agent for agent in agents if agent.containers]
    agent.containers[session.id].end(3)
    restored(node, backup)
    node.run()
    ended = node.session(session)
    assert (ended.state, ended.exit_code) == (S.TERMINATED, 3)
    assert node.store.log(session.id, "main1") is not None


@pytest.mark.parametrize("hold", [True, False])
@pytest.mark.parametrize("was", ["placed", "restarted"])
def test_what_was_to_be_launched_in_the_backup_leaves_its_place_to_what_runs_there(control_node, was, hold):
    node = control_node(an_agent(cpus=2))
    node.run()
    first = placed_on(make_session(1, cpu=2), "a1", state=S.SCHEDULED)
    node.store.add([first])
    if was == "restarted":
        node.run()
        node.store.apply([transitions.restart(node.session(first), "ada", node.now)])
    second = replace(make_session(2, cpu=2), submitted_at=node.now)
    node.store.add([second])
    backup = backed_up(node)
    node.run()
    node.end(first)
    node.run()
    there = containers(node)
    assert (node.state(second), there.keys()) == (S.RUNNING, {second.id})
    restored(node, backup, hold=hold)
    node.run()
    assert (node.state(second), containers(node)) == (S.RUNNING, there)
    assert (node.state(first), node.session(first).held_by) == (S.PENDING, "muster restore" if hold else None)
    node.end(second)
    node.run()
    assert node.state(first) is (S.PENDING if hold else S.RUNNING)


def test_a_launch_that_was_under_way_in_the_backup_is_adopted(node):
    session = node.submit(cluster_size=2)
    node.gateway.crash_after = Crash()
    with suppress(Crash):
        node.run()
    backup, there = backed_up(node), containers(node)
    assert (node.session(session).step, len(there)) == (LaunchStep.STARTING, 2)
    node.restart()
    node.run()
    restored(node, backup)
    node.run()
    assert (node.state(session), containers(node)) == (S.RUNNING, there)


def test_a_launch_that_was_under_way_and_of_which_a_part_is_gone_does_not_begin_again(node, agents):
    session = node.submit(cluster_size=2)
    node.gateway.crash_after = Crash()
    with suppress(Crash):
        node.run()
    backup = backed_up(node)
    (agent,) = [agent for agent in agents if agent.containers]
    agent.containers.pop(session.kernels[1].id)
    restored(node, backup, hold=False)
    node.gateway.crash_after = None
    node.run()
    assert (node.state(session), containers(node)) == (S.TERMINATED, {})
    assert "put back" in node.session(session).reason


def test_what_was_submitted_after_the_backup_is_removed_and_what_was_ended_stays_so(node):
    ends = node.submit()
    node.run()
    node.end(ends)
    backup = backed_up(node)
    node.submit()
    node.run()
    restored(node, backup)
    node.run()
    assert (node.state(ends), containers(node)) == (S.TERMINATED, {})


def test_a_gang_of_which_a_container_is_gone_is_removed(node, agents):
    session = node.submit(**GANG)
    backup = backed_up(node)
    node.run()
    agents[0].containers.pop(session.id)
    restored(node, backup)
    node.run()
    assert (node.state(session), node.session(session).held_by) == (S.PENDING, "muster restore")
    assert containers(node) == {}


def test_an_unfinished_launch_is_not_adopted(node, agents):
    session = node.submit(**GANG)
    backup = backed_up(node)
    node.run()
    for agent in agents:
        for container in agent.containers.values():
            container.released = False
    restored(node, backup)
    node.run()
    assert (node.state(session), containers(node)) == (S.PENDING, {})


def test_nothing_is_launched_or_removed_before_every_agent_was_heard(node, agents):
    runs, waits = two_that_fill_their_agents(node)
    there = containers(node)
    agents[1].hangs = True
    node.run()
    assert (node.state(runs), node.state(waits), containers(node)) == (S.PENDING, S.PENDING, there)
    agents[1].hangs = False
    node.gateway.let_go.set()
    node.go_on_until(lambda: node.state(waits) is S.RUNNING)
    assert (node.state(runs), containers(node)) == (S.RUNNING, there)


def test_an_agent_that_hangs_is_waited_for_until_it_would_be_lost(node, agents):
    runs, waits = two_that_fill_their_agents(node)
    agents[1].hangs = True
    node.run()
    node.now += LOST_AFTER_S
    node.run()
    assert [node.state(session) for session in (runs, waits)].count(S.RUNNING) == 1


@pytest.mark.parametrize("silent", [{"a1"}, {"a1", "a2"}])
def test_what_runs_on_agents_that_do_not_answer_is_adopted_once_they_do(node, agents, silent):
    session = node.submit(**GANG)
    backup = backed_up(node)
    node.run()
    there = containers(node)
    restored(node, backup, hold=False)
    for agent in agents:
        agent.reachable = agent.id not in silent
    for _ in range(3):
        node.run()
        node.now += 60
    assert (node.state(session), containers(node)) == (S.PENDING, there)
    for agent in agents:
        agent.reachable = True
    node.run()
    assert (node.state(session), containers(node)) == (S.RUNNING, there)


def test_an_agent_that_stays_silent_is_lost_and_the_queue_goes_on(node, agents):
    runs, waits = two_that_fill_their_agents(node)
    agents[1].reachable = False
    node.run()
    assert {node.state(runs), node.state(waits)} == {S.PENDING}
    # Each pass of a cron job is a worker of its own.
    node.restart()
    node.now += LOST_AFTER_S
    node.run()
    assert {node.state(runs), node.state(waits)} == {S.RUNNING, S.PENDING}


def test_the_log_says_when_the_queue_stands_still_and_when_it_goes_on(node, caplog):
    caplog.set_level("INFO")
    restored(node, backed_up(node))
    node.run()
    node.run()
    node.restart()
    node.run()
    said = [record.message for record in caplog.records if "all agents have said" in record.message]
    assert len(said) == 2
    assert "nothing begins or ends before" in said[0]
    assert "goes on" in said[1]


def test_an_agent_that_has_left_the_inventory_is_not_waited_for(node, agents):
    session = node.submit()
    backup = backed_up(node)
    node.run()
    (other,) = [agent for agent in agents if not agent.containers]
    restored(node, backup, hold=False)
    del node.gateway.agents[other.id]
    node.run()
    assert node.state(session) is S.RUNNING


def test_a_database_from_before_any_agent_was_known_waits_for_all_of_them(control_node, agents):
    node = control_node(*agents)
    session = node.submit(**GANG)
    backup = backed_up(node)
    node.run()
    there = containers(node)
    restored(node, backup, hold=False)
    node.run()
    assert (node.state(session), containers(node)) == (S.RUNNING, there)


def test_without_a_restore_no_launch_is_adopted_that_an_agent_claims(node, agents):
    victim = node.submit(held_by="ada")

    def claims(said):
        entry = {
            **agents[1]._seen(next(iter(agents[1].containers.values()))),
            "kernel_id": victim.id,
            "session_id": victim.id,
            "generation": 1 << 50,
        }
        return {**said, "report": {**said["report"], "kernels": [*said["report"]["kernels"], entry]}}

    for _ in range(2):
        node.submit(cpu=2)
    node.run()
    agents[1].says = claims
    node.run()
    assert (node.state(victim), node.session(victim).held_by) == (S.PENDING, "ada")


def test_these_are_all_the_commits_of_an_adoption(node):
    node.submit(**GANG)
    backup = backed_up(node)
    node.run()
    restored(node, backup)
    node.run()
    assert node.store.commits == ADOPTING


@pytest.mark.parametrize("after_commit", [False, True])
@pytest.mark.parametrize("commit", range(1, ADOPTING + 1))
def test_a_crash_at_any_commit_of_an_adoption_is_healed_by_the_next_pass(node, commit, after_commit):
    session = node.submit(**GANG)
    backup = backed_up(node)
    node.run()
    there = containers(node)
    restored(node, backup)
    node.store.crash_in, node.store.after_commit = commit, after_commit
    with suppress(Crash):
        node.run()
    node.restart()
    node.run()
    assert (node.state(session), containers(node)) == (S.RUNNING, there)


def test_an_adopted_session_has_the_same_parts_of_gpus_and_cores(control_node):
    agents = [an_agent(id_, gpus=4, units_per_gpu=2, numa_nodes=2, swarm="manager") for id_ in ("a1", "a2")]
    node = control_node(*agents)
    node.run()
    sessions = [
        node.submit(**spec)
        for spec in ({"fgpu": "0.5"}, {"fgpu": "3.5"}, {"gpu": 1}, {"gpu": 1, "cluster_size": 2}, {"fgpu": "0.125"})
    ]
    backup = backed_up(node)
    node.run()
    before = [as_launched(node.session(session)) for session in sessions]
    assert {session.state for session in before} == {S.RUNNING}
    restored(node, backup)
    node.run()
    assert [as_launched(node.session(session)) for session in sessions] == before
