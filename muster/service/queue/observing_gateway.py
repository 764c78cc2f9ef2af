"""The daemon's way to agents: what stays open on them reports; plays do everything else. ADR 31."""

import json
import marshal
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from muster.ansible_gateway.gateway import AnsibleGateway, read_visit
from muster.ansible_gateway.layout import INVENTORY
from muster.ansible_gateway.plays_ahead import Stamp, has_lasting_values, inventory_stamp
from muster.contract.manifest import Manifest
from muster.contract.report import ImageReport
from muster.contract.values import one_line
from muster.core.agents.agent import Agent
from muster.core.turn.answer import AgentAnswer, AnswerHandler
from muster.private_directories import remove_leftovers
from muster.service.queue.observers import Observers


@dataclass(slots=True)
class _Known:
    """What plays have shown of an inventory: the values that it gives to agents, and once all have answered, who.

    It holds for as long as the inventory has the stamp; nothing holds of values that are not `lasting`.
    """

    stamp: Stamp | None = None
    lasting: bool = False
    values: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    everybody: frozenset[str] | None = None
    images: dict[str, tuple[int, tuple[ImageReport, ...]]] = field(default_factory=dict)


class ObservingGateway:
    """A gateway that observes by `observers`, and by plays where there is none or it does not answer.

    Plays also read the inventory. So they observe everybody after it has changed, and always where it may say
    something new at any time.
    """

    def __init__(self, plays: AnsibleGateway, inventory: Path, observers: Observers) -> None:
        self._plays = plays
        self._inventory = inventory
        self._observers = observers
        self._lock = threading.Lock()
        self._known = _Known()

    def offer(self, agent: Agent) -> None:
        """Let an agent that has reported be observed by a program that stays open there."""
        if self._known.lasting:
            self._observers.offer(agent)

    def hurry(self, agent_ids: Collection[str]) -> None:
        """Observe agents before others of the same visit: kernels have died there, or sessions wait for them."""
        self._observers.hurry(agent_ids)

    def close(self) -> None:
        self._observers.close()

    def observe(self, agent_ids: Collection[str], on_answer: AnswerHandler, without: Collection[str] = ()) -> None:
        """Observe these agents, or with none given all that the inventory names `without` some.

        Raises AnsibleFailedError.
        """
        known = self._up_to_date()
        if not agent_ids:
            # Plays do that as they begin, and there may be none for long.
            remove_leftovers()
            if known.everybody is None:
                self._observe_everybody(known, on_answer, without)
                return
        wanted = frozenset(agent_ids) if agent_ids else (known.everybody or frozenset()) - frozenset(without)
        asked = self._observers.among({agent_id: known.values[agent_id] for agent_id in wanted & known.values.keys()})
        others = wanted - asked
        with _beside(partial(self._play, known, others, on_answer)) if others else nullcontext():
            answered = self._observers.ask(asked, partial(self._pass_on, known, on_answer))
        if asked - answered:
            self._play(known, asked - answered, on_answer)

    def converge(self, manifests: Mapping[str, Manifest], on_answer: AnswerHandler) -> None:
        """Converge the agents that have a manifest. Raises AnsibleFailedError.

        A play observes one that gave no report: its way may be closed to others than the program that is open there.
        """

        def pass_on(answer: AgentAnswer) -> None:
            if answer.report is None:
                self._observers.drop(answer.agent_id)
            on_answer(answer)

        self._plays.converge(manifests, pass_on)

    def _up_to_date(self) -> _Known:
        """Return what is known of the inventory as it is now. Programs that were opened by another one are ended."""
        stamp = inventory_stamp(self._inventory)
        with self._lock:
            if stamp is not None and stamp == self._known.stamp:
                return self._known
            self._known = known = _Known(stamp, lasting=stamp is not None and has_lasting_values(self._inventory))
        self._observers.drop_all()
        return known

    def _observe_everybody(self, known: _Known, on_answer: AnswerHandler, without: Collection[str]) -> None:
        answered: set[str] = set()

        def note(answer: AgentAnswer) -> None:
            answered.add(answer.agent_id)
            self._note(known, on_answer, answer)

        self._plays.observe((), note, without)
        # Whether the inventory still names those that were left out is not known.
        if known.lasting and not without:
            known.everybody = frozenset(answered)

    def _play(self, known: _Known, agent_ids: Collection[str], on_answer: AnswerHandler) -> None:
        self._plays.observe(sorted(agent_ids), partial(self._note, known, on_answer))

    def _note(self, known: _Known, on_answer: AnswerHandler, answer: AgentAnswer) -> None:
        if known.lasting and answer.report is not None:
            known.values[answer.agent_id] = answer.inventory
        on_answer(answer)

    def _pass_on(self, known: _Known, on_answer: AnswerHandler, lines: Mapping[str, bytes]) -> None:
        # Before the first is passed on, since a decision begins a moment later.
        for answer in [self._read(known, agent_id, line) for agent_id, line in lines.items()]:
            on_answer(answer)

    def _read(self, known: _Known, agent_id: str, line: bytes) -> AgentAnswer:
        """Return the answer that a line is."""
        try:
            said = json.loads(line)
        except (ValueError, RecursionError):
            said = None
        if not isinstance(said, dict):
            return AgentAnswer(agent_id, problem="its answer is refused: it is not an object of JSON")
        if failure := said.get("failed"):
            # Anything else may lie in so many levels that it cannot be written.
            is_text = isinstance(failure, str)
            problem = one_line(failure) if is_text else "its answer is refused: its reason for no report is no text"
            return AgentAnswer(agent_id, problem=problem)
        report = said.get("report")
        digest = _with_known_images(report, known.images.get(agent_id))
        answer = read_visit(agent_id, {"report": report, INVENTORY: known.values[agent_id]})
        if answer.report is not None:
            known.images[agent_id] = (digest, answer.report.images)
        return answer


def _with_known_images(report: object, before: tuple[int, tuple[ImageReport, ...]] | None) -> int:
    """Put the images of the report before in place of the same ones, and return the digest that they are known by.

    They are most of a report, and seldom change: checking them, and comparing them later, would cost most of its time.
    """
    images = report.get("images") if isinstance(report, dict) else None
    try:
        # Later versions of the format depend on how often a value is in use.
        digest = hash(marshal.dumps(images, 2))
    except ValueError:  # in too many levels: the check of the report says so
        return 0
    if before is not None and isinstance(report, dict) and before[0] == digest:
        report["images"] = before[1]
    return digest


@contextmanager
def _beside(run: Callable[[], None]) -> Iterator[None]:
    """Run something in another thread meanwhile. Raises at last what it raises."""
    failures: list[Exception] = []

    def work() -> None:
        try:
            run()
        except Exception as error:  # noqa: BLE001 - raised again in the thread that waits for it
            failures.append(error)

    thread = threading.Thread(target=work, name="observing-play", daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    if failures:
        raise failures[0]
