"""What a kernel or an app has written: while it runs from its agent's engine, afterwards as it was kept."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from muster.core.model.agent import Agent
from muster.core.model.session import FINAL, Kernel, Session, SessionState
from muster.core.values.errors import BadInputError, NotPossibleInStateError
from muster.service.sessions.sessions import Sessions


@dataclass(frozen=True, slots=True)
class LogWanted:
    """`tail`: only that many of the last lines; `app`: of this app instead of the kernel."""

    follow: bool = False
    tail: int | None = None
    timestamps: bool = False
    app: str | None = None

    def check(self) -> None:
        """Raises BadInputError."""
        if self.app is not None and self.timestamps:
            raise BadInputError("--timestamps: apps' lines carry none; leave it out")


def agent_of(service: Sessions, session: Session, kernel: Kernel) -> Agent:
    """Raises NotPossibleInStateError when the session has no containers now."""
    if session.state not in {SessionState.RUNNING, SessionState.TERMINATING} or kernel.allocation is None:
        raise NotPossibleInStateError(f"session {session.name} is {session.state}; it has no containers now")
    for agent in service.store.agents():
        if agent.id == kernel.allocation.agent_id:
            return agent
    raise NotPossibleInStateError(f"agent {kernel.allocation.agent_id} of session {session.name} is not known any more")


@contextmanager
def opened_log(service: Sessions, session: Session, kernel: Kernel, wanted: LogWanted) -> Iterator[Iterable[bytes]]:
    """The log in pieces; one that is followed has a `close` that ends it from any thread.

    Raises BadInputError, NotFoundError, NotPossibleInStateError and AgentUnreachableError.
    """
    wanted.check()
    if wanted.app is None and session.state in FINAL:
        yield [_kept(service, session, kernel, wanted.tail)]
        return
    from muster.engine.agent_engine import container_of  # noqa: PLC0415 - the Docker SDK loads slowly
    from muster.engine.app_log import app_log  # noqa: PLC0415
    from muster.service.reach.apps import app_named  # noqa: PLC0415

    app = None if wanted.app is None else app_named(session, wanted.app)
    if app is not None and app.command is None:
        raise BadInputError(
            f"--app: {app.name} is a port that the session's own program serves; its log is the session's"
        )
    kernel = kernel if app is None else session.main
    with container_of(agent_of(service, session, kernel), kernel) as container:
        if app is not None:
            runtime = service.settings.launch_policy().runtime_path
            yield app_log(container, runtime, app.name, tail=wanted.tail, follow=wanted.follow)
            return
        tail: Literal["all"] | int = "all" if wanted.tail is None else wanted.tail
        yield container.logs(stream=True, follow=wanted.follow, tail=tail, timestamps=wanted.timestamps)


def _kept(service: Sessions, session: Session, kernel: Kernel, tail: int | None) -> bytes:
    kept = service.store.log(session.id, kernel.name)
    if kept is None:
        raise NotPossibleInStateError(f"{session.name} is {session.state} and left no log of {kernel.name}")
    return kept if tail is None else b"".join(kept.splitlines(keepends=True)[-tail:] if tail else [])
