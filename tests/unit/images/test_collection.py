"""Which pulled images agents remove when their disks are short, and that no other image ever goes."""

import json
from dataclasses import replace
from typing import Any

import pytest

from muster.contract.report import DiskReport, ImageReport
from muster.core.agents.agent import Agent
from muster.core.images.collection import CollectionRules, PulledImage, removable
from muster.core.model.session import SessionState
from muster.core.model.snapshot import Snapshot
from muster.core.values.errors import AgentUnreachableError, ImageError
from muster.service.images.collection import ImageCollection
from muster.settings import load_settings
from tests.command_line import muster, write_settings
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session, placed_on
from tests.strategies.values import NOW

GIB = 1 << 30
HOUR = 3600.0
RULES = CollectionRules(HOUR, 20 * GIB)
OLD, NEW, OTHER = ("sha256:" + digit * 64 for digit in "abc")


def agent(free: int = GIB, **images: str) -> Agent:
    """Return an agent with so much of its disk free, and these images by name."""
    held = tuple(ImageReport(id=id_, tags=(f"{name}:1",), size_bytes=GIB) for name, id_ in images.items())
    found = make_agent("a1")
    report = found.report.model_copy(
        update={"disk": DiskReport(path="/d", total_bytes=100 * GIB, free_bytes=free), "images": held}
    )
    return replace(found, report=report)


def pulled(name: str, image_id: str, unused_s: float, **facts: Any) -> PulledImage:
    return replace(PulledImage("a1", f"{name}:1", image_id, NOW - unused_s), **facts)


def chosen(here: Agent, *images: PulledImage, kept: tuple[str, ...] = ()) -> str | None:
    found = removable(here, images, kept, NOW, RULES)
    return found.reference if found else None


def test_the_image_that_was_unused_longest_is_removed_first():
    both = agent(old=OLD, new=NEW)
    assert chosen(both, pulled("new", NEW, 2 * HOUR), pulled("old", OLD, 9 * HOUR)) == "old:1"
    assert chosen(both, pulled("new", NEW, HOUR), pulled("old", OLD, HOUR - 1)) == "new:1"


@pytest.mark.parametrize(
    ("here", "image", "kept"),
    [
        (agent(20 * GIB, old=OLD), pulled("old", OLD, 9 * HOUR), ()),
        (agent(old=OLD), pulled("old", OLD, HOUR - 1), ()),
        (agent(old=OLD), pulled("old", OLD, -HOUR), ()),
        (agent(old=OLD), pulled("old", OLD, 9 * HOUR), ("old:1",)),
        (agent(old=OLD), pulled("old", OLD, 9 * HOUR), (OLD,)),
        (agent(old=OLD), pulled("old", OLD, 9 * HOUR, agent_id="a2"), ()),
        (agent(old=OLD), pulled("old", OLD, 9 * HOUR, removed_at=NOW - 1), ()),
        (agent(old=OTHER), pulled("old", OLD, 9 * HOUR), ()),
        (agent(), pulled("old", OLD, 9 * HOUR), ()),
    ],
    ids=["room", "young", "clock", "named", "named by id", "elsewhere", "removed", "replaced by hand", "gone"],
)
def test_every_other_image_stays(here, image, kept):
    assert chosen(here, image, kept=kept) is None


def test_an_image_that_muster_did_not_pull_stays():
    assert chosen(agent(old=OLD)) is None


class Removals:
    """A stand-in for agents' engines, which notes the images to be removed."""

    def __init__(self, error: Exception | None = None) -> None:
        self.names: list[str] = []
        self._error = error

    def __call__(self, agent: Agent, reference: str) -> bool:
        assert agent.id == "a1"
        self.names.append(reference)
        if self._error:
            raise self._error
        return True


@pytest.fixture
def store(control_node):
    return control_node().store


@pytest.fixture
def collection(store, tmp_path):
    def make(removals: Removals, catalog: tuple[dict[str, str], ...] = (), **settings: Any) -> ImageCollection:
        (tmp_path / "images.yml").write_text(json.dumps({"images": catalog}), encoding="utf-8")
        path = write_settings(tmp_path, {"image_keep_s": HOUR, "default_image": "base:1", **settings})
        return ImageCollection(store, load_settings(path), lambda run: run(), removals)

    return make


def snapshot(*sessions: Any, now: float = NOW) -> Snapshot:
    return Snapshot((), sessions, now)


def test_images_go_one_after_each_report_and_it_is_said(store, collection, caplog):
    caplog.set_level("INFO")
    store.pulled_images.save([pulled("old", OLD, 9 * HOUR), pulled("new", NEW, 2 * HOUR)])
    removals = Removals()
    collect = collection(removals)
    collect(snapshot(), [agent(old=OLD, new=NEW)])
    assert removals.names == ["old:1"]
    assert "image old:1 was removed from agent a1: no session there has needed it for 9h" in caplog.text
    collect(snapshot(), [agent(50 * GIB, new=NEW)])
    assert removals.names == ["old:1"]
    collect(snapshot(), [agent(new=NEW)])
    assert removals.names == ["old:1", "new:1"]
    assert [image.removed_at for image in store.pulled_images.all()] == [NOW, NOW]


def test_without_the_setting_nothing_goes(store, collection):
    store.pulled_images.save([pulled("old", OLD, 9 * HOUR)])
    removals = Removals()
    collection(removals, image_keep_s=None)(snapshot(), [agent(old=OLD)])
    assert removals.names == []


@pytest.mark.parametrize("state", [SessionState.PENDING, SessionState.RUNNING])
def test_a_sessions_image_stays_on_every_agent(store, collection, state):
    session = make_session(image="docker.io/library/old:1")
    session = session if state is SessionState.PENDING else placed_on(session, "a2", state=state)
    store.pulled_images.save([pulled("old", OLD, 9 * HOUR)])
    removals = Removals()
    collection(removals)(snapshot(session), [agent(old=OLD)])
    assert removals.names == []


def test_images_of_the_catalog_and_the_default_one_stay(store, collection):
    store.pulled_images.save([pulled("old", OLD, 9 * HOUR), pulled("base", NEW, 9 * HOUR)])
    removals = Removals()
    collection(removals, ({"name": "mine", "reference": "old:1"},))(snapshot(), [agent(old=OLD, base=NEW)])
    assert removals.names == []


def test_while_the_catalog_cannot_be_read_nothing_goes(store, collection, tmp_path):
    store.pulled_images.save([pulled("old", OLD, 9 * HOUR)])
    removals = Removals()
    collect = collection(removals)
    (tmp_path / "images.yml").write_text("images: [", encoding="utf-8")
    collect(snapshot(), [agent(old=OLD)])
    assert removals.names == []


def test_time_counts_from_the_last_session_there(store, collection):
    store.pulled_images.save([pulled("old", OLD, 9 * HOUR)])
    removals = Removals()
    collect = collection(removals)
    collect(snapshot(placed_on(make_session(image="old:1"), "a1")), [agent(old=OLD)])
    collect(snapshot(now=NOW + HOUR - 1), [agent(old=OLD)])
    assert removals.names == []
    collect(snapshot(now=NOW + HOUR), [agent(old=OLD)])
    assert removals.names == ["old:1"]


def test_a_removed_image_that_is_needed_again_is_left_to_its_pull(store, collection):
    gone = pulled("old", OLD, 9 * HOUR, removed_at=NOW - 1)
    store.pulled_images.save([gone])
    collection(Removals())(snapshot(placed_on(make_session(image="old:1"), "a1")), [agent()])
    assert store.pulled_images.all() == [gone]


def test_an_image_that_the_engine_keeps_holds_up_no_other(store, collection):
    store.pulled_images.save([pulled("old", OLD, 9 * HOUR), pulled("new", NEW, 2 * HOUR)])
    removals = Removals(ImageError("image old:1 cannot be removed: a container uses it", permanent=False))
    collect = collection(removals)
    collect(snapshot(), [agent(old=OLD, new=NEW)])
    collect(snapshot(now=NOW + 1), [agent(old=OLD, new=NEW)])
    assert removals.names == ["old:1", "new:1"]


def test_an_agent_that_does_not_answer_is_tried_again(store, collection):
    store.pulled_images.save([pulled("old", OLD, 9 * HOUR)])
    removals = Removals(AgentUnreachableError("agent a1: no answer"))
    collect = collection(removals)
    for _ in range(2):
        collect(snapshot(), [agent(old=OLD)])
    assert removals.names == ["old:1", "old:1"]
    assert store.pulled_images.all() == [pulled("old", OLD, 9 * HOUR)]


def test_muster_images_shows_what_was_removed(store, tmp_path, monkeypatch):
    store.pulled_images.save([pulled("old", OLD, HOUR, removed_at=NOW), pulled("new", NEW, HOUR)])
    monkeypatch.setenv("MUSTER_CONFIG", str(write_settings(tmp_path, {"state_dir": str(tmp_path)})))
    shown = muster("images").out
    assert "since nobody needed them" in shown
    assert "old:1" in shown
    assert "new:1" not in shown
