"""Apps in the browser: each opened app gets a port, and so an origin, of its own.

An app is a user's code. At the origin of Muster's pages it could do all that the pages may.
"""

import asyncio
import hashlib
import logging
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from fastapi.concurrency import run_in_threadpool

from muster.core.model.apps import App
from muster.core.model.session import Session
from muster.core.values.errors import MusterError
from muster.service.local_backend import LocalBackend
from muster.service.reach.app_gateway import AppTunnel
from muster.service.service import Service
from muster.service.sessions.live import ChangeHandler, LiveChange, LiveChanges
from muster.service.sessions.views import SessionView
from muster.web.opened_apps.server import AppAddresses, AppServer
from muster.web.problems import TooManyError

log = logging.getLogger("muster.apps")
CHECK_S = 15.0
IDLE_S = 1800.0
MAX_PER_USER = 10


@dataclass(frozen=True, slots=True)
class Browser:
    """A signed-in browser: its cookie's secret, and the scheme and host by which it reaches this server."""

    secret: str
    scheme: str
    host: str


@dataclass(frozen=True, slots=True)
class _Key:
    """A key: one app of one browser. Each browser gets a port of its own, which closes when the browser signs out."""

    user: str
    browser: str
    session_id: str
    generation: int
    app: App


@dataclass(frozen=True, slots=True)
class _OpenedApp:
    browser: Browser
    way: AppTunnel
    server: AppServer
    on_changes: ChangeHandler


class AppGateway:
    """The opened apps of this server."""

    def __init__(self, service: Service, addresses: AppAddresses, live: LiveChanges) -> None:
        self._service = service
        self._addresses = addresses
        self._live = live
        self._opened: dict[_Key, asyncio.Task[_OpenedApp]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._check_now = asyncio.Event()
        self._next_index = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Watch over the opened apps; close all of them in the end."""
        watching = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            watching.cancel()
            for key in list(self._opened):
                self._close(key)
            await asyncio.gather(watching, *self._closing, return_exceptions=True)

    async def open(self, backend: LocalBackend, reference: str, name: str, browser: Browser) -> tuple[SessionView, str]:
        """Open an app, and return its session, and a URL that is good once and for 30 seconds.

        Raises as `OwnedReach.openable_app`, and TooManyError.
        """
        session, app = await run_in_threadpool(backend.reach.openable_app, reference, name)
        digest = hashlib.sha256(f"{browser.secret} {browser.scheme} {browser.host}".encode()).hexdigest()
        key = _Key(backend.user, digest, session.id, session.generation, app)
        if (earlier := self._finished(key)) is not None:
            # Another process may be asked, which may take long: every request waits for what blocks here.
            is_open = await run_in_threadpool(earlier.way.is_open)
            if not is_open and self._finished(key) is earlier:
                self._close(key)
        if key not in self._opened:
            self._check_limit(backend.user)
            task = self._opened[key] = asyncio.create_task(self._open(backend, session, app, browser))
            task.add_done_callback(lambda done: self._forget_failed(key, done))
        opened = await asyncio.shield(self._opened[key])
        self._check_now.set()
        return SessionView.of(session), opened.server.entrance()

    async def _open(self, backend: LocalBackend, session: Session, app: App, browser: Browser) -> _OpenedApp:
        way = await run_in_threadpool(backend.reach.open_app_tunnel, session, app)
        on_changes = self._checks_at_changes_of(session)
        try:
            # While no app is open, nothing has to read the database for changes.
            await run_in_threadpool(self._live.add, on_changes, backend.token)
            bound = self._bind()
            server = AppServer(self._addresses, bound, way, f"{browser.scheme}://{browser.host}")
            await server.start()
        except BaseException:  # also a cancellation, when the server stops: no tunnel outlives it
            self._live.remove(on_changes)
            await run_in_threadpool(way.close)
            raise
        log.info("app %s of session %s is open at port %s", app.name, session.name, server.port)
        return _OpenedApp(browser, way, server, on_changes)

    def _checks_at_changes_of(self, session: Session) -> ChangeHandler:
        loop = asyncio.get_running_loop()

        def on_changes(changes: Sequence[LiveChange]) -> None:
            if any(change.session.id == session.id for change in changes):
                loop.call_soon_threadsafe(self._check_now.set)

        return on_changes

    def _check_limit(self, user: str) -> None:
        if sum(key.user == user for key in self._opened) >= MAX_PER_USER:
            raise TooManyError(
                f"you have {MAX_PER_USER} apps open; one is closed when its session ends, when you sign out, or after"
                " half an hour without use"
            )

    def _bind(self) -> socket.socket:
        """Return a socket at the free port that was used longest ago. Raises TooManyError."""
        ports = self._addresses.ports
        for offset in range(len(ports)):
            index = (self._next_index + offset) % len(ports)
            bound = self._addresses.bind(ports[index])
            if bound is not None:
                self._next_index = index + 1
                return bound
        raise TooManyError(f"all {len(ports)} ports for apps are in use; close an app, or try again later")

    async def _watch(self) -> None:
        while True:
            # `wait_for` may miss a cancellation that comes at the same moment as the event.
            with suppress(TimeoutError):
                async with asyncio.timeout(CHECK_S):
                    await self._check_now.wait()
            self._check_now.clear()
            for key in list(self._opened):
                opened = self._finished(key)
                if opened is not None and not await run_in_threadpool(self._may_stay_open, key, opened):
                    self._close(key)

    def _may_stay_open(self, key: _Key, opened: _OpenedApp) -> bool:
        if opened.server.used_at < time.monotonic() - IDLE_S or not opened.way.is_open():
            return False
        try:
            backend = self._service.backend(self._service.tokens.signed_in(opened.browser.secret))
            session, app = backend.reach.openable_app(key.session_id, key.app.name)
        except MusterError:
            # Also when the database does not answer: the user can open the app again.
            return False
        except Exception:
            # An unexpected error closes this app only; the others stay under watch.
            log.exception("app %s is closed, since its access cannot be checked", key.app.name)
            return False
        return session.generation == key.generation and app == key.app

    def _finished(self, key: _Key) -> _OpenedApp | None:
        task = self._opened.get(key)
        return task.result() if task and task.done() and not task.cancelled() and not task.exception() else None

    def _forget_failed(self, key: _Key, task: asyncio.Task[_OpenedApp]) -> None:
        if (task.cancelled() or task.exception()) and self._opened.get(key) is task:
            del self._opened[key]

    def _close(self, key: _Key) -> None:
        """Refuse new requests at once; the server ends soon after."""
        closing = asyncio.create_task(self._end(self._opened.pop(key)))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _end(self, opening: asyncio.Task[_OpenedApp]) -> None:
        with suppress(MusterError):
            opened = await opening
            self._live.remove(opened.on_changes)
            try:
                await opened.server.stop()
            finally:
                await run_in_threadpool(opened.way.close)
