"""Programs that stay open on agents and report when they are asked: ADR 31."""

import json
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from muster.ansible_gateway.agent_program import agent_program
from muster.ansible_gateway.layout import MOST_OF_A_REPORT_BYTES
from muster.core.agents.agent import Agent
from muster.core.values.errors import AgentUnreachableError
from muster.engine.agent_program import AgentProgram, running
from muster.service.queue.journal import log

OpenProgram = Callable[[Agent], AbstractContextManager[AgentProgram]]
_MARK = b"muster:observer\n"
_TITLE = "the program that observes it"
# The start of an interpreter on a busy host, and ssh before it.
_START_PATIENCE_S = 20.0
# One that takes longer is asked by a play, which says what is wrong with it.
_PATIENCE_S = 5.0
# So that the answers do not come all at once; one that is silent for so long keeps no other from being asked.
_MOST_AT_ONCE, _AT_ONCE_S = 32, 1.0
_POLL_MS = 100
# Answers of many agents come close together.
_GATHER_S = 0.05
# What follows from answers is decided once for all that come together, and that costs the more the more agents and
# sessions there are. Those that anything waits for are passed on at once.
_FEW, _TOGETHER_S = 16, 5.0
_OPENING_AT_ONCE = 8
_OPEN_AGAIN_AFTER_S, _TRY_AGAIN_AFTER_S = 60.0, 900.0


@contextmanager
def open_observer(agent: Agent, cluster: str, folders_root: Path | None) -> Iterator[AgentProgram]:
    """Start the program on an agent that answers each line with a report. Raises AgentUnreachableError."""
    given = {"cluster": cluster, "folders_root": None if folders_root is None else str(folders_root)}
    with running(agent, _program(), patience_s=_START_PATIENCE_S, title=_TITLE) as program:
        program.write(json.dumps(given).encode() + b"\n")
        program.skip_to(_MARK)
        yield program


@cache
def _program() -> str:
    return agent_program("from muster_agent.report.observer import main\nmain()\n", "muster-observer")


@dataclass(frozen=True, slots=True, eq=False)
class _Observer:
    """An open program, and what ends it. The agent is as it was then."""

    agent: Agent
    program: AgentProgram
    opened: ExitStack


class Observers:
    """The open programs, one for each agent at the most. They are opened in the background.

    All methods may be called from any thread. A program that is being asked belongs to the thread that asks.
    """

    def __init__(self, open_program: OpenProgram, clock: Callable[[], float] = time.monotonic) -> None:
        self._open_program = open_program
        self._clock = clock
        self._lock = threading.Lock()
        self._idle: dict[str, _Observer] = {}
        self._asked: dict[str, _Observer] = {}
        self._urgent: set[str] = set()
        self._askings: list[_Asking] = []
        self._wanted: deque[Agent] = deque()
        self._coming: set[str] = set()
        self._not_before: dict[str, float] = {}
        self._openers = 0
        self._generation = 0
        self._is_closed = False

    def offer(self, agent: Agent) -> None:
        """Let a program be opened on an agent that answers, unless there is one, or one was tried a short time ago."""
        with self._lock:
            if self._is_closed or any(agent.id in there for there in (self._idle, self._asked, self._coming)):
                return
            now = self._clock()
            if now < self._not_before.get(agent.id, now):
                return
            self._not_before[agent.id] = now + _OPEN_AGAIN_AFTER_S
            self._wanted.append(agent)
            self._coming.add(agent.id)
            if self._openers == _OPENING_AT_ONCE:
                return
            self._openers += 1
        threading.Thread(target=self._open_wanted, name="observers", daemon=True).start()

    def among(self, inventory: Mapping[str, Mapping[str, Any]]) -> frozenset[str]:
        """Return those of these agents that can be asked, of which the inventory still says what it said."""
        with self._lock:
            found = {agent_id: self._idle[agent_id].agent.inventory for agent_id in inventory if agent_id in self._idle}
        changed = {agent_id for agent_id, values in found.items() if values != inventory[agent_id]}
        for agent_id in changed:
            self.drop(agent_id)
        return frozenset(found.keys() - changed)

    def ask(self, agent_ids: Collection[str], on_lines: Callable[[Mapping[str, bytes]], None]) -> frozenset[str]:
        """Ask the agents that have a program for their reports; return those that answered.

        Calls `on_lines` with answers as they come, those of many agents together. A program that does not answer is
        ended.
        """
        taken = self._take(agent_ids)
        waiting = dict(taken)
        asking = _Asking({agent_id: observer.program for agent_id, observer in taken.items()})
        with self._lock:
            self._askings.append(asking)
            asking.hurry(self._urgent & taken.keys())
            self._urgent -= taken.keys()
        try:
            for lines in asking.answers():
                for agent_id in lines:
                    self._give_back(agent_id, waiting.pop(agent_id))
                on_lines(lines)
        finally:
            with self._lock:
                self._askings.remove(asking)
                for agent_id, observer in waiting.items():
                    if self._asked.get(agent_id) is observer:
                        del self._asked[agent_id]
            _end(waiting.values())
        return frozenset(taken.keys() - waiting.keys())

    def hurry(self, agent_ids: Collection[str]) -> None:
        """Let agents be the next that are asked, now or the next time, and pass their answers on at once."""
        with self._lock:
            self._urgent |= self._idle.keys() & set(agent_ids)
            for asking in self._askings:
                asking.hurry(agent_ids)

    def drop(self, agent_id: str) -> None:
        """End an agent's program; where it is being asked, after that."""
        with self._lock:
            self._coming.discard(agent_id)
            self._urgent.discard(agent_id)
            self._asked.pop(agent_id, None)
            observer = self._idle.pop(agent_id, None)
        if observer is not None:
            _end([observer])

    def drop_all(self) -> None:
        """End all programs, and what is being opened: the inventory may say something else now."""
        with self._lock:
            observers = list(self._idle.values())
            self._idle, self._asked, self._not_before = {}, {}, {}
            self._wanted.clear()
            self._coming.clear()
            self._urgent.clear()
            self._generation += 1
        _end(observers)

    def close(self) -> None:
        """End all programs, and open no others."""
        with self._lock:
            self._is_closed = True
        self.drop_all()

    def _take(self, agent_ids: Collection[str]) -> dict[str, _Observer]:
        with self._lock:
            taken = {agent_id: self._idle.pop(agent_id) for agent_id in agent_ids if agent_id in self._idle}
            self._asked |= taken
        return taken

    def _give_back(self, agent_id: str, observer: _Observer) -> None:
        with self._lock:
            is_kept = self._asked.get(agent_id) is observer
            if is_kept:
                self._idle[agent_id] = self._asked.pop(agent_id)
        if not is_kept:
            _end([observer])

    def _open_wanted(self) -> None:
        """Open what is wanted, until there is nothing more."""
        while True:
            with self._lock:
                if not self._wanted:
                    self._openers -= 1
                    return
                agent, generation = self._wanted.popleft(), self._generation
            observer = self._opened(agent)
            with self._lock:
                is_wanted = generation == self._generation and agent.id in self._coming
                if is_wanted:
                    self._coming.discard(agent.id)
                    if observer is None:
                        self._not_before[agent.id] = self._clock() + _TRY_AGAIN_AFTER_S
                    else:
                        self._idle[agent.id] = observer
            if observer is not None and not is_wanted:
                _end([observer])

    def _opened(self, agent: Agent) -> _Observer | None:
        opened = ExitStack()
        try:
            return _Observer(agent, opened.enter_context(self._open_program(agent)), opened)
        except (AgentUnreachableError, OSError) as error:
            log.info("%s; plays observe it", error)
            return None


def _end(observers: Collection[_Observer]) -> None:
    """Begin to end programs. One that hangs is killed after a while, which nobody waits for."""

    def close() -> None:
        for observer in observers:
            observer.opened.close()

    for observer in observers:
        observer.program.hang_up()
    if observers:
        threading.Thread(target=close, name="observers-end", daemon=True).start()


class _Asking:
    """Programs that are asked once each, as many at once as are quick to answer."""

    def __init__(self, programs: Mapping[str, AgentProgram]) -> None:
        self._programs = programs
        self._by_output = {program.output: agent_id for agent_id, program in programs.items()}
        self._to_ask = dict.fromkeys(programs)
        self._urgent: frozenset[str] = frozenset()
        self._asked_at: dict[str, float] = {}
        self._poll = select.poll()

    def hurry(self, agent_ids: Collection[str]) -> None:
        """Ask these next, if they are still to be asked. Called from one other thread at a time."""
        self._urgent |= frozenset(agent_ids)

    def answers(self) -> Iterator[dict[str, bytes]]:
        """Yield answers by agent, until all have answered or broken off, or are silent for too long."""
        lines: dict[str, bytes] = {}
        yielded_at = time.monotonic()
        while self._to_ask or self._asked_at:
            now = time.monotonic()
            self._ask_next(now)
            lines |= self._received()
            # After what has come meanwhile was read: it may be this process that was slow.
            self._give_up_silent(now)
            if len(self._asked_at) > _FEW:
                time.sleep(_GATHER_S)
            is_urgent = not lines.keys().isdisjoint(self._urgent)
            if lines and (is_urgent or len(self._programs) <= _FEW or now - yielded_at > _TOGETHER_S):
                yield lines
                lines, yielded_at = {}, now
        if lines:
            yield lines

    def _ask_next(self, now: float) -> None:
        recent = sum(now - at < _AT_ONCE_S for at in self._asked_at.values())
        urgent = self._urgent & self._to_ask.keys()
        for agent_id in urgent.union(islice(self._to_ask, max(0, _MOST_AT_ONCE - recent))):
            del self._to_ask[agent_id]
            if _is_asked(self._programs[agent_id]):
                self._asked_at[agent_id] = now
                self._poll.register(self._programs[agent_id].output, select.POLLIN)

    def _give_up_silent(self, now: float) -> None:
        for silent in [agent_id for agent_id, at in self._asked_at.items() if now - at > _PATIENCE_S]:
            self._stop_waiting_for(silent)

    def _received(self) -> dict[str, bytes]:
        """Return the answers that are whole, once there is anything to read or a moment later."""
        lines: dict[str, bytes] = {}
        for output, _ in self._poll.poll(_POLL_MS) if self._asked_at else ():
            agent_id = self._by_output[output]
            try:
                line = self._programs[agent_id].line_if_whole(MOST_OF_A_REPORT_BYTES)
            except AgentUnreachableError:
                self._stop_waiting_for(agent_id)
                continue
            if line is not None:
                lines[agent_id] = line
                self._stop_waiting_for(agent_id)
        return lines

    def _stop_waiting_for(self, agent_id: str) -> None:
        self._poll.unregister(self._programs[agent_id].output)
        del self._asked_at[agent_id]


def _is_asked(program: AgentProgram) -> bool:
    try:
        return program.write(b"\n")
    except AgentUnreachableError:
        return False
