"""`muster folder` where no agent answers, and `muster submit` with what it made."""

from dataclasses import replace

import pytest

from muster.core.agents.agent import AgentState
from muster.core.spec.mounts import HOME
from muster.settings import load_settings
from muster.store.store import Store
from tests.command_line import muster, submitted
from tests.strategies.agents import make_agent


@pytest.fixture
def store():
    opened = Store(load_settings().database_url)
    yield opened
    opened.close()


def test_a_folder_is_made_listed_mounted_and_removed():
    assert muster("folder", "create", "data", "--quota", "1.5G").out == "Created data\n"
    muster("folder", "share", "data", "bob", "--rw")
    muster("folder", "share", "data", "@vision")
    session = submitted("--name", "uses", "-v", "data")
    (mounted,) = session["folders"]
    assert (mounted["name"], mounted["target"], mounted["read_only"]) == ("data", f"{HOME}/data", False)
    assert f"Folders:    ada/data:{HOME}/data\n" in muster("show", "uses").out
    assert muster("folder", "ls").out.splitlines() == [
        "NAME  OWNER  STATE  SIZE  QUOTA  USED BY  SHARED WITH",
        "data  ada    ready  n/a   1.5G   uses     @vision:ro,bob:rw",
    ]
    assert muster("folder", "rm", "data", "--yes").errors == ["muster: folder data is in use by uses; end them first"]
    muster("cancel", "uses")
    assert muster("folder", "rm", "data", "--yes").out == "Removed data\n"
    assert muster("folder", "ls", "--json").json == []


def test_an_agent_that_is_away_keeps_its_part_and_that_is_said(store):
    store.agents.save([replace(make_agent("far"), state=AgentState.LOST, problem="no route")])
    made = muster("folder", "create", "data")
    assert (made.code, made.errors) == (0, ["agent far: no route"])
    left = muster("folder", "rm", "data", "--yes")
    assert (left.code, left.out) == (1, "")
    assert left.errors[1].startswith("data is still on far; nobody can mount it. Say `muster folder rm data` again")
    assert muster("folder", "ls", "--no-size", "--json").json[0]["state"] == "removing"
    assert muster("submit", "-v", "ada/data").code == 0  # a plain directory again, which the agents may lack
    store.agents.forget("far")
    assert muster("folder", "rm", "data", "--yes", "--json").json == {
        "name": "data",
        "removed": True,
        "removed_from": [],
        "left_on": [],
        "problems": {},
    }


@pytest.mark.parametrize("change", [("quota", "data", "1G"), ("share", "data", "bob")])
def test_a_folder_that_is_being_removed_is_changed_no_more(store, change):
    store.agents.save([replace(make_agent("far"), state=AgentState.LOST, problem="no route")])
    muster("folder", "create", "data")
    muster("folder", "rm", "data", "--yes")
    refused = muster("folder", *change)
    said = "muster: folder data is being removed; to remove what is left of it, say `muster folder rm data` again"
    assert (refused.code, refused.errors) == (1, [said])
    (folder,) = muster("folder", "ls", "--no-size", "--json").json
    assert (folder["state"], folder["quota_bytes"], folder["shared_with"]) == ("removing", None, [])


def test_all_owners_folders_are_listed_only_on_request():
    muster("folder", "create", "his", "--owner", "bob")
    assert muster("folder", "ls", "--json").json == []
    assert [folder["name"] for folder in muster("folder", "ls", "--all", "--json").json] == ["his"]
    muster("folder", "share", "his", "@vision", "--owner", "bob")
    assert muster("folder", "ls", "-P", "vision", "--json").json[0]["shared_with"] == [
        {"grantee": "@vision", "read_only": True}
    ]
