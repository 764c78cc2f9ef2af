"""The simulated agents of one inventory, in the place of the Ansible gateway in tests of the pass."""

import copy
from collections.abc import Callable, Collection, Mapping
from threading import Condition, Event
from typing import Any

from muster.ansible_gateway.gateway import read_visit
from muster.ansible_gateway.layout import INVENTORY
from muster.contract.manifest import Manifest
from muster.core.agents.agent import Agent
from muster.core.images.names import familiar
from muster.core.turn.answer import AgentAnswer, AnswerHandler
from muster.core.values.errors import AnsibleFailedError
from tests.simulated.agents import ForeignDatabaseError, Overlays, SimulatedAgent
from tests.waiting import PATIENCE_S


class SimulatedGateway:
    """The agents of one inventory. Counts its requests; `crash` raises before or after the agents act.

    An agent that hangs keeps its run waiting, once the others have answered, and one whose pulls hang its pulls, until
    `let_go` is set.
    """

    def __init__(self, *agents: SimulatedAgent) -> None:
        self.agents = {agent.id: agent for agent in agents}
        self.overlays: Overlays = {}
        self.observations: list[list[str]] = []
        self.manifests: list[dict[str, Mapping[str, Any]]] = []
        self.crash_before: BaseException | None = None
        self.crash_after: BaseException | None = None
        self.fails: AnsibleFailedError | OSError | None = None
        self.breaks_off_after: int | None = None
        self.meanwhile: Callable[[], None] = lambda: None
        self.pulled: list[tuple[str, str]] = []
        self.let_go = Event()
        self.hanging = 0
        self.stirred = Condition()

    def observe(self, agent_ids: Collection[str], on_answer: AnswerHandler, without: Collection[str] = ()) -> None:
        if self.fails:
            raise self.fails
        reached = [a for a in self.agents.values() if a.id in agent_ids or (not agent_ids and a.id not in without)]
        self.observations.append([agent.id for agent in reached])
        for agent in self._hanging_last(reached[: self.breaks_off_after]):
            on_answer(self._refusal(agent) or self._answer(agent, {"report": self._report(agent)}))
        if self.breaks_off_after is not None:
            raise AnsibleFailedError("it was killed")

    def converge(self, manifests: Mapping[str, Manifest], on_answer: AnswerHandler) -> None:
        if self.crash_before is not None:
            raise self.crash_before
        if self.fails:
            raise self.fails
        self.manifests.append({agent_id: manifest.model_dump(mode="json") for agent_id, manifest in manifests.items()})
        self.meanwhile()
        reached = [self.agents[agent_id] for agent_id in manifests if agent_id in self.agents]
        # The one that makes the overlays comes first: on real hosts the others wait for them.
        reached.sort(key=lambda agent: manifests[agent.id].overlays is None)
        answers = []
        for agent in self._hanging_last(reached):
            answer = self._refusal(agent) or self._converged(agent, manifests[agent.id])
            if agent.hangs or self.crash_after is None:
                on_answer(answer)
            else:
                answers.append(answer)
        if self.crash_after is not None:
            raise self.crash_after

    def pull(self, agent: Agent, reference: str, progressed: Callable[[int, int], None]) -> None:
        host = self.agents[agent.id]
        self.pulled.append((agent.id, reference))
        progressed(1, 2)
        self.meanwhile()
        if host.pull_hangs:
            self._hang()
        if host.pull_fails:
            raise host.pull_fails
        if host.lists_what_it_pulled:
            image = {"id": f"sha256:{reference}", "tags": [familiar(reference)], "size_bytes": 1}
            host.hardware["images"] = [*host.hardware["images"], image]

    def _hanging_last(self, agents: list[SimulatedAgent]) -> Any:
        for agent in sorted(agents, key=lambda agent: agent.hangs):
            if agent.hangs:
                self._hang()
            agent.visits += 1
            yield agent

    def _hang(self) -> None:
        """Wait until the test lets go, and say meanwhile that this thread hangs."""
        with self.stirred:
            self.hanging += 1
            self.stirred.notify_all()
        self.let_go.wait(PATIENCE_S)
        with self.stirred:
            self.hanging -= 1

    def _report(self, agent: SimulatedAgent) -> dict[str, Any]:
        report = agent.report()
        if report["swarm"]["manager"]:
            report["networks"] += [
                {"name": n.name, "session_id": n.session_id, "driver": n.driver, "generation": n.generation}
                for n in self.overlays.values()
            ]
        return report

    @staticmethod
    def _refusal(agent: SimulatedAgent) -> AgentAnswer | None:
        if not agent.reachable:
            return AgentAnswer(agent.id, problem="it does not answer", reached=False, nothing_begun=True)
        return AgentAnswer(agent.id, problem=agent.module_fails, nothing_begun=True) if agent.module_fails else None

    def _converged(self, agent: SimulatedAgent, manifest: Manifest) -> AgentAnswer:
        try:
            result = agent.converge(manifest.model_dump(mode="json"), self.overlays)
        except ForeignDatabaseError:
            return AgentAnswer(
                agent.id, problem="another control node or database runs sessions here", nothing_begun=True
            )
        if agent.answer_gets_lost:
            return AgentAnswer(agent.id, problem="the connection broke", reached=False)
        if agent.module_breaks_off:
            return AgentAnswer(agent.id, problem=agent.module_breaks_off)
        of_run = {name: result["report"][name] for name in ("generation_before", "leftovers")}
        report = {**self._report(agent), **of_run}
        return self._answer(agent, {**result, "report": report}, {agent.id: manifest})

    @staticmethod
    def _answer(
        agent: SimulatedAgent, result: dict[str, Any], manifests: Mapping[str, Manifest] | None = None
    ) -> AgentAnswer:
        said = agent.says(copy.deepcopy(result))
        return read_visit(agent.id, {**said, INVENTORY: agent.inventory}, manifests=manifests)
