"""Engines with containerd's image store: their disk, and lists of images while one is removed."""

import os
from types import SimpleNamespace

import pytest

from tests.hostile.odd_engine import odd_engine
from tests.modules.agent_code import engine_api, image_store

CONTAINERDS = [["driver-type", "io.containerd.snapshotter.v1"]]


@pytest.fixture
def host(tmp_path, monkeypatch):
    """Return a host's root; its engine's directory has the most room, and the others the less, the longer they are."""
    for folder in (
        "docker",
        "run/containerd",
        "etc/containerd",
        "var/lib/containerd",
        "srv/a/large/disk/of/containerd",
    ):
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=10_000 - len(str(path)), f_frsize=1))
    return tmp_path


def fullest(host, status=CONTAINERDS):
    info = {"DockerRootDir": str(host / "docker"), "DriverStatus": status}
    return image_store.fullest_directory(info, host).removeprefix(f"{host}/")


def test_an_engine_with_a_storage_driver_has_one_directory(host):
    (host / "run/containerd/containerd.sock").touch()
    assert fullest(host, [["Backing Filesystem", "extfs"]]) == "docker"
    assert fullest(host, None) == "docker"


def test_a_containerd_of_the_engine_itself_is_in_the_engines_directory(host):
    assert fullest(host) == "docker"


def test_that_of_containerd_counts_where_it_has_less_room(host):
    (host / "run/containerd/containerd.sock").touch()
    assert fullest(host) == "var/lib/containerd"
    (host / "var/lib/containerd").rename(host / "c")
    assert fullest(host) == "docker"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('version = 3\nroot = "/srv/a/large/disk/of/containerd"\n', "srv/a/large/disk/of/containerd"),
        ("root='/srv/a/large/disk/of/containerd' # moved\n", "srv/a/large/disk/of/containerd"),
        ('[plugins]\n  root_path = "/elsewhere"\n', "var/lib/containerd"),
        ('root = "/no/such"', "docker"),
    ],
)
def test_its_directory_may_be_configured(host, text, found):
    (host / "run/containerd/containerd.sock").touch()
    (host / "etc/containerd/config.toml").write_text(text)
    assert fullest(host) == found


@pytest.mark.parametrize(("misses", "is_answered"), [(1, True), (4, True), (1000, False)])
def test_images_are_listed_again_where_one_was_removed_meanwhile(tmp_path, misses, is_answered):
    with odd_engine(tmp_path) as server:
        server.bodies, server.misses = {"/images/json": b'[{"Id": "x"}]'}, {"/images/json": misses}
        engine = engine_api.EngineApi(server.path)
        if is_answered:
            assert engine.images() == [{"Id": "x"}]
        else:
            with pytest.raises(engine_api.EngineError, match="not found"):
                engine.images()
