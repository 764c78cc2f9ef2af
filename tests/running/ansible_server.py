"""A process in which Ansible is loaded: each of the tests' Ansible programs runs in a fork of it.

Unlike the gateway's fork server it runs any playbook, as Ansible itself does: each task in a process of its own.
"""

import gc
import importlib
import json
import os
import shutil
import socket
import sys
import tempfile
import traceback
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from muster.ansible_gateway.packed_modules import give_packed
from muster.ansible_gateway.plugin_loading import load_plugins
from tests.running.kept_sources import keep_compiled_sources

_LONGEST_REQUEST = 1 << 20
_CLIS = {
    "ansible": ("ansible.cli.adhoc", "AdHocCLI"),
    "ansible-doc": ("ansible.cli.doc", "DocCLI"),
    "ansible-inventory": ("ansible.cli.inventory", "InventoryCLI"),
    "ansible-playbook": ("ansible.cli.playbook", "PlaybookCLI"),
}
# What nearly every run loads.
_ALL_OF = ("become_loader", "shell_loader")
_SOME_OF = {
    "action_loader": ("assert", "command", "copy", "debug", "include_role", "set_fact", "template"),
    "cache_loader": ("memory",),
    "callback_loader": ("default",),
    "connection_loader": ("local", "ssh"),
    "inventory_loader": ("host_list", "script", "auto", "yaml", "ini", "toml"),
    "lookup_loader": ("file", "template"),
    "strategy_loader": ("linear",),
}


def serve(requests: socket.socket) -> None:
    """Run programs that requests name, until no process has the socket's other end."""
    is_loaded = False
    with tempfile.TemporaryDirectory() as directory:
        keep_compiled_sources(Path(directory))
        while True:
            sent, descriptors, _, _ = socket.recv_fds(requests, _LONGEST_REQUEST, 4)
            if not sent:
                _reap(0)
                return
            arguments, environment, where = json.loads(sent)
            if not is_loaded:
                _load(environment)
                is_loaded = True
            if os.fork() == 0:
                requests.close()
                _become_ansible(arguments, {**environment, "PYTHONPATH": directory}, where, descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
            _reap(os.WNOHANG)


def _reap(options: int) -> None:
    """Wait for forks that have ended, so that their CPU counts as the tests'. Each has sent its exit code itself."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, options)[0]:
            pass


def _load(environment: dict[str, str]) -> None:
    """Load Ansible, which reads its configuration while it is imported: the same for all programs of the tests."""
    own = dict(os.environ)
    os.environ.update(environment)
    for module, _ in _CLIS.values():
        importlib.import_module(module)
    load_plugins(_ALL_OF, _SOME_OF)
    os.environ.clear()
    os.environ.update(own)
    # A search for garbage would copy the pages that forks share.
    gc.collect()
    gc.freeze()


def _become_ansible(arguments: list[str], environment: dict[str, str], where: str, descriptors: list[int]) -> NoReturn:
    *streams, answer = descriptors
    code = 1
    try:
        try:
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
                os.close(stream)
            for output in (sys.stdout, sys.stderr):
                output.reconfigure(line_buffering=True)  # type: ignore[union-attr]
            os.chdir(where)
            os.environ.clear()
            os.environ.update(environment)
            code = _run(arguments)
        except BaseException:  # noqa: BLE001 - this process ends here, and its test reads why
            traceback.print_exc()
        for output in (sys.stdout, sys.stderr):
            output.flush()
        os.write(answer, bytes([code]))
    finally:
        os._exit(0)


def _run(arguments: list[str]) -> int:
    from ansible import constants  # noqa: PLC0415

    # Each program has its own, and takes packed modules from the server's.
    of_server = Path(constants.DEFAULT_LOCAL_TMP)
    own = Path(tempfile.mkdtemp(prefix="ansible-local-", dir=of_server.parent))
    constants.DEFAULT_LOCAL_TMP = str(own)
    give_packed(of_server, own)
    module, name = _CLIS[arguments[0]]
    try:
        getattr(importlib.import_module(module), name).cli_executor(arguments)
    except SystemExit as end:
        return int(end.code or 0)
    finally:
        give_packed(own, of_server)
        shutil.rmtree(own, ignore_errors=True)
    return 0


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
