"""Whether something listens in the network of a process, as the agent asks before it releases a gang."""

import os
import socket
import subprocess
import sys
from contextlib import closing

import pytest

from tests.modules.agent_code import listening_port

ListeningPort = listening_port.ListeningPort

FAMILIES = pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])


@pytest.fixture(params=["netlink", "tables"])
def open_port(request, monkeypatch):
    """Return what opens a port of this process' network, by each of the two ways to look."""
    if request.param == "tables":

        def refuse(*_):
            raise OSError

        monkeypatch.setattr(listening_port, "socket_in", refuse)
    return lambda port: closing(ListeningPort(os.getpid(), port))


@FAMILIES
def test_a_port_counts_as_long_as_a_program_listens_there(open_port, family, address):
    with socket.create_server((address, 0), family=family) as server:
        number = server.getsockname()[1]
        with open_port(number) as port:
            assert port.is_open()
            assert port.is_open()
            with socket.create_connection((address, number)), server.accept()[0]:
                server.close()
                assert not port.is_open()


def test_a_port_is_seen_that_opens_while_one_waits_for_it(open_port):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        with open_port(listener.getsockname()[1]) as port:
            assert not port.is_open()
            listener.listen()
            assert port.is_open()


def test_linux_is_not_made_to_search_the_tables_of_connections(tmp_path):
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        closing(ListeningPort(os.getpid(), server.getsockname()[1], tmp_path)) as port,
    ):
        assert port.is_open()


def test_a_process_that_has_ended_listens_nowhere():
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with closing(ListeningPort(ended.pid, 22)) as port:
        assert not port.is_open()
