"""How many files a process of a kernel may have open.

A container without a limit of its own has that of the containerd that starts it. By containerd 2.1.5, which Docker 29
has, that is 1,024: too few for the loaders of data and the connections of a gang. By older ones it is over a thousand
million on some systems, where programs that close every file that they might have stand still for minutes.
"""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from pathlib import Path

_PROC = Path("/proc")
_MOST = 1 << 20
_CAP_SYS_RESOURCE = 1 << 24
_STARTERS = ("containerd", "dockerd")


@lru_cache
def most_open_files(proc: Path = _PROC) -> int:
    """Return the limit for each process of a kernel: 1,048,576, or what this host allows if that is less.

    It is found out once in a process: where all of the host's are looked at, that takes some 10 ms.
    """
    most = min(_MOST, int((proc / "sys/fs/nr_open").read_text()))
    status = (proc / "self/status").read_text()
    if int(_after(status, "CapEff:")[0], 16) & _CAP_SYS_RESOURCE:
        return most
    # On a host that is itself a container none may raise its own limit.
    return min([most, _hard_limit(proc / "self"), *map(_hard_limit, _starters(proc))])


def _starters(proc: Path) -> list[Path]:
    """Return the processes whose limits containers inherit."""
    found = []
    for comm in proc.glob("[0-9]*/comm"):
        with suppress(OSError):  # it has ended
            if comm.read_text().rstrip("\n") in _STARTERS:
                found.append(comm.parent)
    return found


def _hard_limit(process: Path) -> int:
    try:
        limits = (process / "limits").read_text()
    except OSError:
        limits = ""
    if not limits:  # it has ended; a zombie has no limits
        return _MOST
    hard = _after(limits, "Max open files")[1]
    return _MOST if hard == "unlimited" else int(hard)


def _after(text: str, start: str) -> list[str]:
    """Return the words after the start of the line that begins so."""
    return next(line[len(start) :].split() for line in text.splitlines() if line.startswith(start))
