"""Two control nodes on one PostgreSQL: one works the queue, the other takes over when it dies."""

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.postgresql_server import postgresql_server
from tests.control_node import NOTHING, SMALL, ControlNode
from tests.waiting import eventually


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    with postgresql_server() as server:
        yield server.url(server.new_database())


@pytest.fixture
def pair(database: str, tmp_path: Path) -> Iterator[tuple[ControlNode, ControlNode]]:
    cluster = f"e2e-{secrets.token_hex(4)}"
    first, second = (ControlNode(tmp_path / name, cluster, {"database": database}) for name in ("first", "second"))
    first.start_daemon()
    second.start_daemon()
    yield first, second
    first.end_everything()
    first.stop_daemon()
    second.stop_daemon()
    left = first.left_on_host()
    first.remove_traces()
    assert left == NOTHING


def said(node: ControlNode, words: str) -> None:
    """Wait until the node's daemon has logged the text."""
    eventually((node.directory / "daemon.log").read_text, lambda text: words in text)


def test_one_works_the_queue_and_the_other_takes_over_when_it_dies(pair):
    first, second = pair
    said(second, "standing by")
    # Only a NOTIFY can wake the first one's daemon before its next observation.
    name = second.start("--name", "lasting", "--cluster-size", "2")
    assert "session lasting: PREPARING -> RUNNING" in (first.directory / "daemon.log").read_text()
    container = first.show(name)["kernels"][0]["container_id"]

    first.daemon.kill()
    first.daemon.wait()
    first.daemon = None
    said(second, "working the queue")
    done = first.run("submit", *SMALL, "--name", "later", "--wait", "-c", "echo through the other")
    assert done.code == 0
    assert first.run("logs", "later").out == "through the other\n"
    lasting = first.show(name)
    assert (lasting["state"], lasting["kernels"][0]["container_id"]) == ("RUNNING", container)

    first.start_daemon()
    said(first, "standing by")
    first.run("terminate", name, "--wait")
    assert second.show(name)["state"] == "TERMINATED"
