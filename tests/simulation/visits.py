"""The control node's Ansible in virtual time: answers come when hosts have given them, unless a fault is in the way."""

import copy
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from muster.ansible_gateway.gateway import read_visit
from muster.ansible_gateway.layout import INVENTORY
from muster.contract.manifest import Manifest
from muster.core.agents.agent import Agent
from muster.core.images.names import familiar
from muster.core.turn.answer import AgentAnswer, AnswerHandler
from muster.core.turn.facts import PullOver, VisitOver
from muster.core.values.errors import AnsibleFailedError, ImageError
from tests.simulation.containers import ModuleFailedError
from tests.simulation.hosts import Action, Host
from tests.simulation.timeline import Chance, Timeline

Send = Callable[[Any], None]

_CONNECT_TIMEOUT_S = 10.0
# Three times the interval at which ssh asks whether the other side is alive.
_BROKEN_AFTER_S = 15.0
# Shorter than the time after which an agent is LOST, as with the settings that sites have.
_MODULE_TIMEOUT_S = 60.0


@dataclass(eq=False)
class Visit:
    """A run of Ansible. `over` is what the control node learns at its end, unless it was cut short."""

    on_answer: AnswerHandler
    manifests: Mapping[str, Manifest] | None
    waiting: set[str]
    is_everywhere: bool = False
    actions: dict[str, Action] = field(default_factory=dict)
    over: VisitOver | None = None
    is_cut_short: bool = False


@dataclass(eq=False)
class Pull:
    """An image on its way; it ends by `error`, or by the image being there."""

    host: Host
    image: str
    progressed: Callable[[int, int], None]


class SimulatedAnsible:
    """A stand-in for one control node process's Ansible and image pulls. `start` begins what it is given."""

    def __init__(
        self,
        timeline: Timeline,
        chance: Chance,
        hosts: Mapping[str, Host],
        reaches: Callable[[Host], bool],
        fails: Callable[[], bool],
        pull_fails: Callable[..., None],
    ) -> None:
        self.visits: list[Visit] = []
        self._timeline = timeline
        self._chance = chance
        self._hosts = hosts
        self._reaches = reaches
        self._fails = fails
        self._pull_fails = pull_fails
        self._begun: Visit | Pull | None = None

    # What the queue's worker calls

    def observe(self, agent_ids: Collection[str], on_answer: AnswerHandler, without: Collection[str] = ()) -> None:
        chosen = set(agent_ids) if agent_ids else self._hosts.keys() - set(without)
        self._visit(Visit(on_answer, None, self._named(chosen), is_everywhere=not agent_ids))

    def converge(self, manifests: Mapping[str, Manifest], on_answer: AnswerHandler) -> None:
        self._visit(Visit(on_answer, manifests, self._named(manifests)))

    def pull(self, agent: Agent, reference: str, progressed: Callable[[int, int], None]) -> None:
        self._begun = Pull(self._hosts[agent.id], reference, progressed)

    def start(self, run: Callable[[], None], hold: Callable[[Callable[[], None]], list[Any]], send: Send) -> None:
        """Begin a visit or a pull. `hold` runs it and returns what it sent, which says that it is over: not yet."""
        self._begun = None
        (over,) = hold(run)
        begun = self._begun
        match begun:
            case None:
                self._timeline.after(0.5, lambda: send(over))
            case Visit():
                begun.over = over
                self.visits.append(begun)
                for agent_id in sorted(begun.waiting):
                    delay = self._chance.seconds(0.3, 0.9)
                    self._timeline.after(delay, partial(self._reach, begun, self._hosts[agent_id], send))
                if not begun.waiting:
                    self._timeline.after(0.5, lambda: send(over))
            case Pull():
                self._timeline.after(0.1, lambda: begun.progressed(1, 2))
                takes_s = begun.host.pulls_take_s + self._chance.seconds(0.5, 8)
                self._timeline.after(takes_s, partial(self._end_pull, begun, over, send))

    def cut_short(self, *, actions_go_on: bool) -> None:
        """End with the process. What agents have begun may go on, but its answer is lost."""
        for visit in self.visits:
            visit.is_cut_short = True
            for agent_id, action in visit.actions.items():
                if not actions_go_on:
                    self._hosts[agent_id].ends(action, None)
        self.visits.clear()

    # How it goes on

    def _named(self, agent_ids: Iterable[str]) -> set[str]:
        """Return those of the agents that the inventory names."""
        return {agent_id for agent_id in agent_ids if agent_id in self._hosts and self._hosts[agent_id].is_in_inventory}

    def _visit(self, visit: Visit) -> None:
        if self._fails():
            raise AnsibleFailedError("the inventory cannot be read")
        if not visit.waiting:
            raise AnsibleFailedError("--limit leaves us with no hosts to target")
        self._begun = visit

    def _reach(self, visit: Visit, host: Host, send: Send) -> None:
        if visit.is_cut_short:
            return
        if not self._reaches(host):
            problem = AgentAnswer(host.id, problem="unreachable: connection timed out", reached=False)
            self._timeline.after(_CONNECT_TIMEOUT_S, lambda: self._answers(visit, host, problem, send))
            return
        done = partial(self._done, visit, host, send)
        manifests = visit.manifests
        action = host.observe(done) if manifests is None else host.converge(manifests[host.id], done)
        visit.actions[host.id] = action
        self._timeline.after(_MODULE_TIMEOUT_S, partial(self._times_out, visit, host, send))

    def _times_out(self, visit: Visit, host: Host, send: Send) -> None:
        if host.id in visit.waiting and not visit.is_cut_short:
            self._answers(
                visit, host, AgentAnswer(host.id, problem=f"Timed out after {_MODULE_TIMEOUT_S:.0f} second(s)"), send
            )

    def _done(self, visit: Visit, host: Host, send: Send, result: dict[str, Any] | ModuleFailedError | None) -> None:
        if visit.is_cut_short:
            return
        fault, by_s = host.answers.popleft() if host.answers else ("", 0.0)
        if fault:
            host.well_since = self._timeline.now + by_s
        if fault == "lost" and visit.is_everywhere:
            # After a run that ends well, it would mean that the host left the inventory.
            fault = "breaks off"
        if result is None or not self._reaches(host):
            problem = AgentAnswer(host.id, problem="unreachable: the connection broke", reached=False)
            self._timeline.after(_BROKEN_AFTER_S, lambda: self._answers(visit, host, problem, send))
            return
        failure = str(result) if isinstance(result, ModuleFailedError) else ""
        said = result.said if isinstance(result, ModuleFailedError) else result
        if fault == "malformed" and not failure:
            said = copy.deepcopy(said)
            _malform(said, self._chance)
        answer = read_visit(host.id, {**said, INVENTORY: host.inventory}, failure, visit.manifests)
        _note_untold_launches(host, answer, visit.manifests)
        match fault:
            case "lost":
                self._timeline.after(0.1, lambda: self._is_done(visit, host, send))
            case "breaks off":
                self._timeline.after(0.1, lambda: self._breaks_off(visit, send))
            case "twice":
                self._timeline.after(0.1, lambda: self._answers(visit, host, answer, send))
                self._timeline.after(self._chance.seconds(0.1, 20), lambda: visit.on_answer(answer))
            case _:
                self._timeline.after(0.1 + by_s, lambda: self._answers(visit, host, answer, send))

    def _answers(self, visit: Visit, host: Host, answer: AgentAnswer, send: Send) -> None:
        if host.id in visit.waiting and not visit.is_cut_short:
            visit.on_answer(answer)
            self._is_done(visit, host, send)

    def _is_done(self, visit: Visit, host: Host, send: Send) -> None:
        visit.waiting.discard(host.id)
        if not visit.waiting and visit in self.visits:
            self.visits.remove(visit)
            self._timeline.after(0.1, lambda: send(visit.over))

    def _breaks_off(self, visit: Visit, send: Send) -> None:
        visit.is_cut_short = True
        if visit in self.visits and visit.over is not None:
            self.visits.remove(visit)
            send(replace(visit.over, error=AnsibleFailedError("ansible-playbook was killed")))

    def _end_pull(self, pull: Pull, over: PullOver, send: Send) -> None:
        error = None
        if pull.host.pulls_fail:
            error = ImageError("no such image", permanent=pull.host.pulls_fail == "permanent")
        elif not self._reaches(pull.host) or not pull.host.engine_runs:
            error = ImageError("the agent does not answer", permanent=False)
        else:
            image = {"id": f"sha256:{pull.image}", "tags": [familiar(pull.image)], "size_bytes": 1}
            pull.host.pulled.add(pull.image)
            pull.host.hardware["images"] = [*pull.host.hardware["images"], image]
        if error is not None:
            self._pull_fails(pull.host, pull.image, permanent=error.permanent)
        send(replace(over, error=error))


def _note_untold_launches(host: Host, answer: AgentAnswer, manifests: Mapping[str, Manifest] | None) -> None:
    """Count a launch without any word of it as failed: so does the queue where its commands cannot have begun."""
    if answer.report is None and not answer.nothing_begun and manifests is not None:
        for session in manifests[host.id].sessions:
            if session.desired == "launch" and session.id not in answer.outcomes:
                host.witness.launch_fails(host, session.id, permanent=False)


def _malform(result: dict[str, Any], chance: Chance) -> None:
    """Make the answer one that the contract does not allow."""
    part = result["report"]
    match chance.pick("missing", "mistyped", "unknown", "huge"):
        case "missing":
            del part["kernels"]
        case "mistyped":
            part["cpu_count"] = "many"
        case "unknown":
            part["shell"] = "rm -rf /"
        case "huge":
            part["hostname"] = "x" * 100_000
