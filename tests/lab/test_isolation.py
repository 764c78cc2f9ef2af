"""Sessions on the same hosts cannot reach each other, and from outside only main1 can be reached."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TypeVar

import pytest

from tests.lab.control_node import LabControlNode
from tests.lab.lab import Lab
from tests.waiting import eventually

T = TypeVar("T")
U = TypeVar("U")

pytestmark = pytest.mark.timeout(900)
BUSYBOX = "/opt/muster/runtime/bin/busybox"
SSHD = 2200
# A connection alone says nothing: a proxy on the way out of a site may take every one.
GREETED = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), 3) as connection:
    connection.settimeout(3)
    sys.exit(not connection.recv(8).startswith(b"SSH-"))
"""


@pytest.fixture(scope="module")
def node(new_lab_node) -> LabControlNode:
    """Return a control node with lab-3 in a resource group of its own."""
    node = new_lab_node()
    node.set_host_variables("lab-3", resource_group="apart")
    node.start_daemon()
    return node


@pytest.fixture(scope="module")
def neighbours(node: LabControlNode) -> Iterator[tuple[dict, dict]]:
    """Yield two sessions with kernels on the same two hosts: two on one and one on the other, for want of memory."""
    gang = ("--cluster-mode", "multi-node", "--cluster-size", "3")
    names = [node.start(*gang, "--mem", "9G"), node.start(*gang, "--mem", "5G")]
    first, second = (node.show(name) for name in names)
    assert set(first["agents"]) == set(second["agents"]) == {"lab-1", "lab-2"}
    yield first, second
    node.run("terminate", *names, "--wait")


def process_of(lab: Lab, kernel: dict) -> str:
    return lab.run(
        kernel["agent"], "docker", "inspect", "--format", "{{.State.Pid}}", kernel["container_id"]
    ).out.strip()


def addresses_of(lab: Lab, kernel: dict) -> list[str]:
    """Return all addresses of a kernel, on any network."""
    command = ("nsenter", "--net", "--target", process_of(lab, kernel), "ip", "-4", "-oneline", "address")
    found = re.findall(r"inet ([0-9.]+)/", lab.run(kernel["agent"], *command).out)
    return [address for address in found if not address.startswith("127.")]


def reaches(lab: Lab, kernel: dict, address: str) -> tuple[bool, bool]:
    """Return whether root inside the kernel's network gets a ping's answer, and an sshd's greeting."""
    inside = ("nsenter", "--net", "--target", process_of(lab, kernel))
    ping = lab.run(kernel["agent"], *inside, BUSYBOX, "ping", "-c", "1", "-W", "2", address, check=False)
    greets = lab.run(kernel["agent"], *inside, "python3", "-c", GREETED, address, str(SSHD), check=False)
    return ping.code == 0, greets.code == 0


def test_kernels_of_one_session_reach_each_other_over_the_overlay(lab: Lab, neighbours: tuple[dict, dict]) -> None:
    session, _ = neighbours
    main, *subs = session["kernels"]
    assert [reaches(lab, main, sub["address"]) for sub in subs] == [(True, True)] * len(subs)


def test_no_address_of_another_session_on_the_same_hosts_can_be_reached(
    lab: Lab, neighbours: tuple[dict, dict]
) -> None:
    session, other = neighbours
    there = {address for kernel in other["kernels"] for address in addresses_of(lab, kernel)}
    # On the overlay, and on the bridge that leads out of the host.
    assert len(there) >= len(other["kernels"]) + 1
    tried = [(kernel, address) for kernel in session["kernels"] for address in sorted(there)]
    reached = all_at_once(lambda attempt: reaches(lab, *attempt), tried)
    answers = {(kernel["name"], address): answer for (kernel, address), answer in zip(tried, reached, strict=True)}
    own = {address for kernel in session["kernels"] for address in addresses_of(lab, kernel)}
    # Hosts number their own bridges alike: such an address is the kernel's own on another host.
    strange = {key: answer for key, answer in answers.items() if key[1] not in own}
    assert {key: answer for key, answer in strange.items() if any(answer)} == {}


def test_no_kernel_is_on_the_default_bridge(lab: Lab, neighbours: tuple[dict, dict]) -> None:
    for agent in {kernel["agent"] for session in neighbours for kernel in session["kernels"]}:
        assert lab.run(agent, "docker", "network", "inspect", "--format", "{{.Containers}}", "bridge").out == "map[]\n"


def all_at_once(look: Callable[[T], U], things: Sequence[T]) -> list[U]:
    """Look at all things at once: where all is well, each look waits in vain."""
    with ThreadPoolExecutor(len(things)) as pool:
        return list(pool.map(look, things))


@contextmanager
def route(network: str, gateway: str) -> Iterator[None]:
    """Add a route, as a stranger on the hosts' network would."""
    subprocess.run(["ip", "route", "add", network, "via", gateway], check=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "route", "del", network, "via", gateway], check=True)


def answers_here(address: str, port: int) -> bool:
    knock = [sys.executable, "-c", GREETED, address, str(port)]
    return subprocess.run(knock, capture_output=True, check=False).returncode == 0


def assert_that_from_outside_only_main1_answers(lab: Lab, session: dict) -> None:
    main, *subs = session["kernels"]
    published = {host.name: host.address for host in lab.hosts}
    assert answers_here(published[main["agent"]], main["ssh_port"])
    assert [sub["ssh_port"] for sub in subs] == [None] * len(subs)
    for agent in set(session["agents"]):
        addresses = [
            address
            for kernel in session["kernels"]
            for address in addresses_of(lab, kernel)
            if kernel["agent"] == agent
        ]
        with ExitStack() as stack:
            for address in addresses:
                stack.enter_context(route(f"{address}/32", published[agent]))
            answers = dict(zip(addresses, all_at_once(lambda at: answers_here(at, SSHD), addresses), strict=True))
        assert not any(answers.values()), answers


def test_from_outside_only_the_published_port_of_a_gang_can_be_reached(lab: Lab, neighbours: tuple[dict, dict]) -> None:
    assert_that_from_outside_only_main1_answers(lab, neighbours[0])


def test_nor_more_of_a_session_on_one_host_that_was_switched_off_and_on(lab: Lab, node: LabControlNode) -> None:
    lab.power_off("lab-3")
    lab.power_on("lab-3")
    eventually(lambda: lab.run("lab-3", "docker", "version", check=False).code, lambda code: code == 0)
    assert lab.run("lab-3", "muster-firewall", "check").out == ""
    lab.run("lab-3", "muster-firewall", "remove")
    lab.run("lab-3", "systemctl", "restart", "docker")
    assert lab.run("lab-3", "muster-firewall", "check").out == ""
    name = node.start("--resource-group", "apart", "--cluster-size", "2")
    session = node.show(name)
    assert (session["cluster_mode"], session["agents"]) == ("single-node", ["lab-3"])
    assert_that_from_outside_only_main1_answers(lab, session)
    node.run("terminate", name, "--wait")
