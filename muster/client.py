"""Muster for Python programs: submit, wait, logs, cancel, by the control node's socket or by HTTPS. docs/client.md.

    from muster.client import Client

    with Client() as muster:
        job = muster.submit(command="python train.py", cpu=4, mem="16G")
        print(muster.wait(job).result, muster.logs(job))

What begins with an underscore, and what is not in `__all__`, may change at any time.
"""

import os
import socket
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self

from muster import places
from muster.core.model.session import FINAL, Result, SessionState
from muster.core.values.array import array_indexes
from muster.core.values.errors import (
    AmbiguousNameError,
    BadInputError,
    MusterError,
    NameTakenError,
    NotFoundError,
    NotPossibleInStateError,
    SpecError,
)
from muster.remote.backend import RemoteBackend
from muster.remote.client import Client as HttpClient
from muster.remote.client import ServerError, socket_of
from muster.service.questions.views import DetailsView, DryRunView
from muster.service.reach.logs import LogRequest
from muster.service.sessions.queries import SessionQuery
from muster.service.sessions.views import SessionView

__all__ = [
    "AmbiguousNameError", "BadInputError", "Client", "Completed", "Details", "Forecast", "MusterError",
    "NameTakenError", "NotFoundError", "NotPossibleInStateError", "Result", "ServerError", "Session", "SessionState",
    "SpecError",
]  # fmt: skip

Session = SessionView
Details = DetailsView
Forecast = DryRunView
Reference = str | Session
_OUTPUT, _ERRORS = 1, 2
_HEADER_BYTES = 8


@dataclass(frozen=True, slots=True)
class Completed:
    """A program that has ended in a kernel."""

    exit_code: int
    stdout: bytes
    stderr: bytes


class Client:
    """A connection to Muster. Close it, or use it as a context; threads may share it.

    `server` is a URL such as https://muster.example.org:8443, or unix:PATH for a socket. By default it is that of
    MUSTER_SERVER, or else the socket of this machine, where a Unix user needs no token. `token`, or MUSTER_TOKEN, is
    for a URL. Raises BadInputError.
    """

    def __init__(self, server: str | None = None, token: str | None = None) -> None:
        url = server or os.environ.get("MUSTER_SERVER") or f"unix:{places.SOCKET}"
        secret = token or os.environ.get("MUSTER_TOKEN", "").strip()
        if socket_of(url) is None and not secret:
            raise BadInputError("token: there is none; give one, or set MUSTER_TOKEN")
        self._http = HttpClient(url, secret or None)
        self._backend = RemoteBackend(self._http)

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def submit(self, spec: Mapping[str, Any] | None = None, *, owner: str | None = None, **fields: Any) -> Session:  # noqa: ANN401 - the spec's own
        """Queue a session and return it.

        The spec's fields are those of a session file (`muster submit --schema`), such as `command`, `cpu`, `mem`,
        `gpu`, `cluster_size`, `mounts`, `env`; those given by name win over those of `spec`. A submit that is repeated
        because no answer came is done once. Raises SpecError with each wrong field, BadInputError for an array of
        several, and MusterError.
        """
        whole = {**(spec or {}), **fields}
        _check_is_one(whole.get("array"))
        (session,) = self.submit_many(whole, owner=owner)
        return session

    def submit_many(
        self,
        spec: Mapping[str, Any] | None = None,
        *,
        count: int = 1,
        owner: str | None = None,
        **fields: Any,  # noqa: ANN401 - the spec's own
    ) -> list[Session]:
        """Queue `count` sessions of one spec, or all of an array, and return them. Raises as `submit`."""
        return self._backend.submit({**(spec or {}), **fields}, owner, count).items

    def forecast(self, spec: Mapping[str, Any] | None = None, *, owner: str | None = None, **fields: Any) -> Forecast:  # noqa: ANN401
        """Return what would become of a submit, and change nothing. Raises as `submit`."""
        return self._backend.dry_run({**(spec or {}), **fields}, owner, 1)

    def sessions(self, *, states: Iterable[SessionState] = (), ended: bool = False, mine: bool = True) -> list[Session]:
        """Return sessions, oldest first: your own that have not ended, unless you say otherwise."""
        return self._backend.search(SessionQuery(ended=ended, states=tuple(states), mine=mine))

    def session(self, reference: Reference) -> Details:
        """Return a session as it is now, with its story. Raises NotFoundError and AmbiguousNameError."""
        return self._backend.details(_text(reference))

    def wait(
        self,
        reference: Reference,
        *,
        until: Literal["ended", "running"] = "ended",
        timeout: float | None = None,
        changed: Callable[[Session], None] | None = None,
    ) -> Session:
        """Wait until a session has ended, or runs, and return it then; `changed` gets it each time that it changes.

        One that ends before it runs is returned as well: see its `state` and `reason`. Raises TimeoutError after
        `timeout` seconds, NotFoundError, and BadInputError for another `until`.
        """
        (session,) = self.wait_all(
            [reference],
            until=until,
            timeout=timeout,
            changed=None if changed is None else lambda now: changed(now[0]),
        )
        return session

    def wait_all(
        self,
        references: Iterable[Reference],
        *,
        until: Literal["ended", "running"] = "ended",
        timeout: float | None = None,
        changed: Callable[[list[Session]], None] | None = None,
    ) -> list[Session]:
        """Wait as `wait` until it is so for each of the sessions, and return them in their order. Raises as `wait`."""
        # Programs that do not check types would wait for the end.
        if until not in ("ended", "running"):
            raise BadInputError(f"until: {until!r} is not known; write ended or running")
        last: list[Session] = [self.session(reference) for reference in references]
        reached = {SessionState.RUNNING, *FINAL} if until == "running" else FINAL
        for now in self._waited_for(last, reached, timeout):
            last = now
            if changed is not None:
                changed(now)
        return last

    def _waited_for(
        self, sessions: list[Session], reached: Collection[SessionState], timeout_s: float | None
    ) -> Iterator[list[Session]]:
        """Yield the sessions each time that one changes, until all are in such a state.

        Raises TimeoutError, which names the others.
        """
        now = sessions
        try:
            for now in self._backend.wait_for(sessions, lambda session: session.state in reached, timeout_s):
                yield now
        except TimeoutError:
            late = ", ".join(f"{session.name} is {session.state}" for session in now if session.state not in reached)
            raise TimeoutError(f"after {timeout_s:g} s, {late}") from None

    def logs(self, reference: Reference, *, kernel: str | None = None, tail: int | None = None) -> str:
        """Return what a kernel has written so far, main1 by default. Raises NotFoundError and MusterError."""
        with self.log_stream(reference, kernel=kernel, tail=tail, follow=False) as pieces:
            return b"".join(pieces).decode(errors="replace")

    @contextmanager
    def log_stream(
        self, reference: Reference, *, kernel: str | None = None, tail: int | None = None, follow: bool = True
    ) -> Iterator[Iterable[bytes]]:
        """Yield what a kernel writes, piece by piece, until it ends. Raises as `logs`."""
        request = LogRequest(follow=follow, tail=tail)
        with self._backend.reach.log(_text(reference), kernel, request) as pieces:
            yield pieces

    def extend(self, reference: Reference, seconds: int) -> Session:
        """Add time to the limit of a running session and return it.

        Raises NotFoundError, AmbiguousNameError, NotPossibleInStateError, and BadInputError for more than the site
        allows.
        """
        # The name of an array would extend all of it.
        one = reference if isinstance(reference, Session) else self.session(reference)
        (session,) = self._backend.extend([one.id], seconds)
        return session

    def update(self, reference: Reference, changes: Mapping[str, Any] | None = None, **fields: Any) -> Session:  # noqa: ANN401
        """Change what a session that waits asks for and return it; it keeps its place in the queue.

        The fields are as in `submit`, those given by name win over those of `changes`. None gives a field its default.
        Of `env` and `labels` only the names that are given change; None takes a name away. Raises SpecError with each
        wrong field, NotFoundError, AmbiguousNameError, and NotPossibleInStateError for a session that does not wait.
        """
        # The name of an array would update all of it.
        one = reference if isinstance(reference, Session) else self.session(reference)
        (session,) = self._backend.update(one.id, {**(changes or {}), **fields}).items
        return session

    def cancel(self, *references: Reference) -> list[Session]:
        """End sessions, whether they wait or run, and return them. Raises NotFoundError; then none is changed."""
        return self._backend.terminate([_text(reference) for reference in references])

    def run(
        self, reference: Reference, command: Sequence[str], *, kernel: str | None = None, stdin: bytes = b""
    ) -> Completed:
        """Run a program in a kernel of a running session, main1 by default, and return it when it has ended.

        Raises NotFoundError, NotPossibleInStateError and MusterError.
        """
        outputs: dict[int, bytearray] = {_OUTPUT: bytearray(), _ERRORS: bytearray()}
        with (
            self._backend.reach.programs(_text(reference), kernel) as programs,
            programs.start(command) as execution,
            execution.connection.makefile("rb") as stream,
        ):

            def write() -> None:
                # A program need not read its input.
                with suppress(OSError):
                    execution.connection.sendall(stdin)
                    execution.connection.shutdown(socket.SHUT_WR)

            writer = threading.Thread(target=write, name="stdin", daemon=True)
            writer.start()
            while len(header := stream.read(_HEADER_BYTES)) == _HEADER_BYTES:
                outputs.get(header[0], outputs[_ERRORS]).extend(stream.read(int.from_bytes(header[4:])))
            code = execution.exit_code()
        return Completed(code, bytes(outputs[_OUTPUT]), bytes(outputs[_ERRORS]))


def _check_is_one(array: object) -> None:
    """Raises BadInputError for an array of several sessions. What is no array, the server refuses."""
    try:
        indexes = array_indexes(str(array)) if array is not None else ()
    except ValueError:
        return
    if len(indexes) > 1:
        raise BadInputError(f"array: {array} makes {len(indexes)} sessions; use submit_many")


def _text(reference: Reference) -> str:
    return reference if isinstance(reference, str) else reference.id
