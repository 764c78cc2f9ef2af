"""Gangs over several hosts: where they are put, what they are given, and what is left of them."""

import pytest

from tests.control_node import NOTHING, SMALL
from tests.lab.control_node import LabControlNode
from tests.lab.lab import Lab
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(900)
# Each host can promise 24 GiB; the kernels use hardly any of it.
ONE_TO_A_HOST = ("--cluster-mode", "multi-node", "--mem", "14G")
TWO_TO_A_HOST = ("--cluster-mode", "multi-node", "--mem", "9G")


def environments(node: LabControlNode, name: str) -> dict[str, dict[str, str]]:
    """Return each kernel's environment, in rank order, as its own processes see it."""
    kernels = [kernel["name"] for kernel in node.show(name)["kernels"]]
    lines = {kernel: node.exec(f"{name}:{kernel}", "env").out.splitlines() for kernel in kernels}
    return {kernel: dict(line.split("=", 1) for line in of_kernel) for kernel, of_kernel in lines.items()}


def of_each(by_kernel: dict[str, dict[str, str]], variable: str) -> list[str]:
    return [environment[variable] for environment in by_kernel.values()]


def test_three_kernels_on_three_hosts_are_one_cluster(lab: Lab, lab_node: LabControlNode) -> None:
    name = lab_node.start("--cluster-size", "3", *ONE_TO_A_HOST)
    session = lab_node.show(name)
    assert sorted(kernel["agent"] for kernel in session["kernels"]) == ["lab-1", "lab-2", "lab-3"]
    assert session["cluster_mode"] == "multi-node"

    given = environments(lab_node, name)
    assert set(of_each(given, "BACKENDAI_CLUSTER_MODE")) == {"multi-node"}
    assert set(of_each(given, "BACKENDAI_CLUSTER_HOSTS")) == {"main1,sub1,sub2"}
    assert of_each(given, "WORLD_RANK") == of_each(given, "BACKENDAI_CLUSTER_LOCAL_RANK") == ["0", "1", "2"]
    assert of_each(given, "LOCAL_RANK") == ["0", "0", "0"]
    assert of_each(given, "MASTER_ADDR") == ["main1"] * 3

    assert lab_node.exec(name, "ssh", "sub2", "hostname").out == "sub2\n"
    assert lab_node.exec(f"{name}:sub2", "ssh", "sub1", "ssh", "main1", "hostname").out == "main1\n"
    assert lab_node.run("ssh", name, "ssh sub1 hostname").out == "sub1\n"

    networks = {host.name: lab.left_on(host.name, lab_node.cluster)["networks"] for host in lab.hosts}
    overlay = lab.run(
        "lab-1", "docker", "network", "inspect", "--format", "{{.Driver}} {{.Attachable}}", *networks["lab-1"]
    )
    assert overlay.out == "overlay true\n"
    lab_node.run("terminate", name, "--wait")
    eventually(
        lambda: {host.name: lab.left_on(host.name, lab_node.cluster) for host in lab.hosts},
        lambda left: left == {host.name: NOTHING for host in lab.hosts},
    )


def test_local_ranks_count_the_kernels_of_the_session_on_each_host(lab_node: LabControlNode) -> None:
    name = lab_node.start("--cluster-size", "4", *TWO_TO_A_HOST)
    given = environments(lab_node, name)
    agents = {kernel["name"]: kernel["agent"] for kernel in lab_node.show(name)["kernels"]}
    assert len(set(agents.values())) == 2
    by_host: dict[str, list[str]] = {}
    for kernel, agent in agents.items():
        by_host.setdefault(agent, []).append(given[kernel]["LOCAL_RANK"])
    assert list(by_host.values()) == [["0", "1"], ["0", "1"]]
    assert of_each(given, "WORLD_RANK") == ["0", "1", "2", "3"]
    lab_node.run("terminate", name, "--wait")


def test_the_command_of_a_gang_begins_when_every_host_can_be_reached(lab_node: LabControlNode) -> None:
    command = "for host in sub1 sub2; do ssh $host hostname; done"
    gang = (*SMALL, "--cluster-size", "3", *ONE_TO_A_HOST)
    done = lab_node.run("submit", "--name", "roll-call", *gang, "--wait", "-c", command)
    assert done.code == 0
    assert lab_node.run("logs", "roll-call").out.split() == ["sub1", "sub2"]


@pytest.fixture
def uneven_node(new_lab_node) -> LabControlNode:
    """Return two hosts in a group of their own, with two and four cores to give out; the third one in another."""
    node = new_lab_node()
    node.set_host_variables("lab-1", resource_group="uneven", reserved_cpu=6)
    node.set_host_variables("lab-2", resource_group="uneven", reserved_cpu=4)
    node.set_host_variables("lab-3", resource_group="apart")
    node.start_daemon()
    return node


def test_a_gang_lies_on_one_host_where_one_can_hold_it_and_groups_stay_apart(uneven_node: LabControlNode) -> None:
    requested = ("--cluster-mode", "multi-node", "--cpu", "1", "--resource-group", "uneven")
    four = uneven_node.show(uneven_node.start("--cluster-size", "4", *requested))
    assert {kernel["agent"] for kernel in four["kernels"]} == {"lab-2"}
    assert four["cluster_mode"] == "single-node"
    uneven_node.run("terminate", four["name"], "--wait")

    six = uneven_node.show(uneven_node.start("--cluster-size", "6", *requested))
    agents = [kernel["agent"] for kernel in six["kernels"]]
    assert (agents.count("lab-1"), agents.count("lab-2")) == (2, 4)
    waiting = uneven_node.submit(*SMALL, "--cluster-size", "2", *requested)
    apart = uneven_node.show(uneven_node.start("--resource-group", "apart"))
    assert apart["agents"] == ["lab-3"]
    assert uneven_node.show(waiting)["state"] == "PENDING"
    seven = uneven_node.run("submit", "--name", "seven", *SMALL, "--cluster-size", "7", *requested)
    assert "can never start" in seven.err
    uneven_node.run("cancel", "seven", waiting)
    uneven_node.run("terminate", six["name"], apart["name"], "--wait")
