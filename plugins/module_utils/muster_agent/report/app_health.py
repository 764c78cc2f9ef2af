"""Whether main1's apps serve: probed from within their container's network, since no host reaches an overlay's."""

from __future__ import annotations

import ctypes
import json
import os
import re
import select
import signal
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import names
from ..engine.id_mapping import UnmappedIdError

if TYPE_CHECKING:
    from ..engine.id_mapping import IdMapping

PATIENCE_S = 4
_ANSWER_S = 1.5
_PIECE_BYTES = 1 << 16
_LINE_BYTES = 300
_LOOPBACK = "127.0.0.1"
# A login page is an answer too.
_SERVES = {401, 403}
_NO_ANSWER = "nothing answers at its port"
# The shell writes no other. The user may, and the contract refuses a report with a number that no exit code can be.
_EXIT_CODE = re.compile(r"[0-9]{1,3}")


class Probe(NamedTuple):
    """A running container's apps, each with name, port, health (a path, or None) and starts (whether we start it).

    `uid` and `gid` are those of its user in the container.
    """

    pid: int
    uid: int
    gid: int
    apps: list[dict[str, Any]]


def probe_of(container: dict[str, Any]) -> Probe | None:
    """Return a container's probe, from the engine's description; None without apps, or where its process is unknown."""
    apps = json.loads(container["Config"]["Labels"].get(names.LABEL_APPS, "[]"))
    if not apps or container["State"]["Status"] != "running" or not container["State"]["Pid"]:
        return None
    uid, gid = container["Config"]["User"].split(":")
    return Probe(container["State"]["Pid"], int(uid), int(gid), apps)


def probe_all(kernels: list[dict[str, Any]], mapping: IdMapping | None = None, patience_s: float = PATIENCE_S) -> None:
    """Replace the kernels' probes by their results: name -> healthy, exit_code and problem.

    `mapping` is the engine's, where that remaps ids.

    `exit_code` is None of an app that runs or is not ours to start; `problem` is one line, empty if all is well.

    All containers are probed at once, each by a process of its own, which has only its user's rights there. The apps of
    a container that cannot be probed in time are left out.
    """
    give_up_at = time.monotonic() + patience_s
    begun = [kernel["apps"] and _begin(_with_host_ids(kernel["apps"], mapping)) for kernel in kernels]
    for kernel, child_and_pipe in zip(kernels, begun):
        kernel["apps"] = _result(*child_and_pipe, give_up_at) if child_and_pipe else {}


def _with_host_ids(probe: Probe, mapping: IdMapping | None) -> Probe | None:
    """Return the probe with its user's ids on this host; None where the engine's mapping is not known."""
    if mapping is None:
        return probe
    try:
        return probe._replace(uid=mapping.host_uid(probe.uid), gid=mapping.host_gid(probe.gid))
    except UnmappedIdError:
        return None


def _begin(probe: Probe | None) -> tuple[int, int] | None:
    """Start a child that probes; return its process id, and the pipe for its result."""
    if probe is None:
        return None
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _probe_and_exit(probe, writing)
    os.close(writing)
    return child, reading


def _result(child: int, reading: int, give_up_at: float) -> dict[str, dict[str, Any]]:
    text = bytearray()
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        while select.select([pipe], [], [], max(0, give_up_at - time.monotonic()))[0]:
            piece = pipe.read(_PIECE_BYTES)
            if not piece:
                break
            text += piece
    with suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    try:
        return json.loads(text)
    except ValueError:  # the container ended meanwhile, or the time was up
        return {}


def _probe_and_exit(probe: Probe, writing: int) -> None:
    status = 1
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        _enter(probe)
        statuses = _statuses(probe.apps)
        with os.fdopen(writing, "w", encoding="utf-8") as pipe:
            json.dump(statuses, pipe)
        status = 0
    finally:
        os._exit(status)


def _enter(probe: Probe) -> None:
    """Enter the container's namespaces as its user, so that files there are opened with its user's rights."""
    libc = ctypes.CDLL(None, use_errno=True)
    spaces = [os.open(f"/proc/{probe.pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in ("net", "mnt")]
    for space in spaces:
        if libc.setns(space, 0) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    os.setgroups([])
    os.setgid(probe.gid)
    os.setuid(probe.uid)


def _statuses(apps: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    problems = {app["name"]: _NO_ANSWER for app in apps}

    def check(app: dict[str, Any]) -> None:
        problems[app["name"]] = _problem(app["port"], app["health"])

    threads = [threading.Thread(target=check, args=(app,), daemon=True) for app in apps]
    for thread in threads:
        thread.start()
    give_up_at = time.monotonic() + 2 * _ANSWER_S
    for thread in threads:
        thread.join(max(0, give_up_at - time.monotonic()))
    return {app["name"]: _fact(app, problems[app["name"]]) for app in apps}


def _fact(app: dict[str, Any], problem: str) -> dict[str, Any]:
    code = None
    if problem and app["starts"]:
        text = _file_end(f"{names.APPS_IN_CONTAINER}/{app['name']}.exit")
        code = int(text) if _EXIT_CODE.fullmatch(text) else None
        if code is not None:
            lines = _file_end(f"{names.APPS_IN_CONTAINER}/{app['name']}.log").splitlines()
            problem = lines[-1][-_LINE_BYTES:] if lines else ""
    return {"healthy": not problem, "exit_code": code, "problem": problem}


def _problem(port: int, health: str | None) -> str:
    """Return why the app does not serve, or nothing."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as connection:
            connection.settimeout(_ANSWER_S)
            connection.connect((_LOOPBACK, port))
            if health is None:
                return ""
            request = f"GET {health} HTTP/1.0\r\nHost: {_LOOPBACK}:{port}\r\nConnection: close\r\n\r\n"
            connection.sendall(request.encode("ascii"))
            words = _first_line(connection).split(" ")
    except OSError:
        return _NO_ANSWER
    if len(words) < 2 or not words[0].startswith("HTTP/") or not words[1].isdigit():
        return "its port does not answer by HTTP"
    status = int(words[1])
    return "" if status < 400 or status in _SERVES else f"GET {health} is answered with status {status}"


def _first_line(connection: socket.socket) -> str:
    said = b""
    while b"\n" not in said and len(said) < _LINE_BYTES:
        piece = connection.recv(_LINE_BYTES)
        if not piece:
            break
        said += piece
    return said.split(b"\r\n")[0].decode("ascii", "replace")


def _file_end(path: str) -> str:
    """Return the end of a file that its user may have put there; empty if it is no file, or a link."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        with suppress(OSError):
            os.lseek(descriptor, -4 * _LINE_BYTES, os.SEEK_END)
        return os.read(descriptor, 4 * _LINE_BYTES).decode("utf-8", "replace").strip()
    except OSError:  # a directory, or a pipe that nobody writes to
        return ""
    finally:
        os.close(descriptor)
