"""The Linux kernel's lists of mounts: a line for each mount, with one blank between two fields (proc(5)).

Users choose the names of directories that are in them. Linux escapes blanks, tabs, newlines and backslashes there, and
nothing else that Python takes for the end of a word or of a line.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

_ESCAPED = re.compile(r"\\([0-7]{3})")
# In `mountinfo` a dash ends the optional fields, which begin here.
_OPTIONAL = 6


class Mount(NamedTuple):
    """A mount; `device` is the number of its file system, of which it has the `kind`, the `source` and the options.

    `flags` are its own options, by which two mounts of one file system may differ.
    """

    device: str
    point: str
    kind: str
    source: str
    options: tuple[str, ...]
    flags: tuple[str, ...]


def listing(path: Path) -> str:
    """Return a list as Linux writes it: reading it as text would turn each carriage return into a newline."""
    return os.fsdecode(path.read_bytes())


def fields(text: str) -> list[list[str]]:
    """Return the fields of each line of a list, such as `/proc/self/mounts`."""
    return [line.split(" ") for line in text.split("\n") if line]


def mounts(mountinfo: str) -> list[Mount]:
    """Return the mounts of a list such as `/proc/self/mountinfo`, in its order: the newest is the last."""
    return [_mount(found) for found in fields(mountinfo)]


def _mount(found: list[str]) -> Mount:
    kind, source, options = found[found.index("-", _OPTIONAL) + 1 :][:3]
    return Mount(
        found[2],
        _unescaped(found[4]),
        kind,
        source,
        tuple(map(_unescaped, options.split(","))),
        tuple(found[5].split(",")),
    )


def _unescaped(path: str) -> str:
    return _ESCAPED.sub(lambda code: chr(int(code.group(1), 8)), path)
