"""A process in which Ansible is loaded: each playbook runs in a fork of it. Started by `loaded_ansible.py`.

Half of what a short playbook costs is Python that reads Ansible's modules and its plugins' options. Here that happens
once. All that a playbook can choose or change is read in its fork: arguments, environment, inventory, variables.
"""

import importlib
import json
import os
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from muster.ansible_gateway.jinja_ahead import compile_ahead, know_filters_of_jinja, templates_in
from muster.ansible_gateway.packed_modules import divide_packed, give_packed
from muster.ansible_gateway.play_order import AWAITS, received_order
from muster.ansible_gateway.plugin_loading import load_plugins
from muster.core.values.garbage import keep_what_is_loaded
from muster.private_directories import hold
from muster.shipped_files import ansible_root

_REQUEST_TIMEOUT_S = 30.0
_AGENT_MODULES = ("agent_converge", "agent_report", "agent_folders")
# The modules that Ansible loads for every playbook, and those that ours name; it keeps both.
_ALL_OF = ("connection_loader", "shell_loader", "become_loader")
# What each visit would compile anew: its task, and the agents' attributes.
_PLAYBOOKS = ("converge.yml", "observe.yml", "folders.yml", "group_vars/agents.yml")
_SOME_OF = {
    # Not ansible-runner's: when it is imported, it reads where this one playbook's events belong.
    "callback_loader": ("default", "junit", "minimal", "oneline", "tree"),
    "strategy_loader": ("linear",),
    "cache_loader": ("memory", "jsonfile"),
    "inventory_loader": ("host_list", "script", "auto", "yaml", "ini", "toml"),
    "lookup_loader": ("file",),
    "action_loader": _AGENT_MODULES,
}


def serve(listener: socket.socket, lifeline: int) -> None:
    """Run the playbooks of all clients, until nothing holds the other end of the lifeline any more."""
    # This process does not wait for a fork: the fork sends its exit code itself, and its end closes the connection.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    is_loaded = False
    with selectors.DefaultSelector() as ready:
        ready.register(listener, selectors.EVENT_READ)
        ready.register(lifeline, selectors.EVENT_READ)
        while True:
            if any(key.fd == lifeline for key, _ in ready.select()):
                return
            connection, _ = listener.accept()
            with connection:
                request = _read_request(connection)
                if request is None:
                    continue
                if not is_loaded:
                    _load(request.environment)
                    is_loaded = True
                if os.fork() == 0:
                    listener.close()
                    os.close(lifeline)
                    _become_playbook(request, connection)
                request.close()


@dataclass(frozen=True, slots=True)
class _Request:
    """A playbook to run; `streams` are its standard input, output and error."""

    directory: str
    arguments: list[str]
    environment: dict[str, str]
    streams: list[int]

    def close(self) -> None:
        for stream in self.streams:
            os.close(stream)


def _read_request(connection: socket.socket) -> _Request | None:
    """Return what a client wants; None where it has gone before it said so."""
    connection.settimeout(_REQUEST_TIMEOUT_S)
    _, streams, _, _ = socket.recv_fds(connection, 1, 3)
    try:
        with connection.makefile("rb") as sent:
            return _Request(**json.load(sent), streams=streams)
    except (OSError, ValueError):
        for stream in streams:
            os.close(stream)
        return None


def _load(environment: dict[str, str]) -> None:
    """Load Ansible as the first playbook's environment configures it; that of the others differs in paths alone."""
    own = dict(os.environ)
    os.environ.clear()
    os.environ.update(environment)
    try:
        # Ansible reads its configuration while it is imported.
        importlib.import_module("ansible.cli.playbook")
        importlib.import_module("muster.ansible_gateway.worker_threads")
        load_plugins(_ALL_OF, _SOME_OF)
        know_filters_of_jinja()
        compile_ahead(templates_in(ansible_root() / "playbooks" / name for name in _PLAYBOOKS))
    finally:
        os.environ.clear()
        os.environ.update(own)
    keep_what_is_loaded()


def _become_playbook(request: _Request, connection: socket.socket) -> NoReturn:
    code = 1
    try:
        try:
            _take_over(request)
            code = _run_playbook(request.arguments)
        except BaseException:  # noqa: BLE001 - this process ends here, and its caller reads why
            traceback.print_exc()
        for output in (sys.stdout, sys.stderr):
            output.flush()
        connection.sendall(code.to_bytes(1, "big"))
    finally:
        os._exit(0)


def _take_over(request: _Request) -> None:
    """Make this process what the client is: its streams, its directory, its environment."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    for number, stream in enumerate(request.streams):
        os.dup2(stream, number)
    request.close()
    os.chdir(request.directory)
    # If the control node is killed, the files of a playbook that goes on are not leftovers.
    hold(Path(request.directory))
    os.environ.clear()
    os.environ.update(request.environment)
    for output in (sys.stdout, sys.stderr):
        output.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def _run_playbook(arguments: list[str]) -> int:
    from ansible import constants  # noqa: PLC0415
    from ansible.cli.playbook import PlaybookCLI  # noqa: PLC0415

    from muster.ansible_gateway.worker_threads import run_tasks_in_threads  # noqa: PLC0415

    # The server's own ends with the server; a playbook that has begun is finished.
    of_server = Path(constants.DEFAULT_LOCAL_TMP)
    own = Path(tempfile.mkdtemp(prefix="ansible-local-", dir=of_server.parent))
    constants.DEFAULT_LOCAL_TMP = str(own)
    awaits = os.environ.pop(AWAITS, "")
    try:
        if awaits:
            _wait_for_order(Path(awaits), lambda: give_packed(of_server, own))
        else:
            give_packed(of_server, own)
        run_tasks_in_threads()
        PlaybookCLI.cli_executor(["ansible-playbook", *arguments])
    except SystemExit as end:
        return int(end.code or 0)
    finally:
        divide_packed(own, _AGENT_MODULES)
        give_packed(own, of_server)
        shutil.rmtree(own, ignore_errors=True)
    return 0


def _wait_for_order(fifo: Path, then: Callable[[], None]) -> None:
    """Let the playbook of this process wait for its order once it has read all that it does not depend on."""
    from ansible.cli import playbook  # noqa: PLC0415
    from ansible.errors import AnsibleError  # noqa: PLC0415

    class WaitingExecutor(playbook.PlaybookExecutor):  # type: ignore[misc]
        def _get_serialized_batches(self, play: object) -> list[list[object]]:
            order = received_order(fifo)
            if order is None:
                sys.exit()
            then()
            self._variable_manager.extra_vars.update(order.variables)
            self._inventory.subset(order.limit)
            if not self._inventory.list_hosts():
                # As ansible-playbook says it.
                raise AnsibleError(
                    "Specified inventory, host pattern and/or --limit leaves us with no hosts to target."
                )
            batches: list[list[object]] = super()._get_serialized_batches(play)
            return batches

    playbook.PlaybookExecutor = WaitingExecutor


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
