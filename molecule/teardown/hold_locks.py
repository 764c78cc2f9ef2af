"""Hold the locks of apt's lists and of dpkg, each until an apt-get that needs it has been refused."""

import fcntl
import os
import time
from pathlib import Path

COMMANDS = {"/var/lib/apt/lists/lock": "update", "/var/lib/dpkg/lock-frontend": "install"}


def words(process: Path) -> list[str]:
    """Return a process's command line, or one empty word if it has ended."""
    try:
        return (process / "cmdline").read_text().split("\0")
    except OSError:
        return [""]


def parent(process: Path) -> Path:
    """Return a process's parent. A process that has ended has itself."""
    try:
        return Path("/proc") / (process / "stat").read_text().rpartition(") ")[2].split()[1]
    except OSError:
        return process


def running(command: str) -> set[str]:
    """Return the process ids of the apt-gets that run `command`, without the children that they fork."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        line = words(process)
        if line[0].endswith("apt-get") and command in line and not words(parent(process))[0].endswith("apt-get"):
            found.add(process.name)
    return found


held = {path: os.open(path, os.O_RDWR | os.O_CREAT, 0o640) for path in COMMANDS}
for file in held.values():
    fcntl.lockf(file, fcntl.LOCK_EX)
Path("/run/apt-locks-held").touch()
for path, file in held.items():
    seen: set[str] = set()
    while not seen - running(COMMANDS[path]):
        seen |= running(COMMANDS[path])
        time.sleep(0.001)
    os.close(file)
