"""A compromised agent writes to the error stream of its ssh connection, and a command prints the last line of it."""

import stat
from pathlib import Path

import pytest

from muster.core.values.errors import AgentUnreachableError
from muster.engine.agent_engine import engine_of
from muster.engine.agent_program import running
from tests.strategies.agents import make_agent

AGENT = make_agent("a1", connection="ssh", address="192.0.2.1")
# What a terminal takes for orders: a title, a clearing, and letters that run backwards.
SAID = r"sudo: \033]0;owned\007\033[2J\302\233 no\342\200\256"


@pytest.fixture
def _ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have an ssh that passes on what the agent says, as the real one does."""
    program = tmp_path / "ssh"
    program.write_text(f"#!/bin/sh\nprintf '{SAID}\\n' >&2\necho muster:denied\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")


@pytest.mark.usefixtures("_ssh")
def test_why_an_engine_may_not_be_used_is_one_line_without_orders_to_a_terminal():
    may_not = r"may not use its Docker engine \(ssh: sudo: "
    with pytest.raises(AgentUnreachableError, match=may_not) as refused, engine_of(AGENT):
        pass
    assert str(refused.value).isprintable()


@pytest.mark.usefixtures("_ssh")
def test_why_a_program_does_not_start_is_one_line_without_orders_to_a_terminal():
    did_not = r"it did not start \(sudo: "
    it = running(AGENT, "", patience_s=60, title="it")
    with pytest.raises(AgentUnreachableError, match=did_not) as refused, it as program:
        program.skip_to(b"mark")
    assert str(refused.value).isprintable()
