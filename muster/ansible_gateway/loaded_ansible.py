"""Ansible, loaded once for all playbooks of this process: its fork server, started when the first one needs it."""

import atexit
import os
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack

from muster.ansible_gateway import fork_client, fork_server
from muster.private_directories import private_directory

_MOST_CLIENTS_AT_THE_DOOR = 64


class LoadedAnsible:
    """The keeper of the fork server. It starts another if one dies. The server ends with this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._server: subprocess.Popen[bytes] | None = None
        self._open = ExitStack()
        atexit.register(self._open.close)

    def command(self) -> list[str]:
        """Return a command that takes the arguments of `ansible-playbook` and does the same."""
        with self._lock:
            if not self._is_up():
                self._open.close()
                self._start()
            return [sys.executable, "-IS", fork_client.__file__, str(self._address)]

    def _is_up(self) -> bool:
        """Return whether a server can be reached. An administrator may have removed its directory by hand."""
        return self._server is not None and self._server.poll() is None and self._address.exists()

    def _start(self) -> None:
        self._address = self._open.enter_context(private_directory()) / "ansible.sock"
        reading, writing = os.pipe()
        self._open.callback(os.close, writing)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener, os.fdopen(reading) as lifeline:
            listener.bind(str(self._address))
            listener.listen(_MOST_CLIENTS_AT_THE_DOOR)
            given = (listener.fileno(), lifeline.fileno())
            self._server = subprocess.Popen(
                [sys.executable, "-m", fork_server.__name__, *map(str, given)],
                pass_fds=given,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                # Ctrl-C is for the control node, which lets the playbooks that have begun finish.
                start_new_session=True,
            )


LOADED_ANSIBLE = LoadedAnsible()
