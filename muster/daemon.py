"""`muster daemon`: works the queue whenever something may have changed, until SIGTERM."""

import logging
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace

from muster.core.agents.agent import Agent
from muster.core.model.heartbeat import Worker
from muster.core.model.session import SessionState
from muster.core.values.errors import (
    AgentUnreachableError,
    PassInProgressError,
    QueueLockLostError,
    StoreUnavailableError,
)
from muster.core.values.garbage import RareSearches
from muster.engine.agent_engine import watch_deaths
from muster.service.control_node import opened_for_daemon
from muster.service.notify.delivery_worker import delivery_thread
from muster.service.queue.loop import KernelDied, Nudge, QueueLoop
from muster.service.queue.observing_gateway import ObservingGateway
from muster.service.queue.worker import WorkerDependencies
from muster.service.scheduler.compiled_code import compiling_beside, is_compiled
from muster.service.trouble import Trouble
from muster.settings import Settings
from muster.store.database.lock import QueueLock, exclusive, queue_lock
from muster.store.store import Store

log = logging.getLogger("muster.daemon")
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0
# What begins or ends sessions is waited for, and two agents may need something at about the same time.
PLAYS_AHEAD = {"converge": 2, "observe": 1}
_MOST_OPEN_FILES = 1 << 17
_WATCHED = frozenset({SessionState.PREPARING, SessionState.RUNNING})


class _StoppedError(Exception):
    """The error that ends the daemon on SIGTERM or SIGINT while no loop runs."""


def run_daemon(settings: Settings, on_compiled: Callable[[], None] = lambda: None) -> None:
    """Work the queue until SIGTERM or SIGINT; while another control node does, stand by.

    Calls `on_compiled` when the scheduler's compiled code is there.

    A database that is away and a disk that is full are waited for, from the start on. Raises PassInProgressError when
    a daemon runs from this same state directory, and SettingsError for what the settings have wrong.
    """
    stop, trouble, pause_s = _Stop(), Trouble(log), _FIRST_PAUSE_S
    with exclusive(settings.state_dir / "daemon.lock", wait=False), ExitStack() as stack, suppress(_StoppedError):
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop())
        _allow_many_connections()
        shell: WorkerDependencies | None = None
        watchers: _Watchers | None = None
        while not stop.is_requested:
            began = time.monotonic()
            try:
                if shell is None or watchers is None:
                    shell, gateway = stack.enter_context(opened_for_daemon(settings, PLAYS_AHEAD))
                    watchers = _Watchers(settings, shell.store, gateway)
                with _queue(settings, stop) as lock:
                    _work(settings, shell, watchers, lock, stop, trouble, on_compiled)
            except (QueueLockLostError, StoreUnavailableError, OSError) as error:
                trouble.note(f"{error}; trying again")
                # Each try observes all agents, so tries become rarer the more often they fail.
                worked = time.monotonic() - began > _LONGEST_PAUSE_S
                pause_s = _FIRST_PAUSE_S if worked else min(2 * pause_s, _LONGEST_PAUSE_S)
                time.sleep(pause_s)
    log.info("stopped")


def _allow_many_connections() -> None:
    """Raise the limit of open files: each agent that is reached by ssh takes some ten, and 1,024 are usual."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    # No higher, since some programs go through all that a limit allows.
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(now, min(most, _MOST_OPEN_FILES)), most))


class _Stop:
    """A handler of signals: it lets a running loop end by itself, and ends everything else at once."""

    def __init__(self) -> None:
        self.is_requested = False
        self.loop: QueueLoop | None = None

    def __call__(self) -> None:
        is_first, self.is_requested = not self.is_requested, True
        if self.loop is not None:
            self.loop.send(Nudge.STOP)
        elif is_first:
            # A later one would break off what is being closed.
            raise _StoppedError

    def check(self) -> None:
        """Raises _StoppedError if a signal came. Python drops what a handler raises within some callbacks."""
        if self.is_requested:
            raise _StoppedError


@contextmanager
def _queue(settings: Settings, stop: "_Stop") -> Iterator[QueueLock]:
    try:
        with queue_lock(settings.database_url, settings.state_dir, wait=False) as lock:
            yield lock
            return
    except PassInProgressError:
        log.info("the queue of cluster %s is being worked already; standing by", settings.cluster)
    with queue_lock(settings.database_url, settings.state_dir, wait=True, between_tries=stop.check) as lock:
        yield lock


def _work(
    settings: Settings,
    shell: WorkerDependencies,
    watchers: "_Watchers",
    lock: QueueLock,
    stop: _Stop,
    trouble: Trouble,
    on_compiled: Callable[[], None],
) -> None:
    compiled = threading.Event()
    shell = replace(shell, may_place=compiled.is_set)
    loop = QueueLoop(
        settings,
        shell,
        lock,
        watchers.note_report,
        # What agents said is in the database: that takes writes again.
        lambda: trouble.over("the queue is worked again"),
        RareSearches(time.monotonic).make_if_due,
        worker=Worker.DAEMON,
    )
    watchers.died = lambda agent_id, session_id: loop.send(KernelDied(agent_id, session_id))

    def on_message(message: str) -> None:
        if message in set(Nudge):
            loop.send(Nudge(message))

    def place() -> None:
        compiled.set()
        on_compiled()
        loop.send(Nudge.QUEUE)

    def compiling() -> AbstractContextManager[None]:
        """Place at once where the code is kept: to load it takes a moment, and another process as long again."""
        if not is_compiled():
            return compiling_beside(place)
        place()
        return nullcontext()

    with (
        compiling(),
        _receiving_nudges(settings, on_message),
        shell.store.listen(on_message),
        delivery_thread(settings, shell.store),
    ):
        stop.loop = loop
        if not trouble.is_on:
            log.info("working the queue of cluster %s", settings.cluster)
        try:
            loop.run()
        finally:
            stop.loop = None


@contextmanager
def _receiving_nudges(settings: Settings, on_message: Callable[[str], None]) -> Iterator[None]:
    """Receive nudges from this machine, by a socket that any local command may send to."""
    settings.wake_socket.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(settings.wake_socket))
        settings.wake_socket.chmod(0o600)

        def receive() -> None:
            with suppress(OSError):  # closed: the loop has ended
                while message := receiver.recv(64):
                    on_message(message.decode())

        threading.Thread(target=receive, name="wake", daemon=True).start()
        try:
            yield
        finally:
            settings.wake_socket.unlink(missing_ok=True)
            receiver.shutdown(socket.SHUT_RDWR)


class _Watchers:
    """The threads, one for each agent, that learn from its engine when a kernel dies.

    They also tell the gateway of reports and deaths.
    """

    def __init__(self, settings: Settings, store: Store, gateway: ObservingGateway) -> None:
        self.died: Callable[[str, str], None] = lambda _agent_id, _session_id: None
        self._settings = settings
        self._store = store
        self._gateway = gateway
        self._watched: set[str] = set()

    def note_report(self, agent: Agent) -> None:
        """Watch the agent from now on, unless it is watched already."""
        self._gateway.offer(agent)
        if agent.id not in self._watched:
            self._watched.add(agent.id)
            threading.Thread(target=self._watch, args=(agent,), name=f"watch-{agent.id}", daemon=True).start()

    def _watch(self, agent: Agent) -> None:
        def died(session_id: str) -> None:
            session = self._store.get([session_id]).get(session_id)
            # The kernels of a session that is being ended die by our own hand. Those of one that is being launched may
            # die before the launch's answer is here, and after the report in it was made.
            if session is not None and session.state in _WATCHED:
                self._gateway.hurry([agent.id])
                self.died(agent.id, session_id)

        try:
            watch_deaths(agent, self._settings.cluster, died)
        except (AgentUnreachableError, StoreUnavailableError) as error:
            log.info("%s; the next observation will tell", error)
        finally:
            self._watched.discard(agent.id)
