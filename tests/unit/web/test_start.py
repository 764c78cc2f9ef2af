"""The start of `muster web` where it cannot serve: one line that says what to do."""

import os
import socket

import pytest

from muster.web.separation import processes
from tests.command_line import write_settings
from tests.done import Done
from tests.running.forked_cli import run_forked

WAIT_S = 120


@pytest.fixture
def start(tmp_path):
    """Run `muster web` to its end."""
    config = write_settings(tmp_path, {})

    def run(*arguments: str) -> Done:
        return run_forked(("web", *arguments), {**os.environ, "MUSTER_CONFIG": str(config)}, "", WAIT_S)

    return run


def test_a_port_in_use_is_one_line(start, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = start("--port", str(port))
    assert done.code == 2
    assert done.err == (
        f"muster: --host and --port: 127.0.0.1 port {port} cannot be served: Address already in use;"
        " choose another, or end what uses it\n"
    )
    assert not (tmp_path / "state").exists()


def test_so_is_an_installation_that_the_servers_user_cannot_read(start, tmp_path, monkeypatch):
    hidden = tmp_path / "static"
    hidden.mkdir(mode=0o000)
    monkeypatch.setattr(processes, "STATIC", hidden)
    done = start("--port", "0")
    assert done.code == 2
    (line,) = done.err.splitlines()
    assert line.startswith(f"muster: {hidden} cannot be read by user ")
    assert line.endswith("install Muster where all users can read it, such as below /opt")
    # Nothing was opened that the server would have needed.
    assert not (tmp_path / "state").exists()
