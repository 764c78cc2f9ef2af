"""The signal that a kernel's command gets before its session is ended, sent to the programs that handle it."""

from __future__ import annotations

import os
import re
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..differences import ABSENT
from ..manifest import KEEP
from ..names import RUNTIME_PATH, ClusterPaths

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ..differences import Differences
    from ..engine.api import EngineApi
    from ..manifest import Manifest
    from ..names import SeenContainer

SIGNALS = "signals"
_FILE = "signals"
_RECORD = re.compile(r"(\d{1,9}) +(\d{1,9})\n", re.ASCII)
_PROC = Path("/proc")
_ENTRYPOINT = f"{RUNTIME_PATH}/bin/entrypoint".encode()
# Fields of /proc/PID/stat, counted behind the name.
_PARENT, _START = 1, 19
# Hexadecimal masks of /proc/PID/status: what a program has a handler for, and what it may be waiting for.
_HANDLED = ("SigCgt", "SigBlk")


class Sent(NamedTuple):
    """How many signals a kernel's command was sent in this launch, and how many programs got the last one."""

    times: int = 0
    receivers: int = 0


class DueSignal(NamedTuple):
    """The signal, by number, that a running kernel's command shall have got `desired` times; it had `before`."""

    seen: SeenContainer
    number: int
    before: int
    desired: int

    @property
    def before_text(self) -> str:
        return str(self.before or ABSENT)


class _Process(NamedTuple):
    pid: int
    parent: int
    start: int


def read_sent(directory: Path) -> Sent:
    """Return what was sent to a kernel's command in this launch, by its key directory."""
    try:
        found = _RECORD.fullmatch((directory / _FILE).read_text("ascii"))
    except (OSError, ValueError):
        return Sent()
    return Sent(int(found[1]), int(found[2])) if found else Sent()


def forget_signals(directory: Path) -> None:
    with suppress(FileNotFoundError):
        (directory / _FILE).unlink()


def due_signals(manifest: Manifest, containers: Collection[SeenContainer]) -> list[DueSignal]:
    """Return the signals that commands of running kernels have not got yet."""
    paths = ClusterPaths(manifest.cluster)
    desired = {
        (session.id, session.generation, name): session.signal
        for session in manifest.sessions
        if session.desired == KEEP and session.signal
        for name in session.signal.kernels
    }
    due = []
    for seen in containers:
        entry = desired.get((seen.session_id, seen.generation, seen.kernel_name))
        if entry is None or seen.state != "running":
            continue
        before = read_sent(paths.kernel_keys(seen.session_id, seen.kernel_name)).times
        if before < entry.times:
            due.append(DueSignal(seen, entry.number, before, entry.times))
    return due


def add_differences(differences: Differences, due: Collection[DueSignal]) -> None:
    for one in due:
        differences.add(SIGNALS, one.seen.name, one.before_text, str(one.desired))


def deliver(engine: EngineApi, cluster: str, due: DueSignal) -> None:
    """Send the signal, and record that. It is sent again only where this is killed between the two."""
    directory = ClusterPaths(cluster).kernel_keys(due.seen.session_id, due.seen.kernel_name)
    if not directory.is_dir():
        return
    first_pid = engine.container(due.seen.id)["State"]["Pid"]
    partial = directory / f"{_FILE}.new"
    # What could fail for lack of room comes before the signal.
    partial.write_text(f"{due.desired} {0:9}\n", "ascii")
    receivers = _send(first_pid, due.number)
    with partial.open("r+", encoding="ascii") as file:
        file.write(f"{due.desired} {receivers:9}\n")
    partial.replace(directory / _FILE)


def _send(first_pid: int, number: int) -> int:
    """Send the signal to a container's command; return how many programs got it.

    Where the command does not handle the signal, as a shell without a trap, what it started gets it, as far as that
    handles it. A program that does not would only die of it. Programs that the command did not start get none: sshd,
    logins, apps.
    """
    children = _children_by_parent()
    own = children.get(first_pid, [])
    if not first_pid or not own:
        return 0
    # The container's first process starts the command, and adopts what others leave behind later.
    return _send_below(min(own, key=lambda process: (process.start, process.pid)), children, number)


def _send_below(process: _Process, children: Mapping[int, list[_Process]], number: int) -> int:
    todo, receivers = [process], 0
    while todo:
        one = todo.pop()
        if _send_to(one, number):
            receivers += 1
        else:
            todo += children.get(one.pid, [])
    return receivers


def _send_to(process: _Process, number: int) -> bool:
    """Send the signal if the process handles it, and is no step of ours before the command; return whether it did."""
    try:
        # While it is held open, no other process can be meant.
        held = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        if _process(process.pid) != process or _is_ours(process.pid) or not _handles(process.pid, number):
            return False
        signal.pidfd_send_signal(held, number)
    except OSError:  # it has ended
        return False
    else:
        return True
    finally:
        os.close(held)


def _is_ours(pid: int) -> bool:
    """Return whether it is our entrypoint, which stays before a command whose output goes to files."""
    words = (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    return _ENTRYPOINT in words[1:3]


def _handles(pid: int, number: int) -> bool:
    text = (_PROC / str(pid) / "status").read_text("utf-8", "replace")
    masks = dict(line.partition(":")[::2] for line in text.splitlines())
    return any(int(masks[name], 16) >> (number - 1) & 1 for name in _HANDLED)


def _children_by_parent() -> dict[int, list[_Process]]:
    found: dict[int, list[_Process]] = {}
    for path in _PROC.glob("[0-9]*"):
        process = _process(int(path.name))
        if process is not None:
            found.setdefault(process.parent, []).append(process)
    return found


def _process(pid: int) -> _Process | None:
    try:
        stat = (_PROC / str(pid) / "stat").read_text("utf-8", "replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return _Process(pid, int(fields[_PARENT]), int(fields[_START]))
