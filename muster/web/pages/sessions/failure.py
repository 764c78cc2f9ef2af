"""The end of the logs of a session that failed, for its page."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from muster.core.model.session import FINAL, Result
from muster.core.values.errors import MusterError
from muster.service.local_backend import LocalBackend
from muster.service.reach.logs import LogRequest
from muster.service.sessions.views import KernelView, SessionView

_LINES = 20
_MOST_BYTES = 8192
_MOST_CONTAINERS = 3
_WORD = re.compile(r"\w+")
# Colours and other orders to a terminal, and control characters but for tabs and line ends.
_UNREADABLE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[@-Z\\-_]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class FailedContainer:
    """A container with how it ended, and the last lines of its log; no lines if none are kept."""

    name: str
    outcome: str
    tail: str


def failed_containers(backend: LocalBackend, session: SessionView) -> Sequence[FailedContainer]:
    """Return the first containers that failed, or main1 if none did by itself; nothing for other sessions.

    The session's reason names one that failed without an exit code of its own, such as one that ended too soon.
    """
    if session.state not in FINAL or session.result is not Result.FAILURE or not session.generation:
        return ()
    named = set(_WORD.findall(session.reason or ""))
    failed = [kernel for kernel in session.kernels if kernel.exit_code or kernel.oom_killed or kernel.name in named]
    return [
        FailedContainer(kernel.name, _outcome(kernel), _tail(backend, session.id, kernel.name))
        for kernel in (failed or session.kernels)[: _MOST_CONTAINERS if failed else 1]
    ]


def _outcome(kernel: KernelView) -> str:
    parts = [] if kernel.exit_code is None else [f"exit code {kernel.exit_code}"]
    return ", ".join([*parts, "out of memory"] if kernel.oom_killed else parts)


def _tail(backend: LocalBackend, session_id: str, kernel: str) -> str:
    try:
        with backend.reach.log(session_id, kernel, LogRequest(tail=_LINES)) as pieces:
            kept = b"".join(pieces)
    except MusterError:
        # It left no log.
        return ""
    # A progress bar overwrites its line from the start after each CR.
    shown = b"\n".join(line.rstrip(b"\r").rpartition(b"\r")[2] for line in kept.split(b"\n"))
    return _UNREADABLE.sub("", shown[-_MOST_BYTES:].decode(errors="replace")).strip("\n")
