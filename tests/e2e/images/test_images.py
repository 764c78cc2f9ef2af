"""The recipes of `images/`, and sessions that pick images from the catalog."""

import shlex
import subprocess
import sys
from collections.abc import Iterator

import docker
import pytest
import yaml

from tests.control_node import ROOT, SMALL

RECIPES = ("base", "python")
OTHER = {"x86_64": "aarch64", "aarch64": "x86_64"}


def entry(recipe):
    return yaml.safe_load((ROOT / "images" / recipe / "image.yml").read_text())


@pytest.fixture(scope="module")
def built() -> Iterator[None]:
    """Build an image. Remove afterwards the images that were not there before."""
    client = docker.from_env()
    there = {tag for image in client.images.list() for tag in image.tags}
    done = subprocess.run(
        [sys.executable, ROOT / "images" / "build", "python"], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    yield
    for recipe in reversed(RECIPES):
        if entry(recipe)["reference"] not in there:
            client.images.remove(entry(recipe)["reference"])


@pytest.fixture(scope="module", autouse=True)
def catalog(node) -> Iterator[None]:
    """Give the shared node a catalog of its own while these tests run."""
    path = node.directory / "images.yml"
    before = path.read_text() if path.exists() else None
    machine = docker.from_env().info()["Architecture"]
    entries = [
        *map(entry, RECIPES),
        {"name": "default", "reference": "muster/default:latest", "architecture": machine, "labels": {"kind": "small"}},
        {
            "name": "framework",
            "versions": {1.7: "muster/python:latest", 2.0: "muster/base:latest"},
            "default": 2.0,
            "aliases": {"frame": None, "old-frame": 1.7},
            "minimum": {"mem": "48M"},
        },
        {"name": "foreign", "reference": "muster/foreign:1", "architecture": OTHER[machine]},
        {"name": "hers", "reference": "muster/hers:1", "users": ["ann"]},
    ]
    path.write_text(yaml.safe_dump({"images": entries}))
    yield
    path.unlink() if before is None else path.write_text(before)


@pytest.mark.usefixtures("built")
def test_two_versions_run_side_by_side_each_picked_by_an_alias(node):
    old = node.start("--image", "framework:1.7")
    new = node.start("--image", "frame")
    assert node.exec(old, "python", "-c", "import numpy; print(numpy.arange(3).sum())").out == "3\n"
    assert node.exec(old, "sh", "-c", "pip install --user --no-index --dry-run numpy && git --version").code == 0
    assert node.exec(new, "python", check=False).code != 0
    kernels = [node.show(name)["kernels"][0]["image"] for name in (old, new)]
    assert kernels == ["muster/python:latest", "muster/base:latest"]
    node.run("terminate", old, new)


def test_an_image_that_came_to_the_agent_a_moment_ago_is_not_asked_of_a_registry(node):
    client = docker.from_env()
    client.images.get("muster/default:latest").tag("muster-e2e/just-now", "1")
    try:
        node.run("terminate", node.start("--image", "muster-e2e/just-now:1"), "--wait")
    finally:
        client.images.remove("muster-e2e/just-now:1")


@pytest.mark.usefixtures("built")
def test_rsync_takes_the_printed_command(node, tmp_path):
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "mine"], check=True)
    name = node.start("--image", "frame", "--ssh-key", str(tmp_path / "mine.pub"))
    *command, target = shlex.split(node.run("ssh", name, "--print").out)
    options = ("-i", tmp_path / "mine", "-o", "StrictHostKeyChecking=no", "-o", f"UserKnownHostsFile={tmp_path}/known")
    remote = shlex.join(map(str, (*command, *options)))
    (tmp_path / "sent").write_text("by rsync\n")
    subprocess.run(["rsync", "-e", remote, tmp_path / "sent", f"{target}:synced"], check=True)
    subprocess.run(["rsync", "-e", remote, f"{target}:synced", tmp_path / "back"], check=True)
    assert (tmp_path / "back").read_text() == "by rsync\n"
    node.run("terminate", name, "--wait")


@pytest.mark.usefixtures("built")
def test_the_catalog_shows_which_agents_have_an_image(node):
    node.run("pass", "--wait")
    known = {(image["name"], image["version"]): image for image in node.run("images", "--json").json()}
    held = docker.from_env().images.get("muster/python:latest")
    old = known["framework", "1.7"]
    assert (old["agents"], old["image_ids"], old["is_default_version"]) == (["localhost"], [held.id], False)
    assert old["aliases"] == ["frame:1.7", "old-frame"]
    assert old["minimum"]["mem_bytes"] == 48 << 20
    assert known["foreign", "latest"]["agents"] == []
    assert [image["name"] for image in node.run("images", "--label", "kind=small", "--json").json()] == ["default"]
    lines = node.run("images", "show", "framework").out
    assert "framework:2.0 (the default version)" in lines


@pytest.mark.parametrize(
    ("image", "line"),
    [
        (
            "framwork",
            "image: there is no image 'framwork' in the catalog for root in project default; did you mean framew",
        ),
        ("framework:9", "did you mean framework:1.7 or framework:2.0?"),
        (
            "muster/hers:1",
            "image: there is no image 'muster/hers:1' in the catalog for root in project default; choose one of the c",
        ),
    ],
)
def test_an_image_outside_the_catalog_is_refused_in_one_line(node, image, line):
    refused = node.run("submit", "--image", image, check=False)
    assert refused.code == 2
    assert [line in text for text in refused.err.splitlines()] == [True], refused.err


def test_too_little_for_the_image_is_one_line(node):
    refused = node.run("submit", *SMALL, "--mem", "32M", "--image", "frame", check=False)
    assert refused.err == (
        "muster: mem: image framework needs 48M or more in each container, and 32M is asked for; write 48M or more\n"
    )
    assert refused.code == 2


def test_an_image_of_another_architecture_is_placed_nowhere(node):
    name = node.submit(*SMALL, "--image", "foreign")
    shown = node.show(name)
    assert (shown["state"], shown["spec"]["labels"]["muster/architecture"] in OTHER) == ("PENDING", True)
    node.run("pass", "--wait")
    assert "label" in node.run("why", name, check=False).out
    node.run("cancel", name)
