"""What is written down of the images that agents get: by it Muster knows which ones it may remove again."""

import json
from dataclasses import replace

import pytest

from muster.core.images.collection import PulledImage
from muster.core.images.committed import CommittedImage
from muster.core.values.errors import ImageError
from muster.engine import agent_engine
from muster.engine.tunnel import EngineTunnel
from muster.service.images.source import ImageSource
from muster.settings import load_settings
from muster.store.images import ABANDONED_AFTER_S
from tests.command_line import write_settings
from tests.hostile.odd_engine import odd_engine
from tests.strategies.agents import make_agent
from tests.strategies.values import NOW

ID = "sha256:" + "ab" * 32
AGENT = make_agent("a1", inventory={"connection": "local"})
BEING_MADE = CommittedImage(
    name="ada/train",
    tag="2",
    owner="ada",
    public=False,
    message="",
    parent="muster/default:latest",
    parent_id=ID,
    session_id="0" * 36,
    session_name="train",
    kernel_name="main1",
    agent_id="a1",
    architecture="x86_64",
    created_at=NOW,
)
ABSENT = (404, b'{"message": "no such image"}')
LAYER = {"status": "Downloading", "id": "l1", "progressDetail": {"current": 1, "total": 2}}


@pytest.fixture
def engine(tmp_path, monkeypatch):
    with odd_engine(tmp_path) as server:
        monkeypatch.setattr(agent_engine, "_LOCAL_ENGINE", EngineTunnel(f"unix://{server.path}", str))
        server.answers = {"GET": ABSENT, "POST": (200, json.dumps(LAYER).encode())}
        yield server


@pytest.fixture
def store(control_node):
    return control_node().store


@pytest.fixture
def pull(store, engine, tmp_path):
    """Pull an image to an agent whose engine says then that it has this one."""
    source = ImageSource(store, load_settings(write_settings(tmp_path, {})), lambda: NOW)

    def pull(reference, said):
        source(AGENT, reference, lambda *_: engine.answers.update(GET=(200, json.dumps(said).encode())))

    return pull


def test_a_pull_is_written_down_by_the_name_that_engines_list(store, pull):
    pull("docker.io/library/debian", {"Id": ID})
    assert store.pulled_images.all() == [PulledImage("a1", "debian:latest", ID, NOW)]


@pytest.mark.parametrize("said", [{"Id": "x" * 1000}, {"Id": "sha256:\x00"}, {"Id": 7}, {"Id": None}, {}])
def test_an_agent_that_says_oddly_what_it_has_is_believed_nothing(store, pull, said):
    pull("debian:12", said)
    assert store.pulled_images.all() == []


def test_an_image_that_was_there_before_is_not_recorded_as_pulled(store, engine, pull):
    engine.answers["GET"] = (200, json.dumps({"Id": ID}).encode())
    pull("debian:12", {"Id": ID})
    assert store.pulled_images.all() == []


def test_a_pull_that_fails_is_not_written_down(store, engine, pull):
    engine.answers["POST"] = (404, b'{"message": "manifest unknown"}')
    with pytest.raises(ImageError):
        pull("debian:12", {"Id": ID})
    assert store.pulled_images.all() == []


@pytest.mark.parametrize("reference", ["ada/train:2", "docker.io/ada/train:2"])
def test_an_image_that_is_still_being_made_is_waited_for(store, engine, tmp_path, reference):
    store.agents.save([AGENT])
    store.images.claim(BEING_MADE)
    waits = []

    def sleep(seconds):
        waits.append(seconds)
        if len(waits) == 3:
            engine.answers["GET"] = (200, json.dumps({"Id": ID}).encode())
            store.images.made(replace(BEING_MADE, image_id=ID))

    ImageSource(store, load_settings(write_settings(tmp_path, {})), lambda: NOW, sleep)(
        AGENT, reference, lambda *_: None
    )
    assert len(waits) == 3
    assert store.pulled_images.all() == []
    assert not any("/images/create" in path for path, _ in engine.requests)


def test_an_image_whose_making_was_interrupted_is_not_waited_for(store, engine, pull):
    store.images.claim(replace(BEING_MADE, created_at=NOW - 2 * ABANDONED_AFTER_S))
    with pytest.raises(ImageError, match="making it was interrupted; commit it again") as raised:
        pull("ada/train:2", {"Id": ID})
    assert not raised.value.permanent
    assert not engine.requests
