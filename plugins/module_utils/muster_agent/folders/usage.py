"""How much a folder with an owner holds on this host, and whether its quota is enforced."""

from __future__ import annotations

import subprocess
import time
from typing import TYPE_CHECKING, Any

from . import owned, quota
from .mounted import FolderError

if TYPE_CHECKING:
    from .owned import Entry


def usage(folders_root: str, entries: list[Entry], patience_s: float) -> list[dict[str, Any]]:
    """Return an entry for each folder, as `agent_folders` does.

    `used_bytes` and `files` are null where the kernel does not count them and counting would take longer than is left
    of the patience.
    """
    give_up_at = time.monotonic() + patience_s
    return [_usage_of(folders_root, entry, give_up_at) for entry in entries]


def _usage_of(folders_root: str, entry: Entry, give_up_at: float) -> dict[str, Any]:
    nothing = {"path": entry.path, "exists": False, "used_bytes": 0, "files": 0, "quota": None, "shared_from": None}
    try:
        with owned.opened(folders_root, entry.path) as folder:
            system = quota.file_system(folder)
            counted = quota.counted(folder, entry.number)
            enforcement = None if entry.quota_bytes is None else quota.enforcement(folder) or "enforced"
    except FileNotFoundError:
        return nothing
    except OSError as error:
        raise FolderError(f"folder {entry.path} cannot be read: {error.strerror}") from error
    if counted is None:
        counted = _walked(owned.place(folders_root, entry.path), give_up_at)
    return {
        **nothing,
        "exists": True,
        "used_bytes": None if counted is None else counted.used_bytes,
        "files": None if counted is None else counted.files,
        "quota": enforcement,
        # Agents that name the same have one and the same folder.
        "shared_from": quota.shared_from(system),
    }


def _walked(place: str, give_up_at: float) -> quota.Counted | None:
    sizes = [_du(place, option, give_up_at) for option in ("--block-size=1", "--inodes")]
    if sizes[0] is None or sizes[1] is None:
        return None
    return quota.Counted(used_bytes=sizes[0], files=max(0, sizes[1] - 1))


def _du(place: str, option: str, give_up_at: float) -> int | None:
    """Return du's answer: it follows no links, and changes meanwhile do not confuse it."""
    left_s = give_up_at - time.monotonic()
    if left_s <= 0:
        return None
    command = ["du", "--summarize", "--one-file-system", option, "--", place]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=left_s)
    except subprocess.TimeoutExpired:
        return None
    size, _, _ = done.stdout.partition("\t")
    return int(size) if size.isdigit() else None
