"""Overlay networks: one agent keeps them, kernels are launched into them, and sessions on them are apart."""

import socket
import subprocess
import threading

import pytest

from tests.modules.agent_code import (
    agent_manifest,
    agent_names,
    container_spec,
    engine_api,
    gang_release,
    overlay_networks,
    removal,
)
from tests.modules.cluster_on_host import IMAGE, RUNTIME, desired, killed_when, log_with, on_overlay, session
from tests.waiting import eventually


@pytest.fixture(scope="module", autouse=True)
def _swarm():
    """Make this host's engine a swarm of its own, unless it is in one."""
    if engine_api.EngineApi().info()["Swarm"]["LocalNodeState"] == "active":
        yield
        return
    subprocess.run(["docker", "swarm", "init", "--advertise-addr", "127.0.0.1"], check=True, capture_output=True)
    yield
    subprocess.run(["docker", "swarm", "leave", "--force"], check=True, capture_output=True)
    # The engine made it for the swarm and keeps it, with its subnet.
    subprocess.run(["docker", "network", "rm", agent_names.GATEWAY_BRIDGE], check=True, capture_output=True)


def _overlay_gang(*names, **changes):
    return on_overlay(session(names or ("main1", "sub1")), **changes)


def _reaches(cluster, gang, kernel, address):
    """Return whether a kernel gets an answer from an sshd at an address."""
    script = f"timeout 2 {RUNTIME}/bin/busybox nc {address} 2200 </dev/null | head -c 7"
    return cluster.run_in(gang, kernel, f"{RUNTIME}/bin/busybox", "sh", "-c", script) == "SSH-2.0"


def _gateway_address(container_id):
    members = engine_api.EngineApi().network(agent_names.GATEWAY_BRIDGE)["Containers"]
    return members[container_id]["IPv4Address"].partition("/")[0]


def _inspected(cluster, name):
    """Inspect an overlay once the swarm has allocated it. Before, the engine names neither driver nor options."""
    return eventually(lambda: cluster.engine.network(name), lambda found: found["Driver"])


def test_the_keeper_makes_what_shall_exist_and_removes_what_shall_not(cluster):
    _, first = _overlay_gang(mtu=1300, encrypted=True)
    _, second = _overlay_gang(generation=7)
    cluster.generation = 10
    foreseen = cluster.converge(overlays=[first, second], check=True)
    made = cluster.converge(overlays=[first, second])
    assert foreseen["diff"] == made["diff"]
    assert made["diff"]["after"] == {"networks": {first["name"]: "present", second["name"]: "present"}}
    found = _inspected(cluster, first["name"])
    assert (found["Driver"], found["Scope"], found["Attachable"]) == ("overlay", "swarm", True)
    assert found["Options"]["com.docker.network.driver.mtu"] == "1300"
    assert found["Options"]["encrypted"] == ""
    options = _inspected(cluster, second["name"])["Options"]
    assert not {"encrypted", "com.docker.network.driver.mtu"} & set(options)
    assert sorted(made["report"]["networks"], key=lambda network: network["generation"]) == [
        {"name": first["name"], "session_id": first["session_id"], "driver": "overlay", "generation": 1},
        {"name": second["name"], "session_id": second["session_id"], "driver": "overlay", "generation": 7},
    ]
    assert not cluster.converge(overlays=[first, second])["changed"]
    assert not cluster.converge(overlays=None)["changed"]
    assert cluster.networks() == sorted([first["name"], second["name"]])
    assert cluster.converge(overlays=[second])["diff"]["after"] == {"networks": {first["name"]: "absent"}}
    assert cluster.networks() == [second["name"]]
    assert cluster.converge(overlays=[])["changed"]
    assert cluster.leaves_nothing()


def test_an_overlay_that_the_swarm_has_not_allocated_is_one_already(cluster):
    taken = {"IPAM": {"Config": [{"Subnet": "10.211.7.0/24"}]}}
    overlays = [_overlay_gang()[1] for _ in range(2)]
    for overlay in overlays:
        wanted = agent_manifest.Overlay(**{**overlay, "generation": "1"})
        cluster.engine.create_network({**container_spec.overlay_body(cluster.name, wanted), **taken})
    # All with one subnet: the swarm can allocate only the first of them.
    _inspected(cluster, overlays[0]["name"])
    assert cluster.engine.network(overlays[1]["name"])["Driver"] == ""
    assert {network["driver"] for network in cluster.report()["networks"]} == {"overlay"}
    # Only its keeper may remove an overlay, and this agent is none.
    assert not cluster.converge(overlays=None)["changed"]
    assert not cluster.converge(overlays=overlays)["changed"]
    assert cluster.converge(overlays=[])["changed"]
    assert cluster.leaves_nothing()


def test_a_newer_keepers_overlay_is_left_alone(cluster):
    _, newer = _overlay_gang(generation=9)
    cluster.generation = 9
    cluster.converge(overlays=[newer])
    cluster.paths.generation.unlink()  # another manager, which does not know of generation 9
    cluster.generation = 8
    assert not cluster.converge(overlays=[])["changed"]
    assert cluster.networks() == [newer["name"]]


def test_the_overlays_of_another_cluster_are_left_alone(cluster, make_cluster):
    _, overlay = _overlay_gang()
    cluster.converge(overlays=[overlay])
    assert not make_cluster().converge(overlays=[])["changed"]
    assert cluster.networks() == [overlay["name"]]


def test_a_gang_on_an_overlay_is_launched_released_and_stopped(cluster):
    gang, overlay = _overlay_gang()
    started = cluster.converge(gang, overlays=[overlay])
    assert [(entry["outcome"], entry["error"]) for entry in started["sessions"]] == [("started", None)]
    assert cluster.converge(desired(gang, "release"), overlays=[overlay])["sessions"][0]["outcome"] == "released"
    assert cluster.run_in(gang, "main1", "ssh", "sub1", "hostname") == "sub1"
    subnet = _inspected(cluster, overlay["name"])["IPAM"]["Config"][0]["Subnet"].rpartition(".")[0]
    kernels = cluster.report()["kernels"]
    assert [kernel["address"].rpartition(".")[0] for kernel in kernels] == [subnet, subnet]
    stopped = cluster.converge(desired(gang, "stop"), overlays=[overlay])
    assert stopped["sessions"][0]["outcome"] == "stopped"
    assert cluster.networks() == [overlay["name"]]
    assert cluster.converge(overlays=[])["diff"]["after"]["networks"] == {overlay["name"]: "absent"}
    assert cluster.leaves_nothing()


def test_an_overlay_goes_in_the_run_that_stops_its_last_kernels(cluster):
    gang, overlay = _overlay_gang()
    cluster.converge(gang, overlays=[overlay])
    result = cluster.converge(desired(gang, "stop"), overlays=[])
    assert result["sessions"][0]["outcome"] == "stopped"
    assert result["warnings"] == []
    assert cluster.networks() == []


def test_an_overlay_that_kernels_are_on_is_a_warning_and_no_change(cluster):
    gang, overlay = _overlay_gang("main1")
    cluster.converge(gang, overlays=[overlay])
    result = cluster.converge(desired(gang, "keep"), overlays=[])
    assert not result["changed"]
    (warning,) = result["warnings"]
    assert warning.startswith(f"network {overlay['name']} cannot be removed: ")
    (leftover,) = result["report"]["leftovers"]
    assert leftover["name"] == f"network {overlay['name']}"
    assert "in use" in leftover["error"]
    assert cluster.networks() == [overlay["name"]]


def test_a_gang_whose_launch_failed_leaves_the_overlay_to_its_keeper(cluster):
    gang, overlay = _overlay_gang()
    gang["kernels"][1]["files"] = {}
    result = cluster.converge(gang, overlays=[overlay])
    assert result["sessions"][0]["error"].startswith("sub1: the container ended at once with exit code 125")
    assert result["diff"]["after"] == {"networks": {overlay["name"]: "present"}}
    assert (cluster.containers(), cluster.networks()) == ({}, [overlay["name"]])


def test_a_launch_waits_for_an_overlay_that_another_agent_makes(cluster):
    gang, overlay = _overlay_gang()
    keeper = threading.Timer(1.0, _make, (cluster, overlay))
    keeper.start()
    result = cluster.converge(gang)
    keeper.join()
    assert result["sessions"][0]["outcome"] == "started"


def test_an_overlay_that_no_agent_creates_is_reported_in_one_line(cluster):
    gang, overlay = _overlay_gang("main1")
    (entry,) = cluster.converge(gang, start_timeout_s=1)["sessions"]
    name = overlay["name"]
    assert entry["error"] == f"main1: overlay network {name} is not there: no manager of the swarm has made it"
    assert not entry["permanent"]
    assert cluster.leaves_nothing()


def test_an_overlay_that_cannot_be_made_harms_no_other_session(cluster):
    gang, overlay = _overlay_gang("main1")
    other = session()
    foreign = cluster.engine.create_network({"Name": overlay["name"], "Driver": "overlay", "Attachable": True})
    try:
        result = cluster.converge(gang, other, overlays=[overlay])
    finally:
        cluster.engine.remove_network(foreign)
    failed, released = result["sessions"]
    assert released["outcome"] == "released"
    assert failed["error"].startswith(f"overlay network {overlay['name']} cannot be made: ")
    assert result["warnings"] == [failed["error"]]


def test_a_worker_neither_makes_nor_removes_nor_reports_overlays(cluster, monkeypatch):
    _, overlay = _overlay_gang()
    cluster.converge(overlays=[overlay])
    _say_of_the_swarm(monkeypatch, ControlAvailable=False)
    result = cluster.converge(overlays=[])
    assert not result["changed"]
    assert result["warnings"] == [
        "this agent is to keep the overlay networks, but is no manager of a swarm (roles/overlay_network)"
    ]
    assert result["report"]["networks"] == []
    assert not result["report"]["swarm"]["manager"]


def test_a_host_in_no_swarm_launches_nothing_into_an_overlay(cluster, monkeypatch):
    gang, _ = _overlay_gang()
    _say_of_the_swarm(monkeypatch, LocalNodeState="inactive", ControlAvailable=False)
    _refused(
        cluster,
        gang,
        "this agent's swarm is inactive, and overlay networks need it active (roles/overlay_network)",
    )


def test_the_report_tells_the_swarm(cluster):
    swarm = cluster.engine.info()["Swarm"]
    found = cluster.report()["swarm"]
    assert isinstance(found.pop("encrypts"), bool)
    assert found == {"state": "active", "node_id": swarm["NodeID"], "manager": True}


def test_sessions_on_overlays_reach_each_other_by_no_network(cluster):
    one, first = _overlay_gang()
    other, second = _overlay_gang("main1")
    result = cluster.converge(one, other, overlays=[first, second])
    assert [entry["outcome"] for entry in result["sessions"]] == ["started", "started"]
    kernels = {(kernel["session_id"], kernel["name"]): kernel for kernel in result["report"]["kernels"]}
    sub, stranger = kernels[one["id"], "sub1"], kernels[other["id"], "main1"]
    assert _reaches(cluster, one, "main1", "sub1")
    assert _reaches(cluster, one, "main1", sub["address"])
    assert not _reaches(cluster, one, "main1", stranger["address"])
    assert not _reaches(cluster, one, "main1", _gateway_address(stranger["container_id"]))
    # Between kernels of one session too: the overlay is their way, the gateway is the way out.
    assert not _reaches(cluster, one, "main1", _gateway_address(sub["container_id"]))
    with socket.create_connection(("127.0.0.1", kernels[one["id"], "main1"]["ssh_port"]), 5) as connection:
        assert connection.recv(7) == b"SSH-2.0"
    assert sub["ssh_port"] is None


def test_where_the_firewall_does_not_see_bridges_nothing_is_launched_into_an_overlay(cluster, monkeypatch, tmp_path):
    gang, _ = _overlay_gang()
    line = (
        "kernels of different sessions would reach each other over docker_gwbridge on this agent:"
        " net.bridge.bridge-nf-call-iptables is not 1 (roles/overlay_network)"
    )
    setting = tmp_path / "bridge-nf-call-iptables"
    monkeypatch.setattr(overlay_networks, "BRIDGE_FILTER", setting)
    _refused(cluster, gang, line)
    setting.write_text("0\n", "ascii")
    _refused(cluster, gang, line)


def test_an_overlay_that_a_killed_run_or_another_manager_made_is_taken_as_it_is(cluster):
    gang, overlay = _overlay_gang()
    _make(cluster, overlay)
    _make(cluster, overlay)
    result = cluster.converge(gang, overlays=[overlay])
    assert result["sessions"][0]["outcome"] == "started"
    assert cluster.networks() == [overlay["name"]]


def test_where_the_gateway_bridge_lets_containers_talk_nothing_is_launched_into_an_overlay(cluster, monkeypatch):
    gang, _ = _overlay_gang()
    bridge = f"{cluster.name}-gateway"
    network = cluster.engine.create_network({"Name": bridge, "Driver": "bridge"})
    monkeypatch.setattr(overlay_networks, "GATEWAY_BRIDGE", bridge)
    try:
        _refused(
            cluster,
            gang,
            f"kernels of different sessions would reach each other over {bridge} on this agent, since it was made"
            " without com.docker.network.bridge.enable_icc=false (roles/overlay_network)",
        )
    finally:
        cluster.engine.remove_network(network)


def test_a_run_killed_in_the_middle_leaves_nothing_that_the_next_would_not_remove(cluster):
    gang, overlay = _overlay_gang()
    assert killed_when(lambda: "running" in cluster.states().values(), cluster.manifest(gang, overlays=[overlay]))
    result = cluster.converge(gang, overlays=[overlay])
    assert [entry["error"] for entry in result["sessions"]] == [None]
    assert list(cluster.states().values()) == ["running"] * 2
    assert cluster.converge(overlays=[])["warnings"] == []
    assert cluster.leaves_nothing()


def test_an_overlay_that_was_removed_under_running_kernels_is_made_again(cluster):
    gang, overlay = _overlay_gang()
    cluster.converge(gang, overlays=[overlay])
    cluster.converge(desired(gang, "release"), overlays=[overlay])
    for kernel in ("main1", "sub1"):
        name = agent_names.container_name(gang["id"], kernel)
        subprocess.run(["docker", "network", "disconnect", "--force", overlay["name"], name], check=True)
    (removed,) = [network["Id"] for network in cluster.engine.networks() if network["Name"] == overlay["name"]]
    removal.remove_overlay(cluster.engine, removed)
    result = cluster.converge(desired(gang, "keep"), overlays=[overlay])
    assert result["sessions"] == [{"id": gang["id"], "outcome": "kept", "error": None, "permanent": False}]
    assert cluster.run_in(gang, "main1", "ssh", "sub1", "hostname") == "sub1"
    assert {bool(kernel["address"]) for kernel in result["report"]["kernels"]} == {True}
    assert not cluster.converge(desired(gang, "keep"), overlays=[overlay])["changed"]


def test_a_gang_over_agents_begins_when_the_names_of_its_kernels_resolve(cluster, monkeypatch):
    """A kernel on another host is a container here that joins the overlay later, under a name of the gang."""
    monkeypatch.setattr(gang_release, "_NAMES_PATIENCE_S", 120)
    gang, overlay = _overlay_gang("main1")
    gang["kernels"][0]["env"] = {"BACKENDAI_CLUSTER_HOSTS": "main1,sub1"}
    gang["kernels"][0]["command"] = [
        "sh",
        "-c",
        "nslookup sub1 127.0.0.11 >/dev/null && echo resolved; exec sleep 1000",
    ]
    cluster.converge(gang, overlays=[overlay])
    name = f"{cluster.name}-late"
    late = ["docker", "run", "--detach", "--name", name, "--network", overlay["name"], "--network-alias", "sub1"]
    joining = threading.Timer(1.0, subprocess.run, [[*late, IMAGE, "sleep", "1000"]], {"capture_output": True})
    joining.start()
    try:
        result = cluster.converge(desired(gang, "release"), overlays=[overlay])
        joining.join()
        assert result["sessions"][0]["outcome"] == "released"
        (entry,) = cluster.containers().values()
        log_with(cluster, entry["Id"], b"resolved")
    finally:
        joining.join()
        subprocess.run(["docker", "rm", "--force", name], check=True, capture_output=True)


def test_a_name_that_never_resolves_delays_a_release_and_no_more(cluster, monkeypatch):
    gang, overlay = _overlay_gang("main1")
    gang["kernels"][0]["env"] = {"BACKENDAI_CLUSTER_HOSTS": "main1,sub1"}
    cluster.converge(gang, overlays=[overlay])
    monkeypatch.setattr(gang_release, "_NAMES_PATIENCE_S", 0.2)
    result = cluster.converge(desired(gang, "release"), overlays=[overlay])
    assert result["sessions"][0]["outcome"] == "released"


def _say_of_the_swarm(monkeypatch, **said):
    """Let the engine say of its swarm what only an engine beside this one could: it is a worker, or in none."""
    info = engine_api.EngineApi.info

    def other_info(engine):
        found = info(engine)
        return {**found, "Swarm": {**found["Swarm"], **said}}

    monkeypatch.setattr(engine_api.EngineApi, "info", other_info)


def _make(cluster, overlay):
    """Make an overlay as another keeper does."""
    (parsed,) = agent_manifest.parse_manifest(cluster.manifest(overlays=[overlay])).overlays
    overlay_networks.make_overlay(cluster.engine, cluster.name, parsed)


def _refused(cluster, gang, line):
    for check in (True, False):
        result = cluster.converge(gang, check=check)
        assert result["sessions"] == [{"id": gang["id"], "outcome": "failed", "error": line, "permanent": False}]
        assert not result["changed"]
    assert cluster.leaves_nothing()
