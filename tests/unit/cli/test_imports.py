"""Which libraries each command loads: the start of a short command is nearly all of its time."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator

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
# Several commands, one after the other: none of them unloads what an earlier one has loaded.
PROGRAMS = """
import json, sys
from muster.cli.main import main
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["muster", *arguments]
    try:
        main()
    except SystemExit as ended:
        if ended.code:
            raise
    print("modules:", *{name.partition(".")[0] for name in sys.modules}, file=sys.stderr)
"""


def loaded(*commands: tuple[str, ...], **environment: str) -> Iterator[tuple[tuple[str, ...], set[str]]]:
    """Yield each command with the libraries that are loaded at its end; all must succeed. Python starts once."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAMS, json.dumps(commands)],
        env={**os.environ, **environment},
        check=True,
        capture_output=True,
        text=True,
    )
    found = [set(line.split()[1:]) for line in done.stderr.splitlines() if line.startswith("modules:")]
    return zip(commands, found, strict=True)


def test_commands_without_sessions_load_no_library_but_click():
    for command, libraries in loaded(("version",), ("--help",), ("completion", "bash")):
        assert not libraries & NOTHING, command


def test_names_of_commands_are_completed_without_loading_them():
    words = {"_MUSTER_COMPLETE": "bash_complete", "COMP_WORDS": "muster re", "COMP_CWORD": "1"}
    ((_, libraries),) = loaded((), **words)
    assert not libraries & NOTHING


def test_commands_without_decisions_load_neither_scheduler_nor_gateway():
    submitted("--name", "train")
    commands = (
        ("ls",),
        ("ls", "--json"),
        ("show", "train"),
        ("agents",),
        ("agents", "--gpus"),
        ("rename", "train", "b"),
    )
    for command, libraries in loaded(*commands):
        assert not libraries & (DECIDING | AGENTS | SERVER | {"alembic"}), command


def test_a_submit_and_an_update_load_no_way_to_agents():
    for _, libraries in loaded(("submit", "--name", "train"), ("update", "train", "--cpu", "2")):
        assert libraries >= {"sqlalchemy"}
        assert not libraries & (AGENTS | SERVER | {"alembic"})


@pytest.mark.parametrize("name", _COMMANDS)
def test_the_list_of_commands_says_what_each_commands_own_help_begins_with(name):
    command = cli.get_command(None, name)
    assert command.get_short_help_str(300) == _COMMANDS[name][1]
