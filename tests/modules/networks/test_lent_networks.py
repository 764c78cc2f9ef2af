"""The networks of sessions of one kernel: each is lent to one of them at a time, and kept for the next."""

import subprocess
from contextlib import contextmanager

from tests.modules.agent_code import agent_names
from tests.modules.cluster_on_host import desired, session
from tests.waiting import eventually

REACHES = "/opt/muster/runtime/bin/busybox timeout 3 /opt/muster/runtime/bin/busybox nc {} 2200 </dev/null | head -c 7"

RESOLVES = "/opt/muster/runtime/bin/busybox nslookup {} 127.0.0.11 >/dev/null 2>&1 && echo known || echo unknown"


def _network(cluster, entry):
    """Return the name of the only network that the kernel of a session is on, and its address there."""
    (container,) = cluster.engine.containers(agent_names.of_session(entry["id"]))
    ((name, endpoint),) = container["NetworkSettings"]["Networks"].items()
    return name, endpoint["IPAddress"]


def _end(cluster, entry, *others):
    cluster.converge(desired(entry, "stop"), *others)
    cluster.converge(*others)


def test_the_next_session_of_one_kernel_gets_the_network_of_the_last(cluster):
    first, second = session(), session()
    cluster.converge(first)
    network, _ = _network(cluster, first)
    _end(cluster, first)
    assert cluster.leaves_nothing()
    result = cluster.converge(second)
    assert _network(cluster, second)[0] == network
    assert cluster.lent_networks() == [network]
    assert "networks" not in result["diff"]["after"]
    assert not cluster.converge(second)["changed"]
    assert cluster.run_in(second, "main1", "sh", "-c", REACHES.format("main1")) == "SSH-2.0"


def test_the_visit_that_removes_an_ended_kernel_lends_its_network_on(cluster):
    first, second = session(command=["true"]), session()
    cluster.converge(first)
    network, _ = _network(cluster, first)
    eventually(cluster.states, lambda states: set(states.values()) == {"exited"})
    cluster.converge(desired(first, "stop"), second)
    assert _network(cluster, second)[0] == network
    assert cluster.lent_networks() == [network]
    assert cluster.engine.containers(agent_names.of_session(first["id"])) == []
    assert cluster.run_in(second, "main1", "sh", "-c", REACHES.format("main1")) == "SSH-2.0"
    cluster.converge(second)  # forgets the last words of the first
    assert not cluster.converge(second)["changed"]


def test_a_network_of_a_kernel_that_still_runs_is_lent_to_nobody(cluster):
    first, second = session(), session()
    cluster.converge(first)
    network, _ = _network(cluster, first)
    cluster.converge(desired(first, "stop"), second)
    assert _network(cluster, second)[0] != network


@contextmanager
def _without_the_engines_wall():
    """Take away what keeps networks apart, as the engine does for a moment whenever it makes one."""
    # Docker 28 has a chain of its own for it.
    chains = subprocess.run(["iptables", "--wait", "--list-rules"], check=True, capture_output=True, text=True).stdout
    chain = "DOCKER-FORWARD" if "-N DOCKER-FORWARD\n" in chains else "FORWARD"

    def jump(action: str) -> bool:
        rule = (chain, "--jump", "DOCKER-ISOLATION-STAGE-1")
        return subprocess.run(["iptables", "--wait", action, *rule], check=False, capture_output=True).returncode == 0

    # Another test may have the engine make a network, which takes it away and puts it back too.
    eventually(lambda: jump("--delete"))
    try:
        yield
    finally:
        assert jump("--check") or jump("--insert")


def test_sessions_reach_no_other_while_the_engine_makes_a_network(cluster):
    """One was reached while another test made a network."""
    one, other, gang = session(), session(), session(["main1", "sub1"])
    launched = cluster.converge(one, other, gang)
    assert [entry["error"] for entry in launched["sessions"]] == [None] * 3
    kernels = {kernel["kernel_id"]: kernel["address"] for kernel in cluster.report()["kernels"]}
    main, sub = (kernels[kernel["id"]] for kernel in gang["kernels"])
    others = {
        one["id"]: [kernels[other["kernels"][0]["id"]], main, sub],
        gang["id"]: [kernels[one["kernels"][0]["id"]]],
    }
    with _without_the_engines_wall():
        for entry in (one, gang):
            for address in others[entry["id"]]:
                assert cluster.run_in(entry, "main1", "sh", "-c", REACHES.format(address)) == ""
        assert cluster.run_in(gang, "main1", "sh", "-c", REACHES.format(sub)) == "SSH-2.0"


def test_sessions_of_one_kernel_reach_neither_each_other_nor_a_gang(cluster):
    one, other, gang = session(), session(), session(["main1", "sub1"])
    cluster.converge(one, other, gang)
    networks = {_network(cluster, entry)[0] for entry in (one, other)}
    assert len(networks) == 2
    assert cluster.lent_networks() == sorted(networks)
    assert cluster.networks() == [gang["network"]["name"]]
    own, others = _network(cluster, one)[1], [_network(cluster, other)[1]]
    others += [kernel["address"] for kernel in cluster.report()["kernels"] if kernel["session_id"] == gang["id"]]
    assert cluster.run_in(one, "main1", "sh", "-c", REACHES.format(own)) == "SSH-2.0"
    for address in others:
        assert cluster.run_in(one, "main1", "sh", "-c", REACHES.format(address)) == ""
    assert cluster.run_in(one, "main1", "sh", "-c", RESOLVES.format("main1")) == "known"
    foreign = f"muster-{other['id'].replace('-', '')[:12]}-main1"
    assert cluster.run_in(one, "main1", "sh", "-c", RESOLVES.format(foreign)) == "unknown"


def test_a_network_that_somebody_else_is_on_is_lent_to_nobody(cluster):
    first, second = session(), session()
    cluster.converge(first)
    network, _ = _network(cluster, first)
    _end(cluster, first)
    run = ("docker", "run", "--detach", "--rm", "--network", network, "muster/default:latest", "sleep", "300")
    stranger = subprocess.run(run, check=True, capture_output=True, text=True).stdout.strip()
    try:
        cluster.converge(second)
        assert _network(cluster, second)[0] != network
    finally:
        cluster.engine.remove_container(stranger)


def test_a_kernel_whose_lent_network_is_gone_gets_another_and_goes_on(cluster):
    entry = session()
    cluster.converge(entry)
    network, _ = _network(cluster, entry)
    container = f"{entry['network']['name']}-main1"
    subprocess.run(["docker", "network", "disconnect", "--force", network, container], check=True, capture_output=True)
    cluster.engine.remove_network(network)
    (kept,) = cluster.converge(desired(entry, "keep"))["sessions"]
    assert kept["outcome"] == "kept"
    assert agent_names.is_lent(_network(cluster, entry)[0])
    assert not cluster.converge(desired(entry, "keep"))["changed"]
