"""The ways into sessions for a token's user: logs, programs, terminals, ssh, apps."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from muster.core.model.apps import App
from muster.core.model.session import Session, kernel_named
from muster.core.model.token import Token
from muster.service.identity.permissions import check_may_change
from muster.service.reach.app_gateway import AppTunnel, open_app_tunnel, openable_app
from muster.service.reach.logs import LogRequest, agent_of, opened_log
from muster.service.reach.programs import KernelPrograms, Program, open_program, opened_programs
from muster.service.reach.ssh_access import ssh_access
from muster.service.reach.terminal import Terminal, check_has_terminal, open_terminal
from muster.service.reach.views import AppAccessView, SshAccessView
from muster.service.sessions.views import SessionKernelView
from muster.settings import Settings
from muster.store.store import Store


class OwnedReach:
    """The ways into the sessions of a token's user. `find` returns one that they may see, or raises NotFoundError."""

    def __init__(self, store: Store, settings: Settings, token: Token, find: Callable[[str], Session]) -> None:
        self._store = store
        self._settings = settings
        self._token = token
        self.find = find

    @contextmanager
    def log(self, reference: str, kernel: str | None, request: LogRequest) -> Iterator[Iterable[bytes]]:
        session = self.find(reference)
        runtime_path = self._settings.launch_policy().runtime_path
        with opened_log(self._store, runtime_path, session, kernel_named(session, kernel), request) as chunks:
            yield chunks

    def kernel(self, reference: str, name: str | None) -> SessionKernelView:
        """Return a kernel of a session, main1 where no name is given. Raises as `session`."""
        session = self.find(reference)
        return SessionKernelView.of(session, kernel_named(session, name))

    def kernel_with_terminal(self, reference: str, name: str | None) -> SessionKernelView:
        """Return a kernel that `open_terminal` can open. Raises ScopeError, as `kernel` and NotPossibleInStateError."""
        check_may_change(self._token)
        session = self.find(reference)
        kernel = kernel_named(session, name)
        check_has_terminal(session, kernel)
        return SessionKernelView.of(session, kernel)

    @contextmanager
    def programs(self, reference: str, kernel: str | None) -> Iterator[KernelPrograms]:
        """Yield what starts programs in a kernel, main1 for None.

        Raises ScopeError, and as `find` and `opened_programs`.
        """
        check_may_change(self._token)
        with opened_programs(self._store.agents.all(), self.find(reference), kernel) as programs:
            yield programs

    def open_program(self, reference: str, kernel: str | None, command: list[str], *, terminal: bool) -> Program:
        """Start one program in a kernel. Raises as `programs`."""
        check_may_change(self._token)
        return open_program(self._store.agents.all(), self.find(reference), kernel, command, terminal=terminal)

    def app_access(self, reference: str, name: str | None) -> AppAccessView:
        """Return what a tunnel to an app needs; the session's only one for None.

        Raises ScopeError, NotFoundError, BadInputError, NotPossibleInStateError and AgentUnreachableError.
        """
        from muster.service.reach.app_tunnel import app_access  # noqa: PLC0415 - the Docker SDK loads slowly

        check_may_change(self._token)
        return app_access(self._store, self._settings, self.find(reference), name)

    def ssh_access(self, reference: str) -> SshAccessView:
        """Raises ScopeError, as `find`, and NotPossibleInStateError where the session does not run."""
        check_may_change(self._token)
        session = self.find(reference)
        agent = agent_of(self._store.agents.all(), session, session.main)
        return SshAccessView.of(ssh_access(self._settings, session, agent))

    def open_terminal(self, reference: str, kernel: str | None) -> Terminal:
        """Raises ScopeError, and as `find` and `terminal.open_terminal`."""
        check_may_change(self._token)
        return open_terminal(self._settings, self._store.agents.all(), self.find(reference), kernel)

    def openable_app(self, reference: str, name: str) -> tuple[Session, App]:
        """Raises ScopeError, NotFoundError and NotPossibleInStateError."""
        check_may_change(self._token)
        session = self.find(reference)
        return session, openable_app(self._store.agents.all(), session, name)

    def open_app_tunnel(self, session: Session, app: App) -> AppTunnel:
        """Open a tunnel to an app of `openable_app`. Raises MusterError."""
        return open_app_tunnel(self._settings, self._store.agents.all(), session, app)
