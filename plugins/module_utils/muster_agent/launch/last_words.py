"""Stopping kernels, and keeping what they said until the control node has it."""

from __future__ import annotations

import gzip
import json
import shutil
from base64 import b64encode
from typing import TYPE_CHECKING, Any

from .. import host_state
from ..engine.kernel_cgroup import Place
from ..names import ClusterPaths
from ..report.host_report import session_times
from ..report.kernel_usage import kernel_use

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..engine.api import EngineApi
    from ..manifest import Manifest
    from ..names import SeenContainer


def stop_kernel(engine: EngineApi, manifest: Manifest, seen: SeenContainer) -> None:
    """Stop a kernel and write its last words to the spool; only then may its container be removed."""
    spooled = ClusterPaths(manifest.cluster).session_spool(seen.session_id) / f"{seen.kernel_name}.json"
    if spooled.exists():
        return  # by a run that was killed; its request to remove the container, and the log, may be under way
    place = Place(manifest.cluster, seen.session_id, seen.generation, seen.kernel_name)
    # What its network carried is known as long as it runs, what else it used when it has ended.
    last = kernel_use(place, engine.container(seen.id)["State"]["Pid"])
    engine.stop_container(seen.id, manifest.stop_grace_s)
    log, truncated = tail_of(engine.logs(seen.id), manifest.log_max_bytes)
    words = {
        "session_id": seen.session_id,
        "kernel_id": seen.kernel_id,
        "name": seen.kernel_name,
        **session_times(engine.container(seen.id)["State"]),
        "use": {**kernel_use(place, 0), **{name: last[name] for name in ("net_rx_bytes", "net_tx_bytes")}},
        "log_gz_b64": b64encode(gzip.compress(log, mtime=0)).decode("ascii"),
        "log_truncated": truncated,
    }
    spooled.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    host_state.write_durably(spooled, json.dumps(words))


def tail_of(pieces: Iterable[bytes], max_bytes: int) -> tuple[bytes, bool]:
    """Return the last bytes of a stream, and whether there were more."""
    tail, truncated = bytearray(), False
    for piece in pieces:
        tail += piece
        if len(tail) > max_bytes:
            del tail[: len(tail) - max_bytes]
            truncated = True
    return bytes(tail), truncated


def spooled_words(cluster: str, session_id: str) -> list[dict[str, Any]]:
    """Return a session's last words on this host, in the order of the kernels' names."""
    directory = ClusterPaths(cluster).session_spool(session_id)
    if not directory.is_dir():
        return []
    return [json.loads(path.read_text("utf-8")) for path in sorted(directory.glob("*.json"))]


def spooled_sessions(cluster: str) -> set[str]:
    spool = ClusterPaths(cluster).spool
    return {directory.name for directory in spool.iterdir()} if spool.is_dir() else set()


def forget_words(cluster: str, session_id: str) -> None:
    shutil.rmtree(ClusterPaths(cluster).session_spool(session_id))
