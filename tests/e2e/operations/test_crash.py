"""kill -9 at the commits of a pass, and in the middle of its playbook: the next passes make everything right.

tests/unit/queue/passes kill the worker before and after each single commit; here the real one dies, again and again.
"""

import docker
import pytest

from tests.control_node import NOTHING, SMALL, UNTIL_ENDED, ControlNode
from tests.e2e.operations.dying_pass import die_at
from tests.waiting import eventually


def settle(node: ControlNode) -> dict[str, dict]:
    """Make passes until one changes nothing. Return all sessions by name."""
    eventually(lambda: not node.run("pass", "--wait", "--json", check=False).json()["changed"])
    return {session["name"]: session for session in node.run("ls", "--all", "--json").json()}


@pytest.fixture
def busy_node(new_node) -> ControlNode:
    """Return a node with a session that stays, one that shall end, one that has ended, and one that shall start."""
    node = new_node()
    node.submit(*SMALL, "--name", "stays", "--cluster-size", "2")
    node.submit(*SMALL, "--name", "ends")
    node.submit(*SMALL, "--name", "ended", "-c", f"{UNTIL_ENDED}; echo done")
    node.run("pass")
    assert node.show("stays")["state"] == "RUNNING"
    end_unnoticed(node)
    node.run("terminate", "ends")
    node.submit(*SMALL, "--name", "starts", "--cluster-size", "2")
    return node


def end_unnoticed(node: ControlNode) -> None:
    """End the command of `ended`, with no pass to notice it yet."""
    node.end_command("ended")
    container = docker.from_env().containers.get(node.show("ended")["kernels"][0]["container_id"])
    assert container.wait(timeout=60)["StatusCode"] == 0


def assert_all_is_well(node: ControlNode, container_of_stays: str) -> None:
    sessions = settle(node)
    states = {name: (session["state"], session["result"]) for name, session in sessions.items()}
    assert states == {
        "stays": ("RUNNING", None),
        "ends": ("TERMINATED", "SUCCESS"),
        "ended": ("TERMINATED", "SUCCESS"),
        "starts": ("RUNNING", None),
    }
    assert sessions["stays"]["kernels"][0]["container_id"] == container_of_stays
    assert node.exec("starts", "ssh", "sub1", "hostname").out == "sub1\n"
    assert node.run("logs", "ended").out == "done\n"
    running = {f"muster-{sessions[name]['id'].replace('-', '')[:12]}" for name in ("stays", "starts")}
    left = node.left_on_host()
    assert set(left["networks"]) == running
    assert sorted(left["containers"]) == sorted(
        f"{network}-{kernel}" for network in running for kernel in ("main1", "sub1")
    )
    assert set(left["key directories"]) == {sessions["stays"]["id"], sessions["starts"]["id"]}


def test_passes_that_are_killed_one_commit_later_each_time_are_healed_by_the_next(busy_node):
    container = busy_node.show("stays")["kernels"][0]["container_id"]
    commit = 1
    while die_at(busy_node, commit):
        commit += 1
    assert commit > 4
    assert_all_is_well(busy_node, container)
    busy_node.end_everything()
    assert busy_node.left_on_host() == NOTHING


def test_a_daemon_killed_in_the_middle_of_a_launch_is_healed_by_the_next(busy_node):
    container = busy_node.show("stays")["kernels"][0]["container_id"]
    busy_node.start_daemon()
    busy_node.reaches("starts", "PREPARING")
    busy_node.daemon.kill()
    busy_node.daemon.wait()
    busy_node.daemon = None
    assert_all_is_well(busy_node, container)
    busy_node.end_everything()
    assert busy_node.left_on_host() == NOTHING


def network_of(node: ControlNode, name: str) -> str:
    return f"muster-{node.show(name)['id'].replace('-', '')[:12]}"


def remove_network(node: ControlNode, name: str) -> None:
    network = docker.from_env().networks.get(network_of(node, name))
    for kernel in node.show(name)["kernels"]:
        network.disconnect(kernel["container_id"], force=True)
    network.remove()


def test_a_session_whose_network_was_removed_is_put_back_on_it_and_runs_on(new_node):
    node = new_node()
    gang = node.submit(*SMALL, "--cluster-size", "2")
    node.run("pass")
    before = node.show(gang)
    assert before["state"] == "RUNNING"
    remove_network(node, gang)
    assert node.exec(gang, "ssh", "sub1", "hostname", check=False).code != 0
    node.run("pass")
    after = node.show(gang)
    assert after["state"] == "RUNNING"
    assert [k["container_id"] for k in after["kernels"]] == [k["container_id"] for k in before["kernels"]]
    assert all(kernel["address"] for kernel in after["kernels"])
    assert node.exec(gang, "ssh", "sub1", "hostname").out == "sub1\n"
    assert node.run("ssh", gang, "hostname").out == "main1\n"


def test_a_session_whose_network_cannot_be_made_again_ends_with_that_cause(new_node):
    node = new_node()
    gang, other = (node.submit(*SMALL, "--cluster-size", size) for size in ("2", "1"))
    node.run("pass")
    remove_network(node, gang)
    foreign = docker.from_env().networks.create(network_of(node, gang))
    try:
        node.run("pass", "--wait")
    finally:
        foreign.remove()
    ended = node.show(gang)
    assert (ended["state"], ended["result"]) == ("TERMINATED", "FAILURE")
    assert "main1: its network was removed from this agent and cannot be made again" in ended["reason"]
    assert node.show(other)["state"] == "RUNNING"
