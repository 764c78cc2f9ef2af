"""Ansible's runs beside the queue's worker. They are started here, and their results come as facts."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Protocol

from muster.contract.manifest import Manifest
from muster.core.turn.answer import AgentAnswer, AnswerHandler
from muster.core.turn.facts import VisitOver
from muster.core.turn.turn import Observation
from muster.core.values.errors import AnsibleFailedError, MusterError

Start = Callable[[Callable[[], None]], None]


class Gateway(Protocol):
    """The gateway to agents that the queue's worker needs."""

    def observe(self, agent_ids: Collection[str], on_answer: AnswerHandler, without: Collection[str] = ()) -> None: ...

    def converge(self, manifests: Mapping[str, Manifest], on_answer: AnswerHandler) -> None: ...


class VisitRunner:
    """A runner of visits, each by `start`. `send` gets a visit's answers as they come, and then its end."""

    def __init__(self, gateway: Gateway, start: Start, send: Callable[[AgentAnswer | VisitOver], None]) -> None:
        self._gateway = gateway
        self._start = start
        self._send = send

    def observe(self, visit: Observation) -> None:
        self._begin(visit.visit, partial(self._gateway.observe, visit.agent_ids, without=visit.without))

    def converge(self, number: int, manifests: Mapping[str, Manifest]) -> None:
        self._begin(number, partial(self._gateway.converge, manifests))

    def _begin(self, number: int, run: Callable[..., None]) -> None:
        def work() -> None:
            # Kept until the run has ended well: if it broke off, an agent's silence says nothing about the agent.
            error: MusterError | None = AnsibleFailedError("a visit to agents broke off")
            try:
                run(on_answer=lambda answer: self._send(replace(answer, visit=number)))
                error = None
            except MusterError as raised:
                error = raised
            except OSError as raised:
                error = AnsibleFailedError(f"Ansible cannot be run: {raised}")
            finally:
                self._send(VisitOver(number, error))

        self._start(work)
