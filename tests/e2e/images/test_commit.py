"""`muster commit`: what comes along in an image of a running kernel, and what never does."""

import io
import json
import os
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace

import docker
import pytest

from muster.core.spec.mounts import HOME
from muster.settings import load_settings
from muster.store.images import ABANDONED_AFTER_S
from muster.store.store import Store
from tests.control_node import SCRIPTS, SMALL

IMAGE = "alice/committed:1"
FOLDER_TEXT, LOG_TEXT, KEY_TEXT = "text-in-the-folder", "text-in-the-log", "text-of-a-private-key"
ENV_TEXT, COMMAND_TEXT = "text-in-the-environment", "text-of-the-command"
NEVER = (FOLDER_TEXT, LOG_TEXT, KEY_TEXT, ENV_TEXT, COMMAND_TEXT, "PRIVATE KEY", "BACKENDAI_")


@contextmanager
def as_user(node, name) -> Iterator[None]:
    """Run as a user that became root by sudo."""
    before = dict(node.variables)
    node.variables["SUDO_USER"] = name
    try:
        yield
    finally:
        node.variables.clear()
        node.variables.update(before)


@pytest.fixture(scope="module")
def session(node) -> str:
    """Return alice's session of two kernels, in which she has changed files."""
    (node.folders / "data").mkdir(exist_ok=True)
    (node.folders / "data" / "numbers.txt").write_text(FOLDER_TEXT)
    with as_user(node, "alice"):
        name = node.submit(
            *(*SMALL, "-N", "2", "-v", "data", "-v", "data:/mnt/deep/data:ro", "-e", f"TOKEN={ENV_TEXT}"),
            *("-c", f"echo {LOG_TEXT}; : {COMMAND_TEXT}; touch ready; sleep 1000"),
        )
        node.reaches(name, "RUNNING")
    script = f"""
        until [ -e ready ]; do sleep 0.1; done
        mkdir -p results/deep .ssh && echo {KEY_TEXT} > .ssh/id_rsa
        echo 42 > results/deep/answer && ln -s answer results/deep/link && ln results/deep/answer results/hard
        ln -s /run/muster/id_ed25519 results/key
        ssh sub1 true
    """
    node.exec(name, "sh", "-ec", script)
    return name


@pytest.fixture(scope="module")
def image(node, session) -> Iterator[dict]:
    with as_user(node, "alice"):
        made = node.run("commit", session, IMAGE, "--message", "with results", "--sync", "--json").json()
    yield made
    docker.from_env().images.remove(IMAGE, force=True)


def layers_of(reference):
    archive = io.BytesIO(b"".join(docker.from_env().api.get_image(reference)))
    with tarfile.open(fileobj=archive) as saved:
        members = {member.name: saved.extractfile(member) for member in saved if member.isfile()}
        contents = {name: content.read() for name, content in members.items()}
    (manifest,) = json.loads(contents["manifest.json"])
    return contents, [contents[name] for name in manifest["Layers"]], json.loads(contents[manifest["Config"]])


def test_a_commit_shows_on_a_terminal_how_far_it_is(node, session):
    terminal, of_the_program = os.openpty()
    command = [SCRIPTS / "muster", "commit", session, "alice/shown:1"]
    environment = {**node.environment, "SUDO_USER": "alice"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=of_the_program, text=True) as making:
        os.close(of_the_program)
        shown = b""
        with suppress(OSError):  # what reading ends with when the program has
            while part := os.read(terminal, 1 << 12):
                shown += part
        os.close(terminal)
        assert making.stdout is not None
        assert making.stdout.read().startswith("alice/shown:1 (")
    assert making.returncode == 0
    assert b"localhost 100 %" in shown
    with as_user(node, "alice"):
        node.run("images", "rm", "alice/shown:1")


def test_no_layer_of_it_holds_keys_mounts_or_logs(image):
    contents, layers, _ = layers_of(image["reference"])
    for name, content in contents.items():
        for text in NEVER:
            if content in layers[:-1] and text not in (FOLDER_TEXT, LOG_TEXT, KEY_TEXT, ENV_TEXT, COMMAND_TEXT):
                continue  # the parent's own programs may speak of such things
            assert text.encode() not in content, f"{text} is in {name}"
    with tarfile.open(fileobj=io.BytesIO(layers[-1])) as newest:
        names = sorted(newest.getnames())
    home = HOME.lstrip("/")
    deep = ("deep", "deep/answer", "deep/link", "hard")
    results = [f"{home}/results/{name}" for name in deep]
    assert names == ["home", home, f"{home}/ready", f"{home}/results", *results]


def test_a_committed_image_starts_as_its_parent_does(image):
    client = docker.from_env()
    parent, made = (client.images.get(name).attrs for name in ("muster/default:latest", image["reference"]))
    for key in ("Entrypoint", "Cmd", "Env", "Labels", "User", "WorkingDir", "ExposedPorts", "Volumes", "Healthcheck"):
        assert (made["Config"].get(key) or None) == (parent["Config"].get(key) or None), key
    assert made["RootFS"]["Layers"][:-1] == parent["RootFS"]["Layers"]


def test_the_author_and_the_parent_are_recorded(node, image, session):
    parent = docker.from_env().images.get("muster/default:latest").id
    (shown,) = node.run("images", "show", IMAGE, "--json").json()
    known = node.show(session)
    assert shown["committed"] | {"created_at": None} == {
        "reference": IMAGE,
        "image_id": image["image_id"],
        "author": "alice",
        "public": False,
        "message": "with results",
        "parent": "muster/default:latest",
        "parent_id": parent,
        "session": {"id": known["id"], "name": session, "kernel": "main1"},
        "agent": "localhost",
        "architecture": docker.from_env().info()["Architecture"],
        "size_bytes": image["size_bytes"],
        "created_at": None,
    }
    text = node.run("images", "show", IMAGE).out
    assert "alice" in text
    assert "muster/default:latest" in text


def test_its_author_starts_sessions_of_it_and_nobody_else(node, image):
    with as_user(node, "bob"):
        refused = node.run("submit", *SMALL, "--image", image["reference"], check=False)
        assert refused.code == 2
        assert f"image: there is no image '{IMAGE}' in the catalog for bob" in refused.err
        # On the control node root sees everybody's, as with sessions.
        assert IMAGE in [f"{i['name']}:{i['version']}" for i in node.run("images", "--json").json()]
    with as_user(node, "alice"):
        again = node.start("--image", image["reference"], "-N", "2")
        done = node.exec(again, "sh", "-ec", "cat results/deep/link results/hard; id -un; ssh sub1 hostname")
        assert done.out.split() == ["42", "42", "work", "sub1"]
        in_use = node.run("images", "rm", IMAGE, check=False)
        assert (in_use.code, f"used by session {again}" in in_use.err) == (1, True)
        node.run("terminate", again)
        node.reaches(again, "TERMINATED")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("untagged", "NAME:TAG: 'untagged' has no tag; write a name and a tag, such as train:2"),
        ("Upper:1", "NAME:TAG: 'Upper' is not a name; write lower-case letters"),
        ("muster/default:latest", "NAME:TAG: agent localhost holds another image muster/default:latest"),
        (IMAGE, f"NAME:TAG: there is an image {IMAGE} already"),
    ],
)
@pytest.mark.usefixtures("image")
def test_a_name_that_cannot_be_had_is_refused(node, session, name, problem):
    refused = node.run("commit", session, name, check=False)
    assert (refused.code, problem in refused.err) == (2, True), refused.err


def test_a_commit_over_the_size_limit_is_refused(node, session):
    before = node.config.read_text()
    node.config.write_text(before + "commit_max_size: 1M\n")
    try:
        refused = node.run("commit", session, "muster-e2e/large:1", check=False)
    finally:
        node.config.write_text(before)
    assert refused.code == 1
    assert "commit_max_size allows 1M; remove files" in refused.err
    assert not [i for i in node.run("images", "--json").json() if i["name"] == "muster-e2e/large"]
    assert not docker.from_env().images.list("muster-e2e/large")


def test_what_a_killed_commit_has_left_gives_way_to_the_next_to_its_name(node, session):
    engine, name = docker.from_env(), "alice/again:1"
    container = engine.containers.list(filters={"label": f"muster.session-name={session}"})[0]
    raw = engine.api.commit(container.id, changes=[f"LABEL muster.commit={name}"])["Id"]
    with as_user(node, "alice"):
        made = node.run("commit", session, "alice/short:2", "--json").json()
        with closing(Store(load_settings(node.config).database_url)) as store:
            killed = replace(store.images.find("alice/short", "2"), name="alice/again", tag="1", image_id="")
            store.images.claim(replace(killed, created_at=killed.created_at - 2 * ABANDONED_AFTER_S))
        assert node.run("commit", session, name, "--json").json()["parent"] == made["parent"]
        assert node.run("images", "show", name, "--json").json()[0]["committed"]["session"]["name"] == session
        for reference in (name, "alice/short:2"):
            node.run("images", "rm", reference)
    with pytest.raises(docker.errors.ImageNotFound):
        engine.images.get(raw)


def test_one_that_is_removed_is_gone_from_catalog_and_agents(node, session):
    with as_user(node, "alice"):
        node.run("commit", f"{session}:sub1", "alice/short:1", "--public")
        assert "removed, from 1 agents" in node.run("images", "rm", "alice/short:1").out
        again = node.run("images", "rm", "alice/short:1", check=False)
    assert again.code == 2
    assert not docker.from_env().images.list("alice/short")
