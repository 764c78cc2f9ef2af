"""Logs of kernels and apps: from the agent's engine while they run, afterwards from the store."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import Literal

from muster.core.agents.agent import Agent
from muster.core.model.session import FINAL, Kernel, Session, SessionState
from muster.core.values.errors import BadInputError, NotPossibleInStateError
from muster.store.store import Store


@dataclass(frozen=True, slots=True)
class LogRequest:
    """A request for a log: only its last `tail` lines, or that of the app `app` instead of the kernel's."""

    follow: bool = False
    tail: int | None = None
    timestamps: bool = False
    app: str | None = None

    def check(self) -> None:
        """Raises BadInputError."""
        if self.app is not None and self.timestamps:
            raise BadInputError("--timestamps: apps' lines carry none; leave it out")


def agent_of(agents: Iterable[Agent], session: Session, kernel: Kernel) -> Agent:
    """Return the agent that holds the kernel's container. Raises NotPossibleInStateError when there is none now."""
    if session.state not in {SessionState.RUNNING, SessionState.TERMINATING} or kernel.allocation is None:
        raise NotPossibleInStateError(f"session {session.name} is {session.state}; it has no containers now")
    for agent in agents:
        if agent.id == kernel.allocation.agent_id:
            return agent
    raise NotPossibleInStateError(f"agent {kernel.allocation.agent_id} of session {session.name} is not known any more")


@contextmanager
def opened_log(
    store: Store, runtime_path: str, session: Session, kernel: Kernel, request: LogRequest
) -> Iterator[Iterable[bytes]]:
    """Open the log and yield its pieces; those of a followed log have a `close`, which any thread may call.

    `runtime_path` is where agents keep the session runtime.

    Raises BadInputError, NotFoundError, NotPossibleInStateError and AgentUnreachableError.
    """
    request.check()
    if request.app is None and session.state in FINAL:
        yield [_kept(store, session, kernel, request.tail)]
        return
    from muster.engine.agent_engine import container_of  # noqa: PLC0415 - the Docker SDK loads slowly
    from muster.engine.app_log import app_log  # noqa: PLC0415
    from muster.service.reach.apps import app_named  # noqa: PLC0415

    app = None if request.app is None else app_named(session, request.app)
    if app is not None and app.command is None:
        raise BadInputError(
            f"--app: {app.name} is a port that the session's own program serves; its log is the session's"
        )
    kernel = kernel if app is None else session.main
    with container_of(agent_of(store.agents.all(), session, kernel), kernel) as container:
        if app is not None:
            with app_log(container, runtime_path, app.name, tail=request.tail, follow=request.follow) as pieces:
                yield pieces
            return
        tail: Literal["all"] | int = "all" if request.tail is None else request.tail
        yield container.logs(stream=True, follow=request.follow, tail=tail, timestamps=request.timestamps)


def _kept(store: Store, session: Session, kernel: Kernel, tail: int | None) -> bytes:
    kept = store.log(session.id, kernel.name)
    if kept is None:
        raise NotPossibleInStateError(f"{session.name} is {session.state} and left no log of {kernel.name}")
    # As of the engine's log, lines end with LF alone: a progress bar is one line, with many CRs.
    return kept if tail is None else b"".join(BytesIO(kept).readlines()[-tail:] if tail else [])
