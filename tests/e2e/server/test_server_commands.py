"""A day's work from a machine that is no control node: a folder, a session on it, an image of that, what it used."""

import json
from collections.abc import Iterator

import docker
import pytest

from muster.core.spec.mounts import HOME
from tests.control_node import SMALL, ControlNode
from tests.servers.web_server import Server, web_server

IMAGE = "carol/from-afar:1"
SECRET_TEXT = "text-of-a-secret"


@pytest.fixture(scope="module")
def server(node: ControlNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with web_server(node, tmp_path_factory.mktemp("web")) as made:
        yield made


def test_a_folder_a_secret_a_session_an_image_of_it_and_what_it_used(server, tmp_path):
    token, others = server.token("carol"), server.token("mallory")

    def carol(*arguments):
        done = server.remote(token, *arguments)
        assert done.code == 0, done.err
        return done

    assert carol("folder", "create", "numbers").out == "Created numbers\n"
    secret = tmp_path / "secret"
    secret.write_text(SECRET_TEXT)
    carol("secret", "set", "api-token", "--from-file", str(secret))
    seen = f"{HOME}/numbers/seen"
    command = f"cat /run/muster/secrets/api-token > {seen}; echo 42 > result; wc -c < {seen}; sleep 1000"
    requested = ("-v", "numbers", "--secret", "api-token", "-c", command)
    carol("submit", *SMALL, "--name", "afar", *requested)
    server.node.reaches("afar", "RUNNING")
    with (
        server.client(token) as client,
        client.stream("GET", "/sessions/afar/kernels/main1/log", params={"follow": True}) as log,
    ):
        assert next(log.iter_lines()).strip() == str(len(SECRET_TEXT))
    folder = carol("folder", "show", "numbers", "--json").json()
    assert (folder["used_by"], folder["files"]) == (["afar"], 1)
    assert server.remote(others, "folder", "show", "numbers", "--owner", "carol").code == 2

    (used,) = carol("top", "afar", "--json").json()
    assert (used["session"], used["problem"]) == ("afar", None)
    assert used["mem_bytes"] > 0
    assert server.remote(others, "top", "--json").json() == []

    made = carol("commit", "afar", IMAGE, "--message", "with a result", "--json").json()
    try:
        engine = docker.from_env()
        assert engine.images.get(IMAGE).id == made["image_id"]
        assert engine.containers.run(IMAGE, f"cat {HOME}/result", entrypoint="", remove=True) == b"42\n"
        assert carol("images", "show", IMAGE, "--json").json()[0]["committed"] == {
            key: value for key, value in made.items() if key != "targets"
        }
        assert server.remote(others, "images", "show", IMAGE).code == 2
        assert server.remote(others, "commit", "afar", "muster-e2e/stolen:1").code == 2
        carol("rename", "afar", "renamed")
        carol("restart", "renamed", "--wait")
        carol("terminate", "renamed", "--wait")
    finally:
        assert server.remote(others, "images", "rm", IMAGE).code == 2
        assert carol("images", "rm", IMAGE).out == f"{IMAGE} is removed, from 1 agents\n"
    (line,) = carol("report", "--by", "user", "--json").json()["lines"]
    assert (line["user"], line["sessions"]) == ("carol", 1)
    assert line["cpu_hours_allocated"] > 0
    assert server.remote(others, "report", "--user", "carol", "--json").json()["lines"] == []
    assert carol("folder", "rm", "numbers", "--yes").out == "Removed numbers\n"
    carol("secret", "rm", "api-token")
    audit = (server.node.directory / "state" / "audit.log").read_text()
    assert SECRET_TEXT not in audit
    assert "/api/v1/secrets/api-token" in {json.loads(line)["path"] for line in audit.splitlines()}
