"""Two control nodes work the same agents, each with a database of its own: by mistake, or since one was left behind."""

import itertools
import shutil

import pytest

from muster.core.model.session import SessionState
from muster.core.turn.foreign_kernels import databases_of
from muster.service.backup import back_up, note_restored, restore
from muster.settings import Settings
from tests.simulated.control_node import LOST_AFTER_S, ControlNode, an_agent
from tests.strategies.values import NOW

S = SessionState


@pytest.fixture
def agents():
    return [an_agent("a1", cpus=4), an_agent("a2", cpus=4)]


@pytest.fixture
def other(agents, tmp_path, empty_database):
    """Return another control node with the same agents, whose database is not the newer one."""
    directory = tmp_path / "other"
    directory.mkdir()
    shutil.copy(empty_database, directory / "muster.db")
    made = ControlNode(directory, *agents)
    for agent in agents:
        # They ask one control node's store of each session.
        agent.was_made = agent.was_released = agent.was_removed = lambda _container: None
    made.store.queue.next_generation(NOW - 3600)
    # Other ids than the first one's.
    made.numbers = itertools.count(101)
    yield made
    made.store.close()


def settings_of(node):
    return Settings(state_dir=node.directory, database=f"sqlite:///{node.directory / 'muster.db'}")


def running_on(node, agent_id):
    return {one.session_id for one in node.gateway.agents[agent_id].containers.values() if one.state == "running"}


def problem_of(node, agent_id):
    return next(agent.problem for agent in node.store.agents.all() if agent.id == agent_id)


def test_a_second_control_node_ends_nothing_and_works_with_agents_that_are_free(node, other):
    ran = node.submit(agents=("a1",))
    node.run()
    there, here = other.submit(agents=("a1",)), other.submit(agents=("a2",))
    for _ in range(3):
        other.run()
        node.run()
    assert running_on(node, "a1") == {ran.id}
    assert problem_of(other, "a1").startswith(f"it has containers that another database launched ({ran.id[:8]})")
    assert (other.state(there), other.state(here)) == (S.PENDING, S.RUNNING)
    # The first has the same to say of the other.
    assert problem_of(node, "a2").startswith(f"it has containers that another database launched ({here.id[:8]})")
    assert (problem_of(node, "a1"), problem_of(other, "a2")) == ("", "")
    node.end(ran)
    node.run()
    for _ in range(2):
        other.run()
    assert (other.state(there), problem_of(other, "a1")) == (S.RUNNING, "")


def test_what_began_since_an_agent_was_observed_is_not_ended_either(node, other):
    other.run()
    ran = node.submit(agents=("a1",))
    node.run()
    there = other.submit(agents=("a1",))
    other.run(observe=False)
    assert running_on(node, "a1") == {ran.id}
    assert other.state(there) is S.PENDING
    other.run()
    assert problem_of(other, "a1").startswith("it has containers that another database launched")


def test_what_was_placed_before_that_was_known_goes_elsewhere(node, other):
    other.run()
    node.submit(agents=("a1",))
    node.run()
    placed = other.submit(cpu=3)
    other.run()
    other.run()
    assert other.state(placed) is S.RUNNING
    assert running_on(node, "a2") == {placed.id}


def test_one_that_was_left_behind_ends_nothing_of_the_one_that_has_its_backup(node, other):
    ran = node.submit(agents=("a1",))
    node.run()
    back_up(settings_of(node), node.directory / "backup")
    other.store.close()
    restore(settings_of(other), node.directory / "backup", force=True)
    other.open()
    other.run()
    since = other.submit(agents=("a1",))
    other.run()
    assert running_on(node, "a1") == {ran.id, since.id}
    node.end(ran)
    mistaken = node.submit(agents=("a2",))
    for _ in range(3):
        node.run()
    assert running_on(node, "a1") == {ran.id, since.id}
    assert problem_of(node, "a1").startswith("it has containers that another database launched")
    # The one with the backup has the last word.
    assert running_on(node, "a2") == {mistaken.id}
    for _ in range(3):
        other.run()
    assert running_on(node, "a2") == set()
    assert [problem_of(other, agent_id) for agent_id in ("a1", "a2")] == ["", ""]


def test_the_former_database_that_is_put_back_adopts_what_runs_by_the_later_ones_word(node):
    ran = node.submit(agents=("a1",))
    node.run()
    former = node.directory / "former.db"
    back_up(settings_of(node), node.directory / "backup")
    node.store.close()
    shutil.copy(node.directory / "muster.db", former)
    restore(settings_of(node), node.directory / "backup", force=True, hold=False)
    node.open()
    node.run()
    later = node.submit(agents=("a1",))
    node.run()
    assert running_on(node, "a1") == {ran.id, later.id}
    node.store.close()
    shutil.copy(former, node.directory / "muster.db")
    note_restored(settings_of(node), hold=False)
    node.open()
    node.run()
    assert (running_on(node, "a1"), node.state(ran), problem_of(node, "a1")) == ({ran.id}, S.RUNNING, "")


def test_a_control_node_takes_over_when_somebody_says_so(node, other):
    ran = node.submit(agents=("a1",))
    node.run()
    there = other.submit(agents=("a1",))
    other.run()
    assert other.state(there) is S.PENDING
    other.store.queue.disown_unknown(databases_of(other.store.agents.all()))
    for _ in range(2):
        other.run()
    assert running_on(node, "a1") == {there.id}
    node.run()
    assert problem_of(node, "a1").startswith("it has containers that another database launched")
    assert ran.id not in running_on(node, "a1")


@pytest.mark.parametrize("odd", ["f" * 16, "8" + "0" * 15, "-000000000000001", "", "0" * 17])
def test_an_id_that_no_database_has_is_a_problem_of_the_agent_alone_while_a_restore_is_adopted(node, agents, odd):
    ran = node.submit(agents=("a1",))
    node.run()
    back_up(settings_of(node), node.directory / "backup")
    node.store.close()
    restore(settings_of(node), node.directory / "backup", force=True, hold=False)
    node.open()
    agents[1].database = odd
    waits = node.submit(agents=("a1",))
    node.run()
    assert problem_of(node, "a2").startswith("its answer is refused: report.database: ")
    node.now += LOST_AFTER_S
    node.run()
    assert running_on(node, "a1") == {ran.id, waits.id}
    node.store.queue.disown_unknown(databases_of(node.store.agents.all()))
    agents[1].database = None
    node.run()
    assert problem_of(node, "a2") == ""
