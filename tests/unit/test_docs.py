"""The pages say what the code does: states, commands, settings."""

import re
from pathlib import Path

import click
import pytest

from muster.cli.main import cli
from muster.core.lifecycle.transitions import TRANSITIONS
from muster.core.model.session import SessionState
from muster.settings import Settings
from tests.command_line import muster

ROOT = Path(__file__).parents[2]
PAGES = {path.name: path.read_text(encoding="utf-8") for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]}
COMMANDS = cli.list_commands(click.Context(cli))


def rows(page: str) -> list[list[str]]:
    lines = [line for line in PAGES[page].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_page_of_states_has_every_state():
    assert {row[0] for row in rows("states.md") if len(row) == 2} - {"state", "---"} == set(SessionState)


def test_the_page_of_states_has_exactly_the_changes_of_the_table():
    on_page = sorted((row[0], row[1]) for row in rows("states.md") if len(row) == 3)
    in_code = [(before.value, after.value) for before, targets in TRANSITIONS.items() for after in targets]
    assert on_page == sorted([("from", "to"), ("---", "---"), *in_code])


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_on_a_page(command):
    mentions = [name for name, text in PAGES.items() if re.search(rf"\bmuster {command}\b", text)]
    assert mentions, f"write about `muster {command}` in README.md or docs/*.md"


@pytest.mark.parametrize("command", sorted(set(COMMANDS) - {"completion", "version"}))
def test_the_page_of_the_api_names_the_commands_that_work_by_a_server(command):
    answer = muster("--server", "http://127.0.0.1:1", command, "-h")
    (listed,) = re.findall(r"^`submit` \(also.*? work this way", PAGES["api.md"], re.DOTALL | re.MULTILINE)
    assert (f"`{command}`" in listed) == (answer.code == 0), answer.err


@pytest.mark.parametrize("key", Settings.model_fields)
def test_every_setting_is_on_a_page(key):
    mentions = [name for name, text in PAGES.items() if f"`{key}`" in text]
    assert mentions, f"write about the setting `{key}`, in backticks, in README.md or docs/*.md"


def test_no_page_names_a_setting_that_does_not_exist():
    named = {name for text in PAGES.values() for name in re.findall(r"the (?:site's|setting) `(\w+)[`:]", text)}
    assert "master_port" in named
    assert named <= Settings.model_fields.keys()


def test_no_page_shows_a_command_that_does_not_exist():
    shown = {
        (name, match)
        for name, text in PAGES.items()
        for match in re.findall(r"(?:`|^ *|\$ )muster ([a-z][a-z-]*)", text, flags=re.MULTILINE)
    }
    assert {(name, command) for name, command in shown if command not in COMMANDS} == set()
