"""The loop: a pass when something may have changed, an observation of all agents on an interval."""

import logging
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from muster.core.agent import Agent
from muster.core.errors import AgentUnreachableError, MusterError
from muster.core.session import SessionState
from muster.engine.agent_engine import watch_deaths
from muster.service.control_node import locked_pass, opened
from muster.service.queue_pass import PassDependencies
from muster.service.wake import LOOK, LOOK_AT_AGENTS, wake
from muster.settings import Settings
from muster.store.lock import exclusive

log = logging.getLogger("muster.daemon")
_STOP = b"stop"
_TIME_IS_UP = b"time"


def run_daemon(settings: Settings) -> None:
    """Works the queue until SIGTERM or SIGINT. Raises PassInProgressError when another daemon does."""
    with (
        exclusive(settings.state_dir / "daemon.lock", wait=False),
        _wake_socket(settings) as nudges,
        opened(settings) as shell,
    ):
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: wake(settings.wake_socket, _STOP))
        log.info("working the queue of cluster %s", settings.cluster)
        _Loop(settings, shell, nudges).run()
    log.info("stopped")


@contextmanager
def _wake_socket(settings: Settings) -> Iterator[socket.socket]:
    settings.wake_socket.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(settings.wake_socket))
        settings.wake_socket.chmod(0o600)
        try:
            yield receiver
        finally:
            settings.wake_socket.unlink(missing_ok=True)


class _Loop:
    def __init__(self, settings: Settings, shell: PassDependencies, nudges: socket.socket) -> None:
        self._settings = settings
        self._shell = shell
        self._nudges = nudges
        self._watched: set[str] = set()

    def run(self) -> None:
        next_observation = 0.0
        while True:
            observe = time.monotonic() >= next_observation
            if not observe:
                due_s, look_at_agents = self._next_due()
                message = self._next_nudge(min(due_s, max(0.0, next_observation - time.monotonic())))
                if message == _STOP:
                    return
                observe = message == LOOK_AT_AGENTS or (message == _TIME_IS_UP and look_at_agents)
                observe = observe or time.monotonic() >= next_observation
            if observe:
                next_observation = time.monotonic() + self._settings.observe_interval_s
            self._pass(observe=observe)

    def _pass(self, *, observe: bool) -> None:
        try:
            summary = locked_pass(self._settings, self._shell, observe=observe, wait=True)
        except MusterError as error:
            # The queue outlives a pass that failed: the next one reads everything again.
            log.error("the pass failed: %s", error)  # noqa: TRY400 - one line, no traceback
            return
        for agent_id, problem in summary.problems.items():
            log.warning("agent %s: %s", agent_id, problem)
        if summary.changed:
            log.info(
                "scheduled %d, started %d, ended %d, failed %d; %d wait",
                len(summary.scheduled),
                len(summary.started),
                len(summary.ended),
                len(summary.failed),
                summary.waiting,
            )
            # What ended has made room, and what started may have ended meanwhile.
            wake(self._settings.wake_socket)
        self._watch_agents()

    def _next_due(self) -> tuple[float, bool]:
        """Seconds until the next thing that the clock alone brings, and whether agents must be looked at then.

        A launch is to be repeated, or a time limit is reached. What is overdue waits for the next observation.
        """
        snapshot = self._shell.store.snapshot(time.time())
        retries = [(session.retry_at, False) for session in snapshot.pending if session.retry_at is not None]
        limits = [
            (session.started_at + session.spec.time_limit, True)
            for session in snapshot.placed
            if session.state is SessionState.RUNNING and session.started_at and session.spec.time_limit
        ]
        coming = [(at - snapshot.now, look) for at, look in [*retries, *limits] if at > snapshot.now]
        # A moment later: a pass that begins too early would see nothing to do.
        return min(((due_s + 0.05, look) for due_s, look in coming), default=(self._settings.observe_interval_s, True))

    def _next_nudge(self, timeout_s: float) -> bytes:
        """The weightiest of the nudges that have come, or that the time is up."""
        self._nudges.settimeout(max(0.01, timeout_s))
        received = set()
        try:
            received.add(self._nudges.recv(64))
            self._nudges.setblocking(False)
            while True:
                received.add(self._nudges.recv(64))
        except (TimeoutError, BlockingIOError):
            pass
        return next((message for message in (_STOP, LOOK_AT_AGENTS, LOOK) if message in received), _TIME_IS_UP)

    def _watch_agents(self) -> None:
        for agent in self._shell.store.snapshot(time.time()).agents:
            if agent.id not in self._watched:
                self._watched.add(agent.id)
                threading.Thread(target=self._watch, args=(agent,), name=f"watch-{agent.id}", daemon=True).start()

    def _watch(self, agent: Agent) -> None:
        def died(session_id: str) -> None:
            session = self._shell.store.get([session_id]).get(session_id)
            # The kernels of a session that is being ended die by our own hand.
            if session is not None and session.state is SessionState.RUNNING:
                wake(self._settings.wake_socket, LOOK_AT_AGENTS)

        try:
            watch_deaths(agent, self._settings.cluster, died)
        except AgentUnreachableError as error:
            log.info("%s; the next observation will tell", error)
        finally:
            self._watched.discard(agent.id)
