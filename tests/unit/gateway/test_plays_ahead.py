"""Plays that are started ahead do what new ones do, on the hosts that the inventory names by then, or not at all."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from muster.ansible_gateway.gateway import AnsibleGateway
from muster.ansible_gateway.play_order import PlayOrder
from muster.ansible_gateway.playbook import Inventory
from muster.ansible_gateway.plays_ahead import PlaysAhead, WaitingPlay, inventory_stamp
from muster.core.turn.answer import AgentAnswer
from muster.core.values.errors import AnsibleFailedError
from tests.waiting import eventually

OBSERVE = {"muster_cluster": "muster"}
STARTS_ONE = """
import sys, time
from pathlib import Path
from muster.ansible_gateway.playbook import Inventory
from muster.ansible_gateway.plays_ahead import WaitingPlay
print(WaitingPlay("observe", Inventory(Path(sys.argv[1]))).directory, flush=True)
time.sleep(600)
"""


def python_that_says(path: Path, words: str) -> Path:
    """Write what takes the place of an agent's Python, and says this of whatever it is sent."""
    path.write_text(f'#!/bin/sh\ncat >/dev/null\necho \'{{"failed": true, "msg": "{words}"}}\'\n', encoding="utf-8")
    path.chmod(0o755)
    return path


def write_inventory(path: Path, **pythons: Path) -> None:
    hosts = {
        name: {"ansible_connection": "local", "ansible_python_interpreter": str(python)}
        for name, python in pythons.items()
    }
    path.write_text(yaml.safe_dump({"all": {"children": {"agents": {"hosts": hosts}}}}), encoding="utf-8")


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    path = tmp_path / "inventory" / "hosts.yml"
    path.parent.mkdir()
    write_inventory(path, a1=python_that_says(tmp_path / "one", "one"), a2=python_that_says(tmp_path / "two", "two"))
    return path


@pytest.fixture
def ahead(inventory: Path) -> Iterator[PlaysAhead]:
    plays = PlaysAhead(Inventory(inventory), {"observe": 1})
    plays.refill()
    yield plays
    plays.close()


@pytest.fixture
def gateway(inventory: Path) -> Iterator[AnsibleGateway]:
    """Return a gateway that has a play waiting."""
    gateway = AnsibleGateway(Inventory(inventory), "muster", ahead={"observe": 1})
    gateway._ahead.refill()
    yield gateway
    gateway.close()


def taken(ahead: PlaysAhead) -> WaitingPlay:
    play = ahead.take("observe")
    assert play is not None
    return play


def answers_of(play: WaitingPlay, limit: str) -> dict[str, str]:
    answers: list[AgentAnswer] = []
    read = lambda agent_id, _result, failure: AgentAnswer(agent_id, problem=failure)  # noqa: E731
    assert play.run(PlayOrder(limit, OBSERVE), read, answers.append)
    return {answer.agent_id: answer.problem for answer in answers}


def observed(gateway: AnsibleGateway, *agent_ids: str) -> dict[str, str]:
    answers: list[AgentAnswer] = []
    gateway.observe(agent_ids, answers.append)
    assert len(answers) == len({answer.agent_id for answer in answers})
    return {answer.agent_id: answer.problem for answer in answers}


def processes_in(directory: Path) -> list[int]:
    """Return the processes that work in this directory: a play and its client."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink() == directory:
                found.append(int(process.name))
        except OSError:
            continue
    return found


def test_a_play_that_waited_visits_the_agents_of_its_order_and_no_other(ahead):
    play = taken(ahead)
    assert answers_of(play, "a2") == {"a2": "two"}
    assert not play.directory.exists()


def test_a_gateway_uses_the_play_that_waits_and_starts_another(gateway):
    (first,) = gateway._ahead._plays["observe"]
    assert observed(gateway, "a1", "a2") == {"a1": "one", "a2": "two"}
    assert not first.directory.exists()
    (second,) = gateway._ahead._plays["observe"]
    assert second is not first
    assert observed(gateway, "a1") == {"a1": "one"}


def test_more_agents_than_an_argument_can_name_are_visited(gateway, inventory):
    others = [f"{number:0>100}" for number in range(2_000)]
    assert observed(gateway, "a1", *others) == {"a1": "one"}
    assert observed(AnsibleGateway(Inventory(inventory), "muster"), "a2", *others) == {"a2": "two"}


def test_a_changed_inventory_is_read_again(gateway, inventory, tmp_path):
    write_inventory(inventory, a1=python_that_says(tmp_path / "other", "another"))
    assert observed(gateway) == {"a1": "another"}


def test_changed_variables_beside_the_inventory_are_read_again(gateway, inventory, tmp_path):
    (inventory.parent / "host_vars").mkdir()
    python = python_that_says(tmp_path / "other", "another")
    (inventory.parent / "host_vars" / "a3.yml").write_text(f"ansible_python_interpreter: {python}\n", encoding="utf-8")
    hosts = inventory.read_text(encoding="utf-8").replace(
        "hosts:\n", "hosts:\n        a3: {ansible_connection: local}\n", 1
    )
    inventory.write_text(hosts, encoding="utf-8")
    assert observed(gateway, "a3") == {"a3": "another"}
    (inventory.parent / "host_vars" / "a3.yml").write_text(
        f"ansible_python_interpreter: {tmp_path / 'one'}\n", encoding="utf-8"
    )
    assert observed(gateway, "a3") == {"a3": "one"}


def test_a_play_that_was_killed_while_it_waited_is_replaced_by_a_new_one(gateway):
    (play,) = gateway._ahead._plays["observe"]
    eventually(lambda: len(processes_in(play.directory)) == 2)
    for process in processes_in(play.directory):
        os.kill(process, signal.SIGKILL)
    assert observed(gateway, "a1") == {"a1": "one"}


def test_an_order_that_is_too_long_for_a_pipe_goes_to_a_new_play(gateway):
    names = [f"a{number:0100}" for number in range(1000)]
    assert observed(gateway, "a1", *names) == {"a1": "one"}


@pytest.mark.parametrize("waits", [True, False])
def test_agents_that_the_inventory_does_not_name_are_no_success(gateway, waits):
    if not waits:
        gateway.close()
    with pytest.raises(AnsibleFailedError, match="leaves us with no hosts to target"):
        gateway.observe(["nobody"], lambda _: None)


def test_a_play_that_nobody_needed_leaves_nothing(ahead):
    (play,) = ahead._plays["observe"]
    eventually(lambda: len(processes_in(play.directory)) == 2)
    ahead.close()
    assert not play.directory.exists()
    assert processes_in(play.directory) == []
    ahead.refill()
    assert ahead.take("observe") is None


def test_a_play_that_waits_ends_when_its_control_node_dies(inventory):
    with subprocess.Popen(
        [sys.executable, "-c", STARTS_ONE, str(inventory)], stdout=subprocess.PIPE, text=True
    ) as node:
        directory = Path(node.stdout.readline().strip())
        eventually(lambda: len(processes_in(directory)) == 2)
        node.kill()
    eventually(lambda: processes_in(directory) == [])


def test_an_inventory_that_may_change_by_itself_has_no_stamp(inventory):
    assert inventory_stamp(inventory) is not None
    assert inventory_stamp(inventory.parent) is not None
    (inventory.parent / "more.yml").write_text("plugin: muster_cluster\n", encoding="utf-8")
    assert inventory_stamp(inventory.parent) is None
    (inventory.parent / "more.yml").unlink()
    inventory.chmod(0o755)
    assert inventory_stamp(inventory) is None
    assert inventory_stamp(inventory.parent / "missing") is None


def test_nothing_waits_for_an_inventory_that_may_change_by_itself(inventory):
    inventory.write_text("plugin: muster_cluster\n", encoding="utf-8")
    plays = PlaysAhead(Inventory(inventory), {"observe": 1})
    plays.refill()
    assert plays.take("observe") is None
