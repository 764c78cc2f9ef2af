"""Apps in the browser: each that is opened gets a port, and so an origin, of its own.

An app is a user's code: beside Muster's own pages it would be one of them.
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
from muster.service.reach.app_gateway import AppWay
from muster.service.service import Service
from muster.service.sessions.live import LiveChange, LiveChanges
from muster.web.opened_apps.server import AppListener, AppListening
from muster.web.problems import TooManyError

log = logging.getLogger("muster.apps")
CHECK_S = 15.0
IDLE_S = 1800.0
MOST_OF_A_USER = 10


@dataclass(frozen=True, slots=True)
class Browser:
    """Where somebody has signed in, by his cookie's secret; `scheme` and `host` are how he reaches this server."""

    secret: str
    scheme: str
    host: str


@dataclass(frozen=True, slots=True)
class _Key:
    """One browser's app. Another browser gets a port of its own, which ends with its own signing out."""

    user: str
    browser: str
    session_id: str
    generation: int
    app: App


@dataclass(frozen=True, slots=True)
class _Opened:
    browser: Browser
    way: AppWay
    listener: AppListener


class AppGateway:
    def __init__(self, service: Service, listening: AppListening) -> None:
        self._service = service
        self._listening = listening
        self._opened: dict[_Key, asyncio.Task[_Opened]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._look = asyncio.Event()
        self._next = 0

    @asynccontextmanager
    async def running(self, live: LiveChanges) -> AsyncIterator[None]:
        watching = asyncio.create_task(self._watch(live))
        try:
            yield
        finally:
            watching.cancel()
            for key in list(self._opened):
                self._close(key)
            await asyncio.gather(watching, *self._closing, return_exceptions=True)

    async def open(self, asked: LocalBackend, reference: str, name: str, browser: Browser) -> tuple[Session, App, str]:
        """The session, the app, and the URL that leads in, once and within half a minute.

        Raises as `LocalBackend.openable_app`, and TooManyError.
        """
        session, app = await run_in_threadpool(asked.openable_app, reference, name)
        digest = hashlib.sha256(f"{browser.secret} {browser.scheme} {browser.host}".encode()).hexdigest()
        key = _Key(asked.user, digest, session.id, session.generation, app)
        if (earlier := self._finished(key)) is not None and not earlier.way.is_open():
            self._close(key)
        if key not in self._opened:
            self._check_room(asked.user)
            task = self._opened[key] = asyncio.create_task(self._open(asked, session, app, browser))
            task.add_done_callback(lambda done: self._forget_failed(key, done))
        opened = await asyncio.shield(self._opened[key])
        self._look.set()
        return session, app, opened.listener.entrance()

    async def _open(self, asked: LocalBackend, session: Session, app: App, browser: Browser) -> _Opened:
        way = await run_in_threadpool(asked.way_to_app, session, app)
        try:
            bound = self._bound()
            listener = AppListener(self._listening, bound, way, f"{browser.scheme}://{browser.host}")
            await listener.start()
        except BaseException:  # also where the server stops meanwhile: no ssh outlives what asked for it
            await run_in_threadpool(way.close)
            raise
        log.info("app %s of session %s is open at port %s", app.name, session.name, listener.port)
        return _Opened(browser, way, listener)

    def _check_room(self, user: str) -> None:
        if sum(key.user == user for key in self._opened) >= MOST_OF_A_USER:
            raise TooManyError(
                f"you have {MOST_OF_A_USER} apps open; one is closed when its session ends, when you sign out, or after"
                " half an hour without use"
            )

    def _bound(self) -> socket.socket:
        """A free port, that which was used longest ago. Raises TooManyError."""
        ports = self._listening.ports
        for offset in range(len(ports)):
            index = (self._next + offset) % len(ports)
            bound = self._listening.bound(ports[index])
            if bound is not None:
                self._next = index + 1
                return bound
        raise TooManyError(f"all {len(ports)} ports for apps (--app-ports) are taken; try again later")

    async def _watch(self, live: LiveChanges) -> None:
        loop = asyncio.get_running_loop()

        def heard(changes: Sequence[LiveChange]) -> None:
            ids = {key.session_id for key in list(self._opened)}
            if any(change.session.id in ids for change in changes):
                loop.call_soon_threadsafe(self._look.set)

        try:
            while True:
                # Not `wait_for`, which may miss that it is cancelled when what it waits for comes at that moment.
                with suppress(TimeoutError):
                    async with asyncio.timeout(CHECK_S):
                        await self._look.wait()
                self._look.clear()
                # Nobody reads the database for those who have nothing open.
                if self._opened:
                    await run_in_threadpool(live.add, heard)
                else:
                    live.remove(heard)
                for key in list(self._opened):
                    opened = self._finished(key)
                    if opened is not None and not await run_in_threadpool(self._may_go_on, key, opened):
                        self._close(key)
        finally:
            live.remove(heard)

    def _may_go_on(self, key: _Key, opened: _Opened) -> bool:
        if opened.listener.used_at < time.monotonic() - IDLE_S or not opened.way.is_open():
            return False
        try:
            asked = self._service.backend(self._service.tokens.signed_in(opened.browser.secret))
            session, app = asked.openable_app(key.session_id, key.app.name)
        except MusterError:
            # Also where the database cannot be asked: he opens it again.
            return False
        except Exception:
            # One app of which nobody can tell is closed; those of all others are watched on.
            log.exception("app %s is closed, since nobody can tell whose it is", key.app.name)
            return False
        return session.generation == key.generation and app == key.app

    def _finished(self, key: _Key) -> _Opened | None:
        task = self._opened.get(key)
        return task.result() if task and task.done() and not task.cancelled() and not task.exception() else None

    def _forget_failed(self, key: _Key, task: asyncio.Task[_Opened]) -> None:
        if (task.cancelled() or task.exception()) and self._opened.get(key) is task:
            del self._opened[key]

    def _close(self, key: _Key) -> None:
        """At once for whoever comes; what is under way ends within a moment."""
        closing = asyncio.create_task(_closed(self._opened.pop(key)))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)


async def _closed(opening: asyncio.Task[_Opened]) -> None:
    with suppress(MusterError):
        opened = await opening
        try:
            await opened.listener.stop()
        finally:
            await run_in_threadpool(opened.way.close)
