"""How much kernels have written on the host's disk: counted beside the visits, since a count may outlast one.

A count is a `du` that ends by itself, with the least priority; its answer waits in memory for the next report.
"""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import names
from ..mount_table import listing, mounts

if TYPE_CHECKING:
    from collections.abc import Collection

    from ..names import ClusterPaths

# However many files a container has, du is at work for a twentieth of the time.
_REST = 19
_LEAST_REST_S = 10
_LONGEST_COUNT_S = 3600
# du follows no links, and gets along with files that vanish and with folders in folders, however deep.
_COUNT = f"""
file=$1 removed=$2 pid=$3
shift 3
ionice --class 3 true 2>/dev/null && idle='ionice --class 3'
{{
  $idle nice -n 19 timeout {_LONGEST_COUNT_S} \\
    du --summarize --total --one-file-system --block-size=1 -- "$@" >"$file.new"
  $idle nice -n 19 timeout {_LONGEST_COUNT_S} sh -c "$removed" sh "$pid" >>"$file.new"
  mv "$file.new" "$file"
}} &
"""
# A file that was removed takes its room as long as a program has it open or mapped. It is in the layer if it is of the
# same file system as the root; of others only the links are read, since a file server may not answer.
_REMOVED = r"""
space=$(stat --dereference --format=%i "/proc/$1/ns/pid") || exit
device=$(stat --dereference --format=%d "/proc/$1/root") || exit
stat --dereference --format='%i %n' /proc/[0-9]*/ns/pid | while read -r inode file; do
  [ "$inode" != "$space" ] ||
    find "${file%/ns/pid}/fd" "${file%/ns/pid}/map_files" -lname '* (deleted)' \
      -exec stat --dereference --format='%d %h %f %i %b %B' '{}' +
done 2>/dev/null | awk -v "device=$device" '
  $1 == device && $2 == 0 && $3 ~ /^8...$/ && !counted[$4]++ { sum += $5 * $6 }
  END { printf "%.0f\tremoved\n", sum }'
"""
_TOTAL = re.compile(r"^(\d+)\ttotal$", re.MULTILINE)
_TOTAL_REMOVED = re.compile(r"^(\d+)\tremoved$", re.MULTILINE)


def disk_use(paths: ClusterPaths, container: dict[str, Any]) -> int | None:
    """Return the bytes that a container with a disk limit had written when they were counted last.

    None without a limit, and before the first count. Begin the next count if it is due. What the engine limits itself
    is not counted.
    """
    if not container["Config"]["Labels"].get(names.LABEL_DISK):
        return None
    places = written_places(container)
    if not places:
        return 0 if _is_limited(container) else None
    answer = paths.disk_counts / container["Id"]
    try:
        paths.disk_counts.mkdir(mode=0o700, parents=True, exist_ok=True)
        # What the engine limits, it limits with what was removed.
        _begin_count(answer, places, 0 if _is_limited(container) else container["State"]["Pid"])
        counts = answer.read_text("utf-8", "replace")
    except OSError:  # not counted yet, or memory has no room
        return None
    found, removed = _TOTAL.search(counts), _TOTAL_REMOVED.search(counts)
    return int(found.group(1)) + (int(removed.group(1)) if removed else 0) if found else None


def forget_others(paths: ClusterPaths, container_ids: Collection[str]) -> None:
    """Remove the counts of containers that are no more, and with the last one their directory."""
    with suppress(OSError):  # there is none, or it is not empty
        for path in list(paths.disk_counts.iterdir()):
            if path.name.partition(".")[0] not in container_ids:
                path.unlink(missing_ok=True)
        paths.disk_counts.rmdir()


def written_places(container: dict[str, Any]) -> list[str]:
    """Return the directories of the host with what a container has written: its layer, and volumes of its image."""
    volumes = [mount["Source"] for mount in container["Mounts"] if mount["Type"] == "volume"]
    if _is_limited(container):
        return volumes
    layer = ((container.get("GraphDriver") or {}).get("Data") or {}).get("UpperDir") or _mounted_layer(container)
    return [layer, *volumes] if layer else []


def _is_limited(container: dict[str, Any]) -> bool:
    return bool((container["HostConfig"].get("StorageOpt") or {}).get("size"))


def upper_directory(mountinfo: str) -> str:
    """Return the directory of an overlay at the root of these mounts (as in /proc/PID/mountinfo); empty if unknown."""
    roots = (mount for mount in mounts(mountinfo) if mount.point == "/" and mount.kind == "overlay")
    options = (option for mount in roots for option in mount.options)
    return next((option.partition("=")[2] for option in options if option.startswith("upperdir=/")), "")


def _mounted_layer(container: dict[str, Any]) -> str:
    """Return the layer's directory by the container's own mounts: containerd's image store does not name it."""
    pid = container["State"]["Pid"]
    if not pid:
        return ""
    try:
        return upper_directory(listing(Path(f"/proc/{pid}/mountinfo")))
    except OSError:  # it has ended since
        return ""


def _begin_count(answer: Path, places: list[str], pid: int) -> None:
    """Begin a count unless one is under way, or ended only now: it holds the lock until it ends.

    Removed files are counted that programs in the container of process `pid` have open; of none if that is 0.
    """
    lock = os.open(f"{answer}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        ended_at = _counted_at(answer)
        if ended_at is not None and not is_due(os.fstat(lock).st_mtime, ended_at, time.time()):
            return
        os.utime(lock)
        null = subprocess.DEVNULL
        subprocess.run(
            ["sh", "-c", _COUNT, "sh", str(answer), _REMOVED, str(pid), *places],
            check=False,
            stdin=null,
            stdout=null,
            stderr=null,
            env={**os.environ, "LC_ALL": "C"},
            start_new_session=True,
            pass_fds=(lock,),
        )
    except BlockingIOError:
        return
    finally:
        os.close(lock)


def is_due(began_at: float, ended_at: float, now: float) -> bool:
    """Return whether the next count may begin, by the last one's times. A clock that was set back delays none."""
    return not 0 <= now - ended_at < max(_LEAST_REST_S, _REST * (ended_at - began_at))


def _counted_at(answer: Path) -> float | None:
    try:
        return answer.stat().st_mtime
    except FileNotFoundError:
        return None
