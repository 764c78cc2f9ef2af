"""The plain directories of the data root: those that the site makes itself, beside folders with an owner."""

from __future__ import annotations

import os
import threading

from .mounted import AREA

_MOST_NAMES = 1000
_MOST_BYTES = 255
# A file server that does not answer keeps a listing waiting for as long as it likes.
_PATIENCE_S = 2.0


def plain_directories(folders_root: str, patience_s: float = _PATIENCE_S) -> list[str] | None:
    """Return the names in the data root that a session may mount, sorted; None where they are unknown.

    That is where the root cannot be read in time, or holds too many.
    """
    found: list[list[str] | None] = []
    # The thread may hang for ever: as a daemon, it keeps no module from ending.
    reader = threading.Thread(target=lambda: found.append(_names(folders_root)), daemon=True)
    reader.start()
    reader.join(patience_s)
    names = found[0] if found else None
    return None if names is None or len(names) > _MOST_NAMES else names


def _names(folders_root: str) -> list[str] | None:
    try:
        with os.scandir(folders_root) as entries:
            names = [entry.name for entry in entries if _is_directory(entry)]
    except FileNotFoundError:
        return []
    except OSError:
        return None
    return sorted(name for name in names if name != AREA and _can_be_reported(name))


def _is_directory(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a directory, or a link to one."""
    try:
        return entry.is_dir()
    except OSError:
        # A link that leads to itself, or to what nobody may look at.
        return False


def _can_be_reported(name: str) -> bool:
    return name.isprintable() and len(os.fsencode(name)) <= _MOST_BYTES
