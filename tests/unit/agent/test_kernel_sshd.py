"""Whether something listens in the network of a process, as the agent asks before it releases a gang."""

import os
import socket
import subprocess
import sys

import pytest

from tests.modules.agent_code import kernel_sshd


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_port_counts_as_long_as_a_program_listens_there(family, address):
    with socket.create_server((address, 0), family=family) as server:
        port = server.getsockname()[1]
        assert kernel_sshd.listens(os.getpid(), port)
        with socket.create_connection((address, port)), server.accept()[0]:
            server.close()
            assert not kernel_sshd.listens(os.getpid(), port)


def test_a_process_that_has_ended_listens_nowhere():
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert not kernel_sshd.listens(ended.pid, 22)
