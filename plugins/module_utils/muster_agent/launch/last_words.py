"""Stopping kernels, and keeping what they said until the control node has it."""

from __future__ import annotations

import gzip
import json
import shutil
from base64 import b64encode
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from .. import host_state
from ..engine.api import DESCRIPTION_PATIENCE_S, EngineError
from ..engine.kernel_cgroup import Place
from ..names import ClusterPaths
from ..report.kernel_usage import kernel_use
from ..report.process_times import session_times
from . import key_directory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from ..engine.api import EngineApi
    from ..manifest import Manifest, Session
    from ..names import SeenContainer

# The control node takes no answer of more than 256 MiB. There are as many logs as kernels, and some pack badly.
MOST_BYTES_OF_AN_ANSWER = 128 << 20
_GONE, _BEING_REMOVED = 404, 409
_ENDED = {"exited", "dead"}


def stop_kernel(engine: EngineApi, manifest: Manifest, seen: SeenContainer) -> None:
    """Stop a kernel and keep its last words; only then may its container be removed.

    Of a container that somebody removes meanwhile, they say what could be read of it until then. Raises OSError when
    they can be kept neither on the disk nor in memory.
    """
    if any(spool.exists() for spool in _spools(manifest.cluster, seen)):
        return  # by a run that was killed; its request to remove the container, and the log, may be under way
    place = Place(manifest.cluster, seen.session_id, seen.generation, seen.kernel_name)
    try:
        state = engine.container(seen.id, DESCRIPTION_PATIENCE_S)["State"]
    except EngineError as error:
        if error.status != _GONE:
            raise
        return  # before anything of it could be read
    # Its network's counters can be read only while it runs. All others can be read after its end.
    last = kernel_use(place, state["Pid"])
    log, truncated = b"", True
    if state["Status"] not in _ENDED:
        with _while_it_is_there():
            engine.stop_container(seen.id, manifest.stop_grace_s)
        with _while_it_is_there():
            state = engine.container(seen.id)["State"]
    with _while_it_is_there():
        log, truncated = tail_of(engine.logs(seen.id), manifest.log_max_bytes)
    words = {
        "session_id": seen.session_id,
        "kernel_id": seen.kernel_id,
        "name": seen.kernel_name,
        **session_times(state),
        "use": {**kernel_use(place, 0), **{name: last[name] for name in ("net_rx_bytes", "net_tx_bytes")}},
        "log_gz_b64": _packed(log),
        "log_truncated": truncated,
    }
    _keep(manifest.cluster, seen, words)


@contextmanager
def _while_it_is_there() -> Iterator[None]:
    """Ignore the failure of a request whose container is gone, or is being removed by another process."""
    try:
        yield
    except EngineError as error:
        if error.status not in {_GONE, _BEING_REMOVED}:
            raise


def _keep(cluster: str, seen: SeenContainer, words: dict[str, Any]) -> None:
    """Write last words to the disk, or while that takes none to memory: removing the container may make room."""
    on_disk, in_memory = _spools(cluster, seen)
    try:
        _write(on_disk, words)
    except OSError:
        key_directory.ensure_memory_backed()
        try:
            _write(in_memory, words)
        except OSError:
            _write(in_memory, {**words, **_NO_LOG})


def _write(path: Path, words: dict[str, Any]) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    host_state.write_durably(path, json.dumps(words))


def _spools(cluster: str, seen: SeenContainer) -> tuple[Path, Path]:
    """Return where a kernel's last words may lie: on the disk, and in memory."""
    on_disk, in_memory = (
        spool / seen.session_id / f"{seen.kernel_name}.json" for spool in ClusterPaths(cluster).spools
    )
    return on_disk, in_memory


def _packed(log: bytes) -> str:
    return b64encode(gzip.compress(log, mtime=0)).decode("ascii")


_NO_LOG = {"log_gz_b64": _packed(b""), "log_truncated": True}


def tail_of(pieces: Iterable[bytes], max_bytes: int) -> tuple[bytes, bool]:
    """Return the last bytes of a stream, and whether there were more."""
    tail, truncated = bytearray(), False
    for piece in pieces:
        tail += piece
        if len(tail) > max_bytes:
            del tail[: len(tail) - max_bytes]
            truncated = True
    return bytes(tail), truncated


class Answer:
    """The last words of one answer, which holds those of one session at least."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._left = MOST_BYTES_OF_AN_ANSWER
        self.words: list[dict[str, Any]] = []

    def takes(self, session: Session) -> bool:
        """Add a session's last words. Return False if they do not fit in beside those of others: another answer will.

        Raises OSError and ValueError if they cannot be read.
        """
        files = _spooled_files(self._cluster, session)
        size = sum(file.stat().st_size for file in files)
        if self.words and size > self._left:
            return False
        self.words += spooled_words(self._cluster, session, self._left)
        self._left = max(0, self._left - size)
        return True


def spooled_words(cluster: str, session: Session, most_bytes: int) -> list[dict[str, Any]]:
    """Return the last words on this host of the session's kernels, in the order of their names.

    The control node refuses those of others: an earlier launch had them here. Logs beyond so many bytes are left out.
    """
    named = {kernel.id for kernel in session.kernels}
    words = []
    for file in _spooled_files(cluster, session):
        entry = json.loads(file.read_text("utf-8"))
        most_bytes -= file.stat().st_size
        if most_bytes < 0:
            entry = {**entry, **_NO_LOG}
        if entry["kernel_id"] in named:
            words.append(entry)
    return words


def _spooled_files(cluster: str, session: Session) -> list[Path]:
    found = {path.name: path for spool in ClusterPaths(cluster).spools for path in (spool / session.id).glob("*.json")}
    return [found[name] for name in sorted(found)]


def spooled_sessions(cluster: str) -> set[str]:
    spools = [spool for spool in ClusterPaths(cluster).spools if spool.is_dir()]
    return {directory.name for spool in spools for directory in spool.iterdir()}


def forget_words(cluster: str, session_id: str) -> None:
    for spool in ClusterPaths(cluster).spools:
        with suppress(FileNotFoundError):
            shutil.rmtree(spool / session_id)
