"""Which programs of a command get the signal, by real processes: those that handle it."""

import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

from tests.modules.agent_code import end_signals

# Whole lines, since several programs write them.
HANDLES = """
import os, signal, time
signal.signal(10, lambda *_: os.write(1, b"got it\\n"))
os.write(1, b"ready\\n")
while True:
    time.sleep(60)
"""
# A container's first process: it starts the command, and adopts what others leave behind.
FIRST = "import subprocess, sys; processes = [subprocess.Popen(c) for c in eval(sys.argv[1])]; sys.stdin.read()"


@contextmanager
def container(*commands):
    """Yield a process that starts these commands one after the other, and stops them with itself."""
    process = subprocess.Popen(
        [sys.executable, "-c", FIRST, repr(commands)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    try:
        yield process
    finally:
        subprocess.run(["kill", "-KILL", "--", f"-{process.pid}"], check=True)
        process.communicate()


def handler(name=""):
    return [sys.executable, "-c", HANDLES.replace("got it", f"got it{name}")]


def below_a_shell(name=""):
    return ["sh", "-c", '"$@"; true', "sh", *handler(name)]


@pytest.mark.parametrize("command", [handler(), below_a_shell()])
def test_the_command_gets_it_or_what_it_started(command):
    with container(command) as process:
        assert process.stdout.readline() == "ready\n"
        assert end_signals._send(process.pid, signal.SIGUSR1) == 1
        assert process.stdout.readline() == "got it\n"


def test_a_command_gets_it_that_is_called_as_our_first_program_is(tmp_path):
    """As many images' entrypoints are. A script's name comes behind its shell's, as in the case of ours."""
    script = tmp_path / "bin/entrypoint"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\ntrap 'echo got it' USR1\necho ready\nwhile :; do sleep 0.1; done\n", encoding="utf-8")
    script.chmod(0o755)
    with container([str(script)]) as process:
        assert process.stdout.readline() == "ready\n"
        assert end_signals._send(process.pid, signal.SIGUSR1) == 1
        assert process.stdout.readline() == "got it\n"


def test_what_does_not_handle_it_lives_on_without_it():
    with container(below_a_shell()) as process:
        assert process.stdout.readline() == "ready\n"
        assert end_signals._send(process.pid, signal.SIGUSR2) == 0
        assert end_signals._send(process.pid, signal.SIGUSR1) == 1
        assert process.stdout.readline() == "got it\n"


def test_what_the_command_did_not_start_gets_none():
    with container(below_a_shell(" as the command"), handler(" as a guest")) as process:
        assert [process.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
        assert end_signals._send(process.pid, signal.SIGUSR1) == 1
        assert process.stdout.readline() == "got it as the command\n"


@pytest.mark.parametrize("text", ["", "1", "one two\n", "1 2 3\n", "-1 0\n", "\u0661 1\n", f"{10**30} 1\n"])
def test_a_record_that_cannot_be_read_is_none(tmp_path, text):
    (tmp_path / "signals").write_text(text, "utf-8")
    assert end_signals.read_sent(tmp_path) == end_signals.Sent(0, 0)
