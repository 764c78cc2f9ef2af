"""`muster web` ends by SIGTERM, whatever its main thread does at that moment."""

import ctypes
import os
import signal
from pathlib import Path

import pytest

from tests.control_node import ControlNode
from tests.servers.web_server import web_server


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_the_main_thread_does_not_notice_ends_it(tmp_path, number):
    """A signal that comes just before a system call is noticed after it: as when another thread gets it."""
    with web_server(ControlNode(tmp_path / "node", "stopping"), tmp_path) as server:
        broker = server.process.pid
        other = next(int(task.name) for task in Path(f"/proc/{broker}/task").iterdir() if int(task.name) != broker)
        if ctypes.CDLL(None, use_errno=True).tgkill(broker, other, number) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        assert server.process.wait() == 0
