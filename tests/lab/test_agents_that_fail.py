"""Hosts that are cut off, hang, or lose their engine at every stage of a session: what becomes of it, what is left."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.control_node import NOTHING, SMALL
from tests.lab.control_node import LabControlNode
from tests.lab.lab import Lab
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(900)
MULTI_NODE = ("--cluster-mode", "multi-node")


@pytest.fixture(scope="module")
def node(new_lab_node) -> LabControlNode:
    """Return a control node of little patience, but enough for agents whose machine is busy with other tests."""
    impatient = new_lab_node(observe_interval_s=5, lost_after_s=10, slow_after_s=20)
    impatient.notice_cuts_soon()
    impatient.start_daemon()
    return impatient


@pytest.fixture(autouse=True)
def _nothing_is_left_anywhere(lab: Lab, node: LabControlNode) -> Iterator[None]:
    """Check after each test that every agent is back, and that no host holds anything of the ended sessions."""
    yield
    eventually(lambda: states(node), lambda seen: set(seen.values()) == {"ALIVE"})
    node.end_everything()
    eventually(lambda: left(lab, node), lambda seen: all(what == NOTHING for what in seen.values()))


def states(node: LabControlNode) -> dict[str, str]:
    return {agent["id"]: agent["state"] for agent in node.run("agents", "--json").json()}


def left(lab: Lab, node: LabControlNode) -> dict[str, dict[str, list[str]]]:
    return {host.name: lab.left_on(host.name, node.cluster) for host in lab.hosts}


def story(node: LabControlNode, name: str) -> list[tuple[str, str]]:
    return [(line["to"], line["reason"]) for line in node.show(name)["story"]]


def containers(node: LabControlNode, name: str) -> list[str]:
    return [kernel["container_id"] for kernel in node.show(name)["kernels"]]


def test_a_host_that_is_cut_off_loses_its_sessions_and_no_others(lab: Lab, node: LabControlNode) -> None:
    gang = node.start("--cluster-size", "2", *MULTI_NODE, "--mem", "14G", "--requeue")
    first, cut = node.show(gang)["agents"]
    beside, lost = node.start("--mem", "6G"), node.start("--mem", "6G")
    assert [node.show(name)["agents"] for name in (beside, lost)] == [[first], [cut]]
    before = containers(node, beside)
    with lab.cut_off(cut):
        ended = node.reaches(lost, "TERMINATED")
        assert (ended["result"], ended["reason"]) == ("FAILURE", f"agent {cut} was lost")
        assert states(node)[cut] == "LOST"
        again = eventually(lambda: node.show(gang), lambda s: s["requeues"] == 1 and s["state"] == "RUNNING")
        assert cut not in again["agents"]
        assert node.exec(gang, "ssh", "sub1", "hostname").out == "sub1\n"
        assert containers(node, beside) == before
        # Out of anyone's reach it goes on there, until the agent is back.
        assert len(lab.left_on(cut, node.cluster)["containers"]) == 2
    eventually(lambda: lab.left_on(cut, node.cluster)["containers"], lambda names: not names)
    assert node.show(gang)["state"] == "RUNNING"


@contextmanager
def only_on(node: LabControlNode, *hosts: str) -> Iterator[None]:
    """Place what is submitted meanwhile on these hosts."""
    others = sorted({"lab-1", "lab-2", "lab-3"} - set(hosts))
    node.run("agent", "drain", *others)
    try:
        yield
    finally:
        node.run("agent", "resume", *others)


def test_a_host_that_hangs_during_a_launch_delays_nobody_and_is_left_for_another(
    lab: Lab, node: LabControlNode
) -> None:
    with ExitStack() as stack:
        with only_on(node, "lab-1", "lab-2"):
            gang = node.submit(*SMALL, "--cluster-size", "2", *MULTI_NODE, "--mem", "14G")
            assert set(node.reaches(gang, "PREPARING")["agents"]) == {"lab-1", "lab-2"}
            stack.enter_context(lab.frozen_engine("lab-2"))
        node.start("--mem", "6G")
        assert node.show(gang)["state"] == "PREPARING"
        with lab.cut_off("lab-2"):
            placed = node.reaches(gang, "RUNNING")
            assert set(placed["agents"]) == {"lab-1", "lab-3"}
            reasons = [reason for _, reason in story(node, gang)]
            assert any("lab-2 stopped answering during the launch" in reason for reason in reasons), reasons


def test_a_session_that_ends_while_its_host_is_cut_off_is_over_when_the_host_is_lost(
    lab: Lab, node: LabControlNode
) -> None:
    gang = node.start("--cluster-size", "2", *MULTI_NODE, "--mem", "14G")
    first, cut = node.show(gang)["agents"]
    with lab.cut_off(cut):
        node.run("terminate", gang)
        session = node.reaches(gang, "TERMINATED")
        assert (session["result"], session["reason"]) == ("SUCCESS", "ended by root")
        assert lab.left_on(first, node.cluster)["containers"] == []


def test_a_session_whose_engine_is_killed_ends_and_leaves_nothing_when_it_is_back(
    lab: Lab, node: LabControlNode
) -> None:
    gang = node.start("--cluster-size", "2", *MULTI_NODE, "--mem", "14G")
    _, host = node.show(gang)["agents"]
    lab.kill_engine(host)
    try:
        session = node.reaches(gang, "TERMINATED")
        assert session["reason"] == f"agent {host} was lost"
    finally:
        lab.start_engine(host)


def test_a_dead_swarm_manager_stops_no_session_and_only_new_gangs_wait_for_it(lab: Lab, node: LabControlNode) -> None:
    with only_on(node, "lab-2", "lab-3"):
        gang = node.start("--cluster-size", "2", *MULTI_NODE, "--mem", "14G")
    before = containers(node, gang)
    lab.kill_engine("lab-1")
    try:
        eventually(lambda: states(node)["lab-1"], lambda state: state != "ALIVE")
        assert node.exec(gang, "ssh", "sub1", "hostname").out == "sub1\n"
        node.start("--mem", "1G")
        waits = node.submit(*SMALL, "--cluster-size", "3", *MULTI_NODE, "--mem", "8G")
        why = eventually(lambda: node.show(waits)["wait"], bool)
        assert "no swarm manager answers" in why["message"]
    finally:
        lab.start_engine("lab-1")
    assert len(set(node.reaches(waits, "RUNNING")["agents"])) == 2
    assert containers(node, gang) == before


def test_a_drained_host_keeps_what_runs_and_gets_nothing_new(node: LabControlNode) -> None:
    name = node.start("--mem", "14G")
    (host,) = node.show(name)["agents"]
    assert node.run("agent", "drain", host, "--reason", "new disks", "--json").json()[0]["changed"]
    # This agent would be the tightest fit.
    elsewhere = node.start("--mem", "6G")
    assert host not in node.show(elsewhere)["agents"]
    assert node.show(name)["state"] == "RUNNING"
    assert node.run("agent", "show", host, "--json").json()["drain_reason"] == "new disks"
    node.run("terminate", name)
    node.run("agent", "drain", host, "--wait", "--timeout", "60")
    assert node.run("agent", "resume", host, "--json").json()[0]["changed"]
    assert node.run("agent", "show", host, "--json").json()["drain_reason"] is None
