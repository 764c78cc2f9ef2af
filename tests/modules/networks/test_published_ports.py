"""The port under which main1's sshd is reached from outside: one of a range, one alone, or any."""

import socket

import pytest

from tests.modules.cluster_on_host import session


def _published(host_port):
    return session(publish=[{"container_port": 2200, "host_ip": "127.0.0.1", "host_port": host_port}])


def _greeting(port):
    with socket.create_connection(("127.0.0.1", port), 5) as connection:
        return connection.recv(7)


@pytest.fixture
def free_pair():
    """Return two neighbouring ports that nothing listens on."""
    for port in range(29000, 29999, 2):
        try:
            with socket.create_server(("127.0.0.1", port)), socket.create_server(("127.0.0.1", port + 1)):
                return port
        except OSError:
            continue
    raise AssertionError("no two neighbouring ports are free")


def test_kernels_share_a_range_until_it_is_used_up(cluster, free_pair):
    span = f"{free_pair}-{free_pair + 1}"
    gangs = [_published(span), _published(span)]
    result = cluster.converge(*gangs)
    ports = [kernel["ssh_port"] for kernel in result["report"]["kernels"]]
    assert sorted(ports) == [free_pair, free_pair + 1]
    assert [_greeting(port) for port in ports] == [b"SSH-2.0"] * 2
    third = cluster.converge(*gangs, _published(span))
    assert [entry["outcome"] for entry in third["sessions"]] == ["released", "released", "failed"]
    assert third["sessions"][2]["error"] == f"main1: no port of {span} is free on this agent"
    assert not third["sessions"][2]["permanent"]
    assert not third["changed"]


@pytest.mark.parametrize("offset", [0, 1])
def test_a_port_of_the_range_that_another_program_has_is_passed_over(cluster, free_pair, offset):
    span = f"{free_pair}-{free_pair + 1}"
    with socket.create_server(("127.0.0.1", free_pair + offset)):
        first = _published(span)
        result = cluster.converge(first)
        second = cluster.converge(first, _published(span))
    assert [kernel["ssh_port"] for kernel in result["report"]["kernels"]] == [free_pair + 1 - offset]
    assert second["sessions"][1]["error"] == f"main1: no port of {span} is free on this agent"


def test_a_port_that_is_taken(cluster):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (result,) = cluster.converge(_published(port))["sessions"]
    assert result["error"] == f"main1: port 127.0.0.1:{port} is in use on this agent"
    assert not result["permanent"]
    assert cluster.leaves_nothing()


@pytest.mark.parametrize("any_port", [0, "0"])
def test_a_port_that_another_kernel_has(cluster, any_port):
    first = _published(any_port)
    port = cluster.converge(first)["report"]["kernels"][0]["ssh_port"]
    result = cluster.converge(first, _published(port))
    assert result["sessions"][1]["error"] == f"main1: port 127.0.0.1:{port} is in use on this agent"
