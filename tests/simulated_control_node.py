"""A control node with a real store and simulated agents, which can die at any commit."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from muster.ansible_gateway.templates import Templates
from muster.core import lifecycle
from muster.core.manifest import LaunchPolicy
from muster.core.session import Session, SessionState
from muster.service.logs import KeptLogs
from muster.service.queue_pass import PassDependencies, PassSummary, run_pass
from muster.store.store import Store
from tests.simulated_agents import Container, SimulatedAgent, SimulatedGateway, report_of
from tests.strategies import NOW, fake_key_pair, make_session

S = SessionState


class Crash(BaseException):
    """The control node is gone."""


class CrashingStore(Store):
    """Dies at its n-th writing transaction from now: just before the commit, or just after it."""

    crash_in = 0
    after_commit = False
    commits = 0

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        with super()._writing() as connection:
            yield connection
            self.crash_in -= 1
            if self.crash_in == 0 and not self.after_commit:
                raise Crash
        self.commits += 1
        if self.crash_in == 0 and self.after_commit:
            raise Crash


class ControlNode:
    """Store, simulated agents and a clock, put together as `muster.service.control_node` does it."""

    def __init__(self, directory: Path, *agents: SimulatedAgent) -> None:
        self.directory = directory
        self.gateway = SimulatedGateway(*agents)
        self.now = NOW
        self.numbers = count(1)
        self.open()
        for agent in agents:
            agent.removed = self._removed
        self.wrongly_removed: list[Container] = []

    def open(self) -> None:
        self.store = CrashingStore(f"sqlite:///{self.directory / 'muster.db'}")
        self.logs = KeptLogs(self.directory / "logs")
        self.shell = PassDependencies(
            store=self.store,
            gateway=self.gateway,
            logs=self.logs,
            render=Templates().render,
            make_key_pair=fake_key_pair,
            launch_policy=LaunchPolicy(),
            clock=lambda: self.now,
        )

    def restart(self) -> None:
        self.store.close()
        self.gateway.crash_before = self.gateway.crash_after = None
        self.open()

    def submit(self, **values: object) -> Session:
        session = replace(make_session(next(self.numbers), **values), submitted_at=self.now)
        self.store.add([session])
        return session

    def end(self, session: Session) -> None:
        self.store.apply([lifecycle.end_by_user(self.session(session), "ada", self.now)])

    def session(self, session: Session) -> Session:
        return self.store.get([session.id])[session.id]

    def state(self, session: Session) -> SessionState:
        return self.session(session).state

    def run(self, *, observe: bool = True) -> PassSummary:
        self.now += 1
        return run_pass(self.shell, observe=observe)

    def story(self, session: Session) -> list[str]:
        return [line.to_state for line in self.store.story(session.id)]

    def _removed(self, container: Container) -> None:
        session = self.store.get([container.session_id]).get(container.session_id)
        if session and session.state is S.RUNNING and session.generation == container.generation:
            self.wrongly_removed.append(container)


def an_agent(agent_id: str = "a1", **hardware: Any) -> SimulatedAgent:
    return SimulatedAgent(agent_id, report_of(agent_id, **hardware))
