"""Programs that stay open on agents: who is asked, whose answers count, and what becomes of those that give none."""

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

import pytest

from muster.core.agents.agent import Agent
from muster.core.values.errors import AgentUnreachableError
from muster.engine.agent_program import AgentProgram
from muster.service.queue import observers as module
from muster.service.queue.observers import Observers
from tests.strategies.agents import listed, make_agent
from tests.waiting import eventually

# Each answers by one of these, in place of a report.
SAYS_AGAIN = "for number, _ in enumerate(sys.stdin): print(f'answer {number}', flush=True)"
IS_SILENT = "sys.stdin.read()"
SAYS_HALF = "sys.stdin.readline(); print('half', end='', flush=True); sys.stdin.read()"
BREAKS_OFF = "sys.stdin.readline(); print('half', end='', flush=True)"
SAYS_TOO_MUCH = "sys.stdin.readline(); print('x' * 100_000, flush=True); sys.stdin.read()"
HAS_ENDED = "pass"


class Programs:
    """The programs that have been opened on agents, by what the test says of each."""

    def __init__(self, **scripts: str) -> None:
        self.scripts = scripts
        self.opened: list[str] = []
        self.processes: list[subprocess.Popen[bytes]] = []
        self.before: Callable[[], object] = lambda: None

    @contextmanager
    def open(self, agent: Agent) -> Iterator[AgentProgram]:
        self.before()
        if agent.id not in self.scripts:
            raise AgentUnreachableError(f"agent {agent.id}: it cannot be logged in to")
        with tempfile.TemporaryFile() as messages:
            process = subprocess.Popen(
                [sys.executable, "-c", f"import sys\n{self.scripts[agent.id]}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=messages,
                bufsize=0,
            )
            self.processes.append(process)
            self.opened.append(agent.id)
            if self.scripts[agent.id] == HAS_ENDED:
                process.wait()
            try:
                yield AgentProgram(agent, process, messages, 60.0, "the program")
            finally:
                for pipe in (process.stdin, process.stdout):
                    assert pipe is not None
                    pipe.close()
                process.wait()

    @property
    def running(self) -> int:
        return sum(process.poll() is None for process in self.processes)


def opened(programs: Programs, *agents: Agent, clock: Callable[[], float] = time.monotonic) -> Observers:
    """Return observers that have opened a program on each of these agents."""
    observers = Observers(programs.open, clock)
    for agent in agents:
        observers.offer(agent)
    inventory = {agent.id: agent.inventory for agent in agents}
    eventually(lambda: observers.among(inventory) == inventory.keys())
    return observers


def asked(observers: Observers, *agent_ids: str) -> dict[str, str]:
    said: dict[str, str] = {}

    def note(lines: Mapping[str, bytes]) -> None:
        said.update({agent_id: line.decode() for agent_id, line in lines.items()})

    assert observers.ask(agent_ids, note) == said.keys()
    return said


def begun_to_open(observers: Observers, programs: Programs) -> threading.Event:
    """Let a program be opened on a1, and return once that has begun; the event lets it go on."""
    going_on, reached = threading.Event(), threading.Event()

    def wait() -> None:
        reached.set()
        going_on.wait(60)

    programs.before = wait
    observers.offer(make_agent("a1"))
    assert reached.wait(60)
    return going_on


def test_one_program_answers_as_often_as_it_is_asked():
    programs = Programs(a1=SAYS_AGAIN, a2=SAYS_AGAIN)
    observers = opened(programs, make_agent("a1"), make_agent("a2"))
    assert asked(observers, "a1", "a2", "a3") == {"a1": "answer 0", "a2": "answer 0"}
    assert asked(observers, "a2") == {"a2": "answer 1"}
    assert sorted(programs.opened) == ["a1", "a2"]
    observers.close()
    eventually(lambda: programs.running == 0)


def test_many_are_asked_a_few_at_a_time_and_all_answer(monkeypatch):
    monkeypatch.setattr(module, "_MOST_AT_ONCE", 3)
    monkeypatch.setattr(module, "_FEW", 0)
    names = [f"a{number}" for number in range(12)]
    observers = opened(Programs(**dict.fromkeys(names, SAYS_AGAIN)), *map(make_agent, names))
    assert asked(observers, *names) == dict.fromkeys(names, "answer 0")
    observers.close()


@pytest.mark.parametrize("script", [IS_SILENT, SAYS_HALF, BREAKS_OFF, SAYS_TOO_MUCH, HAS_ENDED])
def test_a_program_that_gives_no_answer_is_ended_and_not_asked_again(monkeypatch, script):
    monkeypatch.setattr(module, "_PATIENCE_S", 0.1)
    monkeypatch.setattr(module, "MOST_OF_A_REPORT_BYTES", 10_000)
    programs, now = Programs(a1=script), [0.0]
    observers = opened(programs, make_agent("a1"), clock=lambda: now[0])
    assert asked(observers, "a1") == {}
    assert asked(observers, "a1") == {}
    eventually(lambda: programs.running == 0)
    # Not at once: a host that is too busy to answer would only get more to do.
    observers.offer(make_agent("a1"))
    assert programs.opened == ["a1"]
    now[0] = module._OPEN_AGAIN_AFTER_S
    observers.offer(make_agent("a1"))
    eventually(lambda: programs.opened == ["a1", "a1"])
    observers.close()


def test_silent_programs_keep_no_other_from_being_asked(monkeypatch):
    monkeypatch.setattr(module, "_MOST_AT_ONCE", 2)
    monkeypatch.setattr(module, "_AT_ONCE_S", 0.05)
    silent = [f"s{number}" for number in range(4)]
    programs = Programs(**dict.fromkeys(silent, IS_SILENT), a1=SAYS_AGAIN)
    observers = opened(programs, *map(make_agent, [*silent, "a1"]))
    heard = threading.Event()
    asking = threading.Thread(target=observers.ask, args=([*silent, "a1"], lambda _: heard.set()))
    monkeypatch.setattr(module, "_PATIENCE_S", 600.0)
    asking.start()
    assert heard.wait(60)
    monkeypatch.setattr(module, "_PATIENCE_S", 0.0)
    asking.join()
    observers.close()


def test_one_that_is_in_a_hurry_is_asked_before_its_turn(monkeypatch):
    monkeypatch.setattr(module, "_MOST_AT_ONCE", 1)
    monkeypatch.setattr(module, "_AT_ONCE_S", 600.0)
    monkeypatch.setattr(module, "_FEW", 0)
    monkeypatch.setattr(module, "_TOGETHER_S", 600.0)
    monkeypatch.setattr(module, "_PATIENCE_S", 600.0)
    observers = opened(Programs(a1=IS_SILENT, a2=SAYS_AGAIN, a3=SAYS_AGAIN), *map(make_agent, ("a1", "a2", "a3")))
    heard: SimpleQueue[Mapping[str, bytes]] = SimpleQueue()
    asking = threading.Thread(target=observers.ask, args=(["a1", "a2", "a3"], heard.put))
    asking.start()
    eventually(lambda: observers._askings)
    observers.hurry(["a3"])
    assert heard.get(timeout=60) == {"a3": b"answer 0"}
    assert heard.empty()
    monkeypatch.setattr(module, "_PATIENCE_S", 0.0)
    asking.join()
    observers.close()


def test_one_that_is_in_a_hurry_before_anybody_is_asked_is_the_first(monkeypatch):
    monkeypatch.setattr(module, "_MOST_AT_ONCE", 0)
    monkeypatch.setattr(module, "_FEW", 0)
    monkeypatch.setattr(module, "_TOGETHER_S", 600.0)
    monkeypatch.setattr(module, "_PATIENCE_S", 600.0)
    observers = opened(Programs(a1=SAYS_AGAIN, a2=SAYS_AGAIN), *map(make_agent, ("a1", "a2")))
    observers.hurry(["a2", "a3"])
    heard: list[Mapping[str, bytes]] = []

    def hear(lines):
        heard.append(lines)
        monkeypatch.setattr(module, "_MOST_AT_ONCE", 1)

    observers.ask(["a1", "a2"], hear)
    assert heard == [{"a2": b"answer 0"}, {"a1": b"answer 0"}]
    # Only once.
    heard.clear()
    observers.ask(["a1", "a2"], hear)
    assert heard == [{"a1": b"answer 1", "a2": b"answer 1"}]
    observers.close()


def test_one_that_cannot_be_opened_is_tried_again_only_later(caplog):
    programs, now = Programs(), [0.0]
    observers = Observers(programs.open, lambda: now[0])
    with caplog.at_level("INFO", logger="muster.queue"):
        observers.offer(make_agent("a1"))
        eventually(lambda: "agent a1: it cannot be logged in to; plays observe it" in caplog.text)
    programs.scripts["a1"] = SAYS_AGAIN
    observers.offer(make_agent("a1"))
    assert asked(observers, "a1") == {}
    now[0] = module._TRY_AGAIN_AFTER_S
    observers.offer(make_agent("a1"))
    eventually(lambda: observers.among({"a1": make_agent("a1").inventory}))
    observers.close()


def test_an_agent_that_the_inventory_describes_otherwise_now_is_not_asked():
    agent = make_agent("a1")
    programs = Programs(a1=SAYS_AGAIN)
    observers = opened(programs, agent)
    assert observers.among({"a1": listed(agent, address="192.0.2.9").inventory}) == frozenset()
    assert asked(observers, "a1") == {}
    eventually(lambda: programs.running == 0)
    observers.close()


@pytest.mark.parametrize("drop", [Observers.drop_all, Observers.close, lambda observers: observers.drop("a1")])
def test_what_is_dropped_while_it_is_opened_is_ended(drop):
    programs = Programs(a1=SAYS_AGAIN)
    observers = Observers(programs.open)
    going_on = begun_to_open(observers, programs)
    drop(observers)
    going_on.set()
    eventually(lambda: programs.opened == ["a1"] and programs.running == 0)
    assert asked(observers, "a1") == {}


def test_what_is_dropped_while_it_is_asked_answers_and_is_then_ended(monkeypatch):
    programs = Programs(a1=SAYS_AGAIN)
    observers = opened(programs, make_agent("a1"))
    said: dict[str, bytes] = {}
    give_back = observers._give_back

    def dropped_first(*given: Any) -> None:
        observers.drop("a1")
        give_back(*given)

    monkeypatch.setattr(observers, "_give_back", dropped_first)
    assert observers.ask(["a1"], said.update) == {"a1"}
    assert said == {"a1": b"answer 0"}
    eventually(lambda: programs.running == 0)
    assert asked(observers, "a1") == {}


def test_nothing_is_opened_once_all_is_closed():
    programs = Programs(a1=SAYS_AGAIN)
    observers = Observers(programs.open)
    observers.close()
    observers.offer(make_agent("a1"))
    assert asked(observers, "a1") == {}
    assert programs.opened == []


def test_one_that_takes_long_to_open_is_opened_once():
    programs, now = Programs(a1=SAYS_AGAIN), [0.0]
    observers = Observers(programs.open, lambda: now[0])
    going_on = begun_to_open(observers, programs)
    now[0] = 10 * module._OPEN_AGAIN_AFTER_S
    observers.offer(make_agent("a1"))
    going_on.set()
    eventually(lambda: asked(observers, "a1"))
    observers.close()
    eventually(lambda: programs.running == 0)
    assert programs.opened == ["a1"]
