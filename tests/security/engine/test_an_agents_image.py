"""A compromised agent gives an image to this machine's engine: it sends archives of its own."""

import json
import uuid

import docker
import pytest

from muster.core.values.errors import ImageError
from muster.engine import images as engine_images
from muster.engine.agent_engine import engine_of
from muster.engine.images import ExpectedImage, copy
from muster.engine.tunnel import EngineTunnel
from tests.hostile.image_archives import SmallImage, archive
from tests.hostile.odd_engine import odd_engine
from tests.strategies.agents import make_agent

LIAR = make_agent("a1", inventory={"connection": "local"})
HONEST = make_agent("a2", inventory={"connection": "local"})


@pytest.fixture
def names(engine):
    """Yield two names of this test alone: one that is meant, one that the attacker would like to have."""
    run = uuid.uuid4().hex[:8]
    yield f"muster-test/meant-{run}:1", f"muster-test/victim-{run}:1"
    for name in ("meant", "victim"):
        for image in engine.images.list(name=f"muster-test/{name}-{run}"):
            engine.images.remove(image.id, force=True)


@pytest.fixture
def liar(tmp_path, monkeypatch):
    """Yield the engine of the agent that was broken into; the other agent's is this machine's."""
    with odd_engine(tmp_path) as server:
        way = EngineTunnel(f"unix://{server.path}", str)

        def to(agent, **options):
            if agent.id == LIAR.id:
                return docker_client(way)
            return engine_of(agent, **options)

        monkeypatch.setattr(engine_images, "engine_of", to)
        yield server


def docker_client(way):
    class Client(docker.DockerClient):
        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.close()

    return Client(base_url=way.url)


def says(server, image, data):
    server.bodies = {f"/images/{image.id}/json": json.dumps({"Id": image.id, "Size": 10}).encode(), "/get": data}


def copied(image, name):
    copy(LIAR, HONEST, name, ExpectedImage(image.id, 1 << 20), lambda _done, _total: None)


def tags(engine, prefix="muster-test/"):
    return {tag for image in engine.images.list() for tag in image.tags if tag.startswith(prefix)}


def test_tags_and_images_that_nobody_meant_are_not_loaded(engine, liar, names):
    meant, victim = names
    image, evil = SmallImage(tags=(meant, victim)), SmallImage(text=b"evil", tags=(victim,))
    files = {**image.files(), "2/layer.tar": evil.layer, f"{evil.id[7:]}.json": evil.config}
    files["manifest.json"] = json.dumps([image.manifest, {**evil.manifest, "Layers": ["2/layer.tar"]}]).encode()
    says(liar, image, archive(files))
    copied(image, meant)
    assert engine.images.get(meant).id == image.id
    assert victim not in tags(engine)
    with pytest.raises(docker.errors.ImageNotFound):
        engine.images.get(evil.id)


@pytest.mark.parametrize("what", ["layer", "config", "no end", "too much"])
def test_an_archive_that_is_not_the_image_leaves_the_engine_as_it_was(engine, liar, names, what):
    meant, _ = names
    image, evil = SmallImage(tags=(meant,)), SmallImage(text=b"evil", tags=(meant,))
    data = {
        "layer": archive({**image.files(), "1/layer.tar": evil.layer}),
        "config": archive(evil.files()),
        "no end": archive(image.files())[:3000],
        "too much": archive({**image.files(), "x": bytes(2 << 20)}),
    }[what]
    says(liar, image, data)
    with pytest.raises(ImageError) as refused:
        copied(image, meant)
    assert str(refused.value).startswith(f"image {meant} cannot be copied; agent a1: ")
    assert str(refused.value).isprintable()
    assert meant not in tags(engine)
    # Other tests give this engine images meanwhile; those of the archive have these ids.
    assert not {image.id, evil.id} & {found.id for found in engine.images.list(all=True)}


def test_an_archive_that_an_engine_saved_is_loaded(engine, liar, names):
    meant, _ = names
    repository, _, tag = meant.rpartition(":")
    said = engine.api.import_image_from_data(archive({"hello": b"hello"}), repository=repository, tag=tag)
    image = engine.images.get(json.loads(said)["status"])
    data = b"".join(engine.api.get_image(image.id))
    engine.images.remove(image.id, force=True)
    says(liar, image, data)
    copied(image, meant)
    assert engine.images.get(meant).id == image.id
