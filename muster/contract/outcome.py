"""What an agent made of its manifest (docs/agent-contract.md, "What comes back")."""

import base64
import binascii
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from muster.contract.manifest import KnownSession, LaunchedSession, Manifest
from muster.contract.report import UseSample
from muster.contract.values import ContractError, ContractModel, ExitCode, Line, Many, Moment, Text, checked

# Or the manifest's limit, if that is more: a spool may be older than a lowered limit.
MOST_LOG_BYTES = 16 << 20
_GZIP = 16 + zlib.MAX_WBITS
_DONE = {"release": "released", "keep": "kept", "stop": "stopped"}

OutcomeName = Literal["started", "released", "kept", "stopped", "failed"]


class SessionResult(ContractModel):
    """The outcome of one session of the manifest. `error` is one line for its user."""

    id: Line
    outcome: OutcomeName
    error: Text | None
    permanent: bool


class LastWords(ContractModel):
    """A kernel's end, and the end of its output. Older code on the agent may have spooled it without `use`."""

    session_id: Line
    kernel_id: Line
    name: Line
    exit_code: ExitCode | None
    oom_killed: bool
    started_at: Moment | None
    finished_at: Moment | None
    log_gz_b64: str
    log_truncated: bool
    use: UseSample | None = None

    @property
    def log_gz(self) -> bytes:
        return base64.b64decode(self.log_gz_b64)


class ConvergeResult(ContractModel):
    """The part of a module's result that speaks of the manifest's sessions."""

    sessions: Many[SessionResult]
    last_words: Many[LastWords]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one session on an agent. A `permanent` failure is not retried.

    A failure is not `reached` where the control node knows that the agent never got its manifest.
    """

    outcome: OutcomeName
    error: str | None = None
    permanent: bool = False
    last_words: tuple[LastWords, ...] = ()
    reached: bool = True


def outcomes_from_agent(
    result: Mapping[str, Any], manifest: Manifest, *, is_complete: bool = True
) -> dict[str, Outcome]:
    """Return the outcomes of the manifest's sessions, by session id; of all of them, where the answer `is_complete`.

    Raises ContractError, also where the agent speaks of sessions or kernels that its manifest does not name.
    """
    given = {name: result[name] for name in ConvergeResult.model_fields if name in result}
    found = checked(ConvergeResult, given, "answer")
    _check_sessions(found.sessions, manifest, is_complete=is_complete)
    _check_words(found.last_words, manifest)
    return {
        entry.id: Outcome(
            entry.outcome,
            entry.error,
            entry.permanent,
            tuple(words for words in found.last_words if words.session_id == entry.id),
        )
        for entry in found.sessions
    }


def _check_sessions(results: tuple[SessionResult, ...], manifest: Manifest, *, is_complete: bool) -> None:
    sessions = {session.id: session for session in manifest.sessions}
    named = {entry.id for entry in results}
    if len(named) != len(results) or not named <= sessions.keys() or (is_complete and len(named) < len(sessions)):
        raise ContractError("answer: sessions are not those of its manifest")
    for entry in results:
        if entry.outcome not in {"failed", _done(sessions[entry.id])}:
            raise ContractError(f"answer: session {entry.id} is {entry.outcome}, which the manifest does not say")
        if entry.outcome == "failed" and not entry.error:
            raise ContractError(f"answer: session {entry.id} failed without an error")


def _done(session: LaunchedSession | KnownSession) -> str:
    if isinstance(session, LaunchedSession):
        return "released" if session.release else "started"
    return _DONE[session.desired]


def _check_words(words: tuple[LastWords, ...], manifest: Manifest) -> None:
    stopped = {
        (session.id, kernel.id, kernel.name)
        for session in manifest.sessions
        if session.desired == "stop"
        for kernel in session.kernels
    }
    speakers = [(entry.session_id, entry.kernel_id, entry.name) for entry in words]
    if len(speakers) != len(set(speakers)) or not set(speakers) <= stopped:
        raise ContractError("answer: last_words are not of kernels that it was to stop")
    most = max(MOST_LOG_BYTES, manifest.log_max_bytes)
    for entry in words:
        _check_log(entry, most)


def _check_log(words: LastWords, most: int) -> None:
    problem = f"answer: the log of kernel {words.kernel_id}"
    # Base64 is longer by a third, and gzip makes nothing longer by more than that.
    if len(words.log_gz_b64) > 2 * most:
        raise ContractError(f"{problem} is longer than {most} bytes")
    stream = zlib.decompressobj(_GZIP)
    try:
        log = stream.decompress(base64.b64decode(words.log_gz_b64, validate=True), most + 1)
    except (binascii.Error, ValueError, zlib.error):
        raise ContractError(f"{problem} is not base64 of gzip") from None
    if len(log) > most:
        raise ContractError(f"{problem} is longer than {most} bytes")
    if not stream.eof or stream.unused_data:
        raise ContractError(f"{problem} is not base64 of gzip")
