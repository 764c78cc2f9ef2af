"""Which ids mean one image."""

from muster.core.images.identity import ImageIds
from tests.strategies.agents import make_agent, reporting

IDS = ImageIds({"manifest": "config", "index": "config"})


def test_only_known_ids_are_of_one_image():
    assert IDS.are_one("manifest", "index")
    assert IDS.are_one("index", "config")
    assert IDS.are_one("other", "other")
    assert not IDS.are_one("other", "config")
    assert not IDS.are_one(None, None)
    assert not IDS.are_one(None, "config")


def test_each_image_counts_once():
    assert IDS.distinct(["manifest", "other", "config", "index", "other"]) == ["config", "other"]
    assert IDS.distinct([]) == []


def test_an_agent_holds_an_image_under_its_own_id():
    held = [{"id": each, "tags": [], "size_bytes": 1} for each in ("other", "index")]
    agent = reporting(make_agent("a1"), images=held)
    assert IDS.on(agent, "config") == "index"
    assert IDS.on(agent, "other") == "other"
    assert IDS.on(agent, "absent") is None
