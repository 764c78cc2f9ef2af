"""`muster images`: the catalog against what agents hold; what cannot be copied is refused before an engine is asked."""

from dataclasses import replace

import pytest
import yaml

from muster.core.agents.agent import AgentState
from tests.command_line import muster, submitted
from tests.strategies.agents import make_agent, reporting

OLD, NEW = ("sha256:" + digit * 64 for digit in "12")


def holding(agent_id: str, *image_ids: str, **hardware):
    agent = make_agent(agent_id, **hardware)
    images = [{"id": image_id, "tags": ["muster/default:latest"], "size_bytes": 1} for image_id in image_ids]
    return reporting(agent, images=images)


@pytest.fixture
def catalog(tmp_path):
    entry = {"name": "default", "reference": "docker.io/muster/default", "aliases": ["d"], "description": "small"}
    (tmp_path / "images.yml").write_text(yaml.safe_dump({"images": [entry]}), encoding="utf-8")


@pytest.mark.usefixtures("catalog")
def test_images_say_which_agents_hold_them(store):
    store.agents.save([holding("a1", OLD), holding("a2"), holding("a3", OLD)])
    (image,) = muster("images", "--json").json
    assert (image["name"], image["agents"], image["image_ids"]) == ("default", ["a1", "a3"], [OLD])
    assert muster("images").out.splitlines()[1].split() == ["default", "latest*", "d", "any", "-", "2/3", "small"]


@pytest.mark.usefixtures("catalog")
def test_images_say_when_agents_hold_different_ones_under_one_name(store):
    store.agents.save([holding("a1", OLD), holding("a2", NEW)])
    assert "2/2,2-VERSIONS" in muster("images").out


@pytest.mark.usefixtures("catalog")
def test_each_version_that_is_listed_can_be_named_by_it(store):
    store.agents.save([holding("a1", OLD)])
    for listed in muster("images", "--json").json:
        whole = f"{listed['name']}:{listed['version']}"
        assert listed["reference"] in muster("images", "show", whole).out
        queued = submitted("--image", whole)
        assert queued["kernels"][0]["image"] == listed["reference"]


@pytest.mark.usefixtures("catalog")
def test_each_fact_of_an_image_stands_apart_from_its_name(store):
    store.agents.save([holding("a1", OLD)])
    lines = muster("images", "show", "default").out.splitlines()
    assert ["architecture:", "any"] in [line.split() for line in lines]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["default"], "--from: agents hold different images as muster/default:latest (a1 111111111111, a2 22222222"),
        (["nosuch:1"], "no agent that answers was seen with image nosuch:1"),
        (["default", "--from", "a9", "--to", "a8,a1"], "there is no agent a8, a9; see `muster agents`"),
        (["default", "--group", "nosuch"], "--group: no agent is in resource group 'nosuch'"),
        (["default", "--group", "default", "--to", "a1"], "--group: it was given together with --to"),
    ],
)
@pytest.mark.usefixtures("catalog")
def test_an_image_that_cannot_be_copied_is_refused(store, arguments, problem):
    store.agents.save([holding("a1", OLD), holding("a2", NEW)])
    answer = muster("images", "sync", *arguments)
    assert (answer.code, problem in answer.err) == (2, True), answer.err


def test_an_agent_that_does_not_answer_gives_no_image(store):
    store.agents.save([replace(holding("a1", OLD), state=AgentState.UNREACHABLE)])
    assert "no agent that answers" in muster("images", "sync", "muster/default").err


def test_an_engine_that_cannot_be_reached_is_one_line(store):
    store.agents.save([holding("a1", OLD, connection="ssh", address="127.0.0.1", port=1)])
    answer = muster("images", "sync", "muster/default")
    assert answer.code == 1
    assert answer.errors == [
        "muster: agent a1: it cannot be logged in to (ssh: connect to host 127.0.0.1 port 1: Connection refused)"
    ]


SHARED = {
    "name": "torch",
    "versions": {1.7: "lab/torch:1.7", 2.9: "docker.io/muster/default"},
    "default": 2.9,
    "aliases": ["pytorch"],
    "labels": {"kind": "framework"},
    "minimum": {"cpu": 2, "mem": "4G"},
    "projects": ["vision"],
}
HERS = {"name": "hers", "reference": "lab/hers:1", "users": ["ann"], "labels": {"kind": "hers"}}


@pytest.fixture
def large_catalog(tmp_path):
    (tmp_path / "images.yml").write_text(yaml.safe_dump({"images": [SHARED, HERS]}), encoding="utf-8")


@pytest.mark.usefixtures("large_catalog")
def test_each_version_has_a_line(store):
    store.agents.save([holding("a1", OLD), holding("a2")])
    lines = [line.split() for line in muster("images", "--label", "kind=framework").out.splitlines()[1:]]
    assert lines == [
        ["torch", "1.7", "pytorch:1.7", "any", "cpu", "2,", "mem", "4G", "0/2", "-"],
        ["torch", "2.9*", "pytorch,pytorch:2.9", "any", "cpu", "2,", "mem", "4G", "1/2", "-"],
    ]


@pytest.mark.usefixtures("large_catalog")
def test_an_image_is_shown_by_any_of_its_names(store):
    store.agents.save([holding("a1", OLD)])
    (shown,) = muster("images", "show", "pytorch", "--json").json
    assert (shown["reference"], shown["agents"], shown["projects"]) == ("docker.io/muster/default", ["a1"], ["vision"])
    assert len(muster("images", "show", "torch", "--json").json) == 2
    assert "agents:       a1 (111111111111)" in muster("images", "show", "torch:2.9").out


@pytest.mark.usefixtures("large_catalog", "store")
def test_the_control_nodes_own_command_line_lists_everybodys_images(monkeypatch):
    """It lists everybody's sessions, too, for each user of sudo."""
    for user in ("nobody-of-ours", "ann"):
        monkeypatch.setenv("SUDO_USER", user)
        assert {image["name"] for image in muster("images", "--json").json} == {"torch", "hers"}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["images", "--label", "framework"], "--label: 'framework' has no =; write NAME=VALUE"),
        (["images", "show", "nosuch"], "NAME: there is no image 'nosuch' in the catalog; see `muster images`"),
        (["images", "rm", "torch"], "NAME:TAG: 'torch' has no tag; write a name and a tag"),
        (["images", "rm", "torch:1"], "NAME:TAG: no image torch:1 was made by `muster commit`"),
        (["commit", "nosuch", "a:1"], "nosuch"),
        (["commit", "nosuch", "A"], "NAME:TAG: 'A' has no tag"),
        (["commit", "nosuch", "a:1", "-m", "two\nlines"], "--message: it holds a line break"),
    ],
)
@pytest.mark.usefixtures("large_catalog", "store")
def test_bad_input_is_one_line(arguments, problem):
    answer = muster(*arguments)
    assert (answer.code, len(answer.errors)) == (2, 1), answer.err
    assert problem in answer.err
