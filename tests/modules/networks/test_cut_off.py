"""Kernels whose network somebody removed: they are put back on it and go on, or the true cause is reported."""

import socket
import subprocess

from tests.modules.cluster_on_host import desired, killed_when, session


def _container(gang, kernel):
    return f"{gang['network']['name']}-{kernel}"


def _cut_off(gang, *kernels):
    for kernel in kernels:
        subprocess.run(
            ["docker", "network", "disconnect", "--force", gang["network"]["name"], _container(gang, kernel)],
            check=True,
            capture_output=True,
        )


def _remove_network(gang):
    _cut_off(gang, *(kernel["name"] for kernel in gang["kernels"]))
    subprocess.run(["docker", "network", "rm", gang["network"]["name"]], check=True, capture_output=True)


def _processes(cluster):
    inspected = [cluster.engine.container(entry["Id"]) for entry in cluster.containers().values()]
    return {found["Id"]: (found["State"]["Pid"], found["State"]["StartedAt"]) for found in inspected}


def test_a_network_that_was_removed_is_made_again_and_the_kernels_go_on(cluster):
    gang, other = session(["main1", "sub1"]), session()
    cluster.converge(gang, other)
    before = _processes(cluster)
    _remove_network(gang)
    assert {kernel["address"] for kernel in cluster.report()["kernels"] if kernel["session_id"] == gang["id"]} == {None}
    result = cluster.converge(desired(gang, "keep"), desired(other, "keep"))
    assert [entry["outcome"] for entry in result["sessions"]] == ["kept", "kept"]
    name = gang["network"]["name"]
    assert result["diff"]["after"] == {
        "networks": {name: "present"},
        "connections": {_container(gang, "main1"): name, _container(gang, "sub1"): name},
    }
    assert _processes(cluster) == before
    assert cluster.run_in(gang, "main1", "ssh", "sub1", "hostname") == "sub1"
    assert cluster.run_in(gang, "sub1", "ssh", "main1", "hostname") == "main1"
    (main,) = [kernel for kernel in result["report"]["kernels"] if kernel["kernel_id"] == gang["id"]]
    with socket.create_connection(("127.0.0.1", main["ssh_port"]), 5) as connection:
        assert connection.recv(7) == b"SSH-2.0"
    assert not cluster.converge(desired(gang, "keep"), desired(other, "keep"))["changed"]
    cluster.converge(desired(gang, "stop"), desired(other, "stop"))
    cluster.converge()
    assert cluster.leaves_nothing()


def test_a_kernel_that_was_taken_off_its_network_is_put_back(cluster):
    gang = session(["main1", "sub1"])
    cluster.converge(gang)
    _cut_off(gang, "sub1")
    result = cluster.converge(desired(gang, "keep"))
    assert result["diff"]["after"] == {"connections": {_container(gang, "sub1"): gang["network"]["name"]}}
    assert cluster.run_in(gang, "main1", "ssh", "sub1", "hostname") == "sub1"


def test_check_mode_foresees_the_changes_of_a_repair(cluster):
    gang = session(["main1", "sub1"])
    cluster.converge(gang)
    _remove_network(gang)
    foreseen = cluster.converge(desired(gang, "keep"), check=True)
    assert cluster.networks() == []
    assert cluster.converge(desired(gang, "keep"))["diff"] == foreseen["diff"]


def test_a_network_that_cannot_be_made_again_is_its_sessions_failure(cluster):
    gang, other = session(["main1", "sub1"]), session()
    cluster.converge(gang, other)
    _remove_network(gang)
    name = gang["network"]["name"]
    foreign = cluster.engine.create_network({"Name": name})
    try:
        result = cluster.converge(desired(gang, "keep"), desired(other, "keep"))
    finally:
        cluster.engine.remove_network(foreign)
    failed, kept = result["sessions"]
    assert kept["outcome"] == "kept"
    assert (failed["outcome"], failed["permanent"]) == ("failed", False)
    cause = "main1: its network was removed from this agent and cannot be made again: "
    assert failed["error"].startswith(f"{cause}network {name}: ")
    assert "connections" not in result["diff"]["after"]
    assert len(cluster.states()) == 3


def test_kernels_that_have_ended_are_not_put_back(cluster):
    gang = session(["main1", "sub1"], command=["true"])
    cluster.converge(gang)
    containers = [_container(gang, kernel) for kernel in ("main1", "sub1")]
    subprocess.run(["docker", "wait", *containers], check=True, capture_output=True)
    _remove_network(gang)
    assert not cluster.converge(desired(gang, "keep"))["changed"]


def test_a_kernel_that_is_cut_off_before_its_release_fails_it_with_the_true_cause(cluster):
    gang = session(["main1", "sub1"])
    gang["release"] = False
    cluster.converge(gang)
    _cut_off(gang, "sub1")
    (entry,) = cluster.converge(desired(gang, "release"))["sessions"]
    assert (entry["outcome"], entry["error"]) == ("failed", "sub1: it was cut off its network on this agent")


def test_a_repair_that_is_killed_is_done_by_the_next_run(cluster):
    gang = session(["main1", "sub1"])
    cluster.converge(gang)
    _remove_network(gang)
    assert killed_when(lambda: cluster.networks() != [], cluster.manifest(desired(gang, "keep")))
    assert [entry["error"] for entry in cluster.converge(desired(gang, "keep"))["sessions"]] == [None]
    assert cluster.run_in(gang, "main1", "ssh", "sub1", "hostname") == "sub1"
