"""Hosts of a swarm are tried from each other: a firewall that lets heartbeats out and nothing in would go unnoticed."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.running.forked_ansible import ROOT

PROGRAM = ROOT / "roles/overlay_network/files/unanswered.py"


@pytest.fixture
def port() -> Iterator[int]:
    """Yield a port at which this machine answers at one of its addresses alone."""
    with socket.create_server(("127.0.0.2", 0)) as listening:
        yield listening.getsockname()[1]


def unanswered(port: int, *addresses: str) -> list[str]:
    done = subprocess.run([sys.executable, PROGRAM, str(port), "0.3", *addresses], capture_output=True, check=True)
    return json.loads(done.stdout)


def test_hosts_that_take_no_connection_are_named(port):
    assert unanswered(port, "127.0.0.2", "127.0.0.3") == ["127.0.0.3"]


def test_a_swarm_of_one_host_has_none_to_try(port):
    assert unanswered(port) == []
