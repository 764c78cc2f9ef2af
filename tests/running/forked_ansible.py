"""Ansible's programs in forks of a process that has loaded Ansible: without the price of its imports.

The tests run some fifty of them. Imports, plugins' options and the packing of modules would cost each 1 to 3 s of CPU.
"""

import atexit
import functools
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Variables of a host that is this machine.
LOCAL = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
_SETTINGS = {"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_CALLBACK_RESULT_FORMAT": "json"}


def ansible(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run one of Ansible's programs in this process' directory and environment; return what came of it."""
    command = [program, *map(str, arguments)]
    request = json.dumps([command, {**os.environ, **_SETTINGS}, str(Path.cwd())]).encode()
    reading, writing = os.pipe()
    with (
        os.fdopen(reading, "rb") as answer,
        Path(os.devnull).open("rb") as nothing,
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
    ):
        try:
            given = [nothing.fileno(), out.fileno(), err.fileno(), writing]
            socket.send_fds(start_ansible_server(), [request], given)
        finally:
            os.close(writing)
        code = answer.read(1)
        out.seek(0)
        err.seek(0)
        said, complaint = out.read().decode(), err.read().decode()
    assert code, f"{program} died: {said}{complaint}"
    return subprocess.CompletedProcess(command, code[0], said, complaint)


@functools.cache
def start_ansible_server() -> socket.socket:
    """Return this process' way to the server, which its forks share. The server ends with this process."""
    # Each message is whole, also where several processes send at once.
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.running.ansible_server", str(its.fileno())],
            cwd=ROOT,
            pass_fds=[its.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            # Ctrl-C is for the tests, whose end it finds.
            start_new_session=True,
        )
    atexit.register(_end, server, ours)
    return ours


def _end(server: subprocess.Popen[bytes], requests: socket.socket) -> None:
    # Forks of this process may have the socket open still.
    requests.shutdown(socket.SHUT_RDWR)
    server.wait()
