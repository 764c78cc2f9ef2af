"""The notice for a session's user before its end: a file in each kernel, and a line on its open terminals."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..differences import ABSENT
from ..engine.api import EngineError
from ..manifest import KEEP
from ..names import ClusterPaths

if TYPE_CHECKING:
    from collections.abc import Collection

    from ..differences import Differences
    from ..engine.api import EngineApi
    from ..manifest import Manifest
    from ..names import SeenContainer

NOTICES = "notices"
_FILE = "notice"
_PROC = Path("/proc")
# Slaves of pseudo-terminals: Documentation/admin-guide/devices.txt.
_PTS_MAJORS = range(136, 144)


class Notice(NamedTuple):
    """The notice that a running kernel shall have, and the one that it has; empty for none."""

    seen: SeenContainer
    before: str
    desired: str


def read_notice(directory: Path) -> str:
    """Return what a kernel has to read, by its key directory."""
    try:
        return (directory / _FILE).read_text("utf-8")
    except OSError:
        return ""


def forget_notice(directory: Path) -> None:
    with suppress(FileNotFoundError):
        (directory / _FILE).unlink()


def due_notices(manifest: Manifest, containers: Collection[SeenContainer]) -> list[Notice]:
    """Return those of running kernels of sessions to be kept that are not as the manifest says."""
    paths = ClusterPaths(manifest.cluster)
    desired = {session.id: session.notice for session in manifest.sessions if session.desired == KEEP}
    running = [seen for seen in containers if seen.session_id in desired and seen.state == "running"]
    notices = [
        Notice(seen, read_notice(paths.kernel_keys(seen.session_id, seen.kernel_name)), desired[seen.session_id])
        for seen in running
    ]
    return [notice for notice in notices if notice.before != notice.desired]


def add_differences(differences: Differences, notices: Collection[Notice]) -> None:
    for notice in notices:
        differences.add(NOTICES, notice.seen.name, notice.before or ABSENT, notice.desired or ABSENT)


def deliver(engine: EngineApi, cluster: str, notice: Notice) -> None:
    directory = ClusterPaths(cluster).kernel_keys(notice.seen.session_id, notice.seen.kernel_name)
    if not directory.is_dir():
        return
    if not notice.desired:
        forget_notice(directory)
        return
    partial = directory / f"{_FILE}.new"
    partial.write_text(notice.desired, "utf-8")
    partial.chmod(0o644)
    partial.replace(directory / _FILE)
    with suppress(EngineError):  # removed since: nobody reads it
        _say_on_terminals(engine.container(notice.seen.id)["State"]["Pid"], notice.desired)


def _say_on_terminals(pid: int, text: str, proc: Path = _PROC) -> None:
    """Write to the open terminals of a container, and to no other file of such a name."""
    terminals = proc / str(pid) / "root/dev/pts"
    names = list(terminals.glob("[0-9]*")) if pid and terminals.is_dir() else []
    for path in names:
        with suppress(OSError):  # it was closed, or is stopped: the file says the same
            descriptor = os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_NOFOLLOW)
            try:
                found = os.fstat(descriptor)
                if stat.S_ISCHR(found.st_mode) and os.major(found.st_rdev) in _PTS_MAJORS:
                    os.write(descriptor, f"\r\nmuster: {text.strip()}\r\n".encode())
            finally:
                os.close(descriptor)
