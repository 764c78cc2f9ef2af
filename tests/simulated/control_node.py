"""A control node with a real store and simulated agents, which can die at any commit."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from muster.ansible_gateway.templates import Templates
from muster.core.agents.agent import AgentState
from muster.core.launch.manifest import LaunchPolicy
from muster.core.lifecycle import transitions
from muster.core.model.session import Session, SessionState
from muster.core.scheduling.closures import could_hold
from muster.core.turn.ledger import TurnRules
from muster.service.images.rights import ImageRights
from muster.service.queue.worker import QueueWorker, Work, WorkerDependencies
from muster.service.secrets.secrets import Secrets
from muster.store.store import Store
from tests.simulated.agents import Container, SimulatedAgent
from tests.simulated.gateway import SimulatedGateway
from tests.simulated.hosts import host_of
from tests.strategies.sessions import make_session
from tests.strategies.values import NOW, fake_key_pair

if TYPE_CHECKING:
    from muster.core.turn.facts import Fact

S = SessionState
LOST_AFTER_S = 300.0
SLOW_AFTER_S = 15.0
# Compiling the templates would be most of a small test's time.
_RENDER = Templates().render


class Crash(BaseException):
    """The control node is gone."""


class CrashingStore(Store):
    """A store that dies at its n-th writing transaction from now: just before the commit, or just after it."""

    crash_in = 0
    after_commit = False
    commits = 0

    def __init__(self, url: str) -> None:
        super().__init__(url)
        sa.event.listen(self._engine, "commit", self._note_commit)

    def _note_commit(self, connection: sa.Connection) -> None:
        if not connection.get_execution_options().get("writing"):
            return
        self.crash_in -= 1
        if self.crash_in == 0:
            if self.after_commit:
                connection.connection.commit()
            raise Crash
        self.commits += 1


class ControlNode:
    """A store, simulated agents and a clock, put together as `muster.service.control_node` does it."""

    def __init__(self, directory: Path, *agents: SimulatedAgent, url: str | None = None) -> None:
        self.directory = directory
        self.url = url or f"sqlite:///{directory / 'muster.db'}"
        self.gateway = SimulatedGateway(*agents)
        self.now = NOW
        self.numbers = count(1)
        self.open()
        for agent in agents:
            agent.was_made, agent.was_released, agent.was_removed = self._made, self._released, self._removed
        self.wrongly_removed: list[Container] = []
        self.wrongly_released: list[Container] = []
        self._kernels_made: dict[tuple[str, int], set[str]] = {}
        self._under_way = 0

    def open(self) -> None:
        self.store = CrashingStore(self.url)
        self.shell = WorkerDependencies(
            store=self.store,
            gateway=self.gateway,
            pull_image=self.gateway.pull,
            render=_RENDER,
            make_key_pair=fake_key_pair,
            launch_policy=LaunchPolicy(),
            start=self._start,
            with_policy=lambda snapshot: snapshot,
            secrets=Secrets(self.store.secrets, self.directory / "secrets.key"),
            refused_images=ImageRights(self.store, self.directory / "images.yml").refusals,
            rules=TurnRules(LOST_AFTER_S, SLOW_AFTER_S, could_hold),
            clock=lambda: self.now,
        )
        self.inbox: SimpleQueue[Fact] = SimpleQueue()
        self.worker = QueueWorker(self.shell, self.inbox.put)

    def restart(self) -> None:
        self.store.close()
        self.gateway.crash_before = self.gateway.crash_after = None
        self.open()

    def submit(self, **values: Any) -> Session:
        session = replace(make_session(next(self.numbers), **values), submitted_at=self.now)
        self.store.add([session])
        return session

    def end(self, session: Session) -> None:
        self.store.apply([transitions.end_by_user(self.session(session), "ada", self.now)])

    def session(self, session: Session) -> Session:
        return self.store.get([session.id])[session.id]

    def state(self, session: Session) -> SessionState:
        return self.session(session).state

    def run(self, *, observe: bool = True) -> Work:
        """Work until nothing more follows from a nudge, or with `observe` from the interval. Return the work."""
        self.now += 1
        self.worker.work = Work()
        if observe:
            self.worker.observe_all()
        self.go_on()
        failure, self.worker.failure = self.worker.failure, None
        if failure is not None:
            raise failure
        return self.worker.work

    def go_on(self) -> None:
        """Work until nothing more follows, and all visits and pulls that are under way hang."""
        self.worker.decide()
        while self._more_follows():
            facts = []
            while not self.inbox.empty():
                facts.append(self.inbox.get())
            self.worker.take(facts)
            self.worker.decide()

    def go_on_until(self, reached: Callable[[], bool]) -> None:
        """Work until the condition holds, with answers that other threads bring."""
        self.worker.decide()
        while not reached():
            self.worker.take([self.inbox.get(timeout=30)])
            self.worker.decide()

    def story(self, session: Session) -> list[str]:
        return [line.to_state for line in self.store.story(session.id)]

    def _start(self, run: Callable[[], None]) -> None:
        """Visit in a thread if an agent hangs, otherwise at once, so that tests need no waiting."""
        if any(agent.hangs or agent.pull_hangs for agent in self.gateway.agents.values()):
            with self.gateway.stirred:
                self._under_way += 1
            Thread(target=self._in_thread, args=(run,), daemon=True).start()
        else:
            run()

    def _in_thread(self, run: Callable[[], None]) -> None:
        try:
            run()
        finally:
            with self.gateway.stirred:
                self._under_way -= 1
                self.gateway.stirred.notify_all()

    def _more_follows(self) -> bool:
        """Wait until a thread has answered or all of them hang. Return whether there is an answer."""

        def is_settled() -> bool:
            hanging = 0 if self.gateway.let_go.is_set() else self.gateway.hanging
            return not self.inbox.empty() or self._under_way == hanging

        with self.gateway.stirred:
            assert self.gateway.stirred.wait_for(is_settled, timeout=30), "a visit neither ends nor hangs"
        return not self.inbox.empty()

    def _made(self, container: Container) -> None:
        self._kernels_made.setdefault((container.session_id, container.generation), set()).add(container.kernel_id)

    def _released(self, container: Container) -> None:
        """Check a release. It is wrong if a part of the gang is missing, or an earlier launch of it may still run."""
        session = self.store.get([container.session_id])[container.session_id]
        made = self._kernels_made[container.session_id, container.generation]
        seen = [agent for agent in self.store.snapshot(self.now).agents if agent.state is AgentState.ALIVE]
        # Agents in the present visit are being cleaned.
        visited = self.gateway.manifests[-1]
        earlier = [
            other
            for agent in seen
            if agent.id in self.gateway.agents and agent.id not in visited
            for other in self.gateway.agents[agent.id].of_session(session.id)
            if other.generation != container.generation and other.released and other.state == "running"
        ]
        if earlier or made != {kernel.id for kernel in session.kernels}:
            self.wrongly_released.append(container)

    def _removed(self, container: Container) -> None:
        session = self.store.get([container.session_id]).get(container.session_id)
        if session and session.state is S.RUNNING and session.generation == container.generation:
            self.wrongly_removed.append(container)


def an_agent(agent_id: str = "a1", **hardware: Any) -> SimulatedAgent:
    return SimulatedAgent(agent_id, *host_of(agent_id, **hardware))
