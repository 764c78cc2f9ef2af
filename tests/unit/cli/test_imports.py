"""Which libraries each command loads: the start of a short command is nearly all of its time."""

import os
import subprocess
import sys

import pytest

from muster.cli.main import _COMMANDS, cli
from tests.command_line import submitted

DATABASE = {"sqlalchemy", "alembic", "psycopg", "sqlite3"}
CHECKS = {"pydantic", "yaml"}
DECIDING = {"numba", "numpy", "llvmlite"}
AGENTS = {"ansible_runner", "docker", "requests"}
SERVER = {"fastapi", "uvicorn", "httpx", "jinja2", "prometheus_client"}
NOTHING = DATABASE | CHECKS | DECIDING | AGENTS | SERVER
# As `main` runs it, and then the modules that are there.
PROGRAM = """
import sys
from muster.cli.main import main
try:
    main()
finally:
    print("modules:", *{name.partition(".")[0] for name in sys.modules}, file=sys.stderr)
"""


def loaded(*arguments: str, **environment: str) -> set[str]:
    """Return the libraries that a command has loaded at its end; it must succeed."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        env={**os.environ, **environment},
        check=True,
        capture_output=True,
        text=True,
    )
    return set(done.stderr.rpartition("modules:")[2].split())


@pytest.mark.parametrize("arguments", [("version",), ("--help",), ("completion", "bash")])
def test_commands_without_sessions_load_no_library_but_click(arguments):
    assert not loaded(*arguments) & NOTHING


def test_names_of_commands_are_completed_without_loading_them():
    words = {"_MUSTER_COMPLETE": "bash_complete", "COMP_WORDS": "muster re", "COMP_CWORD": "1"}
    assert not loaded(**words) & NOTHING


@pytest.mark.parametrize(
    "arguments",
    [("ls",), ("ls", "--json"), ("show", "train"), ("agents",), ("agents", "--gpus"), ("rename", "train", "b")],
)
def test_commands_without_decisions_load_neither_scheduler_nor_gateway(arguments):
    submitted("--name", "train")
    assert not loaded(*arguments) & (DECIDING | AGENTS | SERVER | {"alembic"})


def test_a_submit_loads_no_way_to_agents():
    found = loaded("submit", "--name", "train")
    assert found >= {"sqlalchemy"}
    assert not found & (AGENTS | SERVER | {"alembic"})


@pytest.mark.parametrize("name", _COMMANDS)
def test_the_list_of_commands_says_what_each_commands_own_help_begins_with(name):
    command = cli.get_command(None, name)
    assert command.get_short_help_str(300) == _COMMANDS[name][1]
