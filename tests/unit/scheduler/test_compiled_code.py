"""The scheduler is compiled beside the queue: until then nothing new is placed, and all else goes on."""

import subprocess
import threading
from dataclasses import replace
from typing import Any

import llvmlite.binding
import pytest

from muster.core.model.session import SessionState
from muster.core.scheduling.placement import choose
from muster.service.queue.worker import QueueWorker
from muster.service.scheduler import compiled_code
from muster.service.scheduler.compiled_code import compile_placement, compiling_beside, is_compiled
from tests.simulated.control_node import an_agent
from tests.waiting import PATIENCE_S

S = SessionState


@pytest.mark.parametrize("kept", [True, False])
def test_code_is_compiled_beside_the_caller_which_is_notified(monkeypatch, kept):
    """In a process whose code is kept, or in a thread where it cannot be kept."""
    if not kept:
        monkeypatch.setattr(compiled_code, "_stamp", lambda: None)
    done = threading.Event()
    with compiling_beside(done.set):
        assert done.wait(PATIENCE_S)


def test_a_daemon_without_compiled_code_says_why_nothing_starts(monkeypatch):
    said, done = threading.Event(), threading.Event()
    lines: list[str] = []

    def note(line: str, *_: object) -> None:
        lines.append(line)
        said.set()

    monkeypatch.setattr(compiled_code.log, "info", note)
    monkeypatch.setattr(compiled_code, "_LONG_S", 0.0)
    monkeypatch.setattr(compiled_code, "_stamp", lambda: None)
    # The process goes on until it has written the line.
    monkeypatch.setattr(compiled_code, "compile_placement", said.wait)
    with compiling_beside(done.set):
        assert done.wait(PATIENCE_S)
    assert lines[0].startswith("the scheduler is being compiled")


def test_a_caller_that_leaves_does_not_wait_for_it(monkeypatch):
    sleeping = ["sleep", "600"]
    start = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda _command, **options: start(sleeping, **options))
    done = threading.Event()
    with compiling_beside(done.set):
        assert not done.is_set()
    assert done.wait(PATIENCE_S)


def is_entry_point(value: Any) -> bool:
    """Return whether numba compiles this for calls from Python: then it keeps the code, where it can."""
    return getattr(getattr(value, "stats", None), "cache_path", None) is not None


def test_all_that_a_decision_calls_is_compiled():
    compile_placement()
    entries = list(filter(is_entry_point, vars(choose).values()))
    assert len(entries) >= 3
    assert all(entry.signatures for entry in entries)
    assert set(compiled_code._entry_points()) == set(entries)


def test_until_it_is_compiled_nothing_is_placed_and_all_else_goes_on(control_node):
    agent = an_agent("a1", cpus=8)
    node = control_node(agent)
    ends = node.submit(command="true")
    node.run()
    compiled = threading.Event()
    node.shell = replace(node.shell, may_place=compiled.is_set)
    node.worker = QueueWorker(node.shell, node.inbox.put)
    waits = node.submit()
    agent.containers[ends.id].end(0)
    node.run()
    assert (node.state(ends), node.state(waits)) == (S.TERMINATED, S.PENDING)
    compiled.set()
    node.run(observe=False)
    assert node.state(waits) is S.RUNNING


def test_kept_code_is_known_to_be_there_until_the_source_changes(monkeypatch, tmp_path):
    compile_placement()
    assert is_compiled()
    # As after an upgrade.
    newer = tmp_path / "choose.py"
    newer.touch()
    monkeypatch.setattr(choose, "__file__", str(newer))
    assert not is_compiled()


def test_code_that_was_made_of_other_parts_is_not_there(monkeypatch):
    """Numba would find it, and compile anew: the queue would stand still."""
    compile_placement()
    monkeypatch.setattr(compiled_code, "revision", lambda: "another")
    assert not is_compiled()


def test_code_for_another_processor_is_not_there(monkeypatch):
    """A home directory that machines share, or a machine that was moved."""
    compile_placement()
    monkeypatch.setattr(llvmlite.binding, "get_host_cpu_name", lambda: "another")
    assert not is_compiled()


def test_nor_is_code_that_no_directory_can_keep(monkeypatch):
    monkeypatch.setattr(compiled_code, "_stamp", lambda: None)
    compile_placement()
    assert not is_compiled()


@pytest.mark.parametrize("content", [None, b"", b"\xff", b"of before"])
def test_a_note_that_is_missing_or_damaged_says_nothing(monkeypatch, tmp_path, content):
    stamp = tmp_path / "stamp"
    if content is not None:
        stamp.write_bytes(content)
    monkeypatch.setattr(compiled_code, "_stamp", lambda: stamp)
    assert not is_compiled()
    compile_placement()
    assert is_compiled()
