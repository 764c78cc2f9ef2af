"""`muster.client` as its page shows it: the page's own examples, on a real engine."""

import re
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from muster.client import Client, NotFoundError
from tests.control_node import ROOT, ControlNode
from tests.servers.web_server import Server, web_server

EXAMPLES = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "client.md").read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def server(node: ControlNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with TemporaryDirectory() as made:
        path = Path(made) / "api.sock"
        with web_server(node, tmp_path_factory.mktemp("web"), "--socket", str(path)) as served:
            served.directory = Path(made)
            yield served


@pytest.fixture(params=["socket", "HTTP"])
def way(server: Server, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lead `Client()` to the server, by each of the two ways."""
    if request.param == "socket":
        monkeypatch.setenv("MUSTER_SERVER", f"unix:{server.directory / 'api.sock'}")
    else:
        # The token first: it is made on the control node, by no server.
        monkeypatch.setenv("MUSTER_TOKEN", server.token("clara"))
        monkeypatch.setenv("MUSTER_SERVER", server.url)


def _run(example: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(example, "docs/client.md", "exec"), names)
    return names


@pytest.mark.usefixtures("way")
def test_the_pages_examples_do_what_it_says(capsys):
    count, errors, array, lab, later = EXAMPLES
    _run(count)
    assert capsys.readouterr().out == "TERMINATED FAILURE 4\n1\n2\n3\n\n"
    _run(errors)
    printed = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in printed] == ["cpu", "mem", "True"]
    assert _run(array)["texts"] == ["part 0\n", "part 1\n", "part 2\n"]
    _run(lab)
    exit_line, reason = capsys.readouterr().out.splitlines()
    assert exit_line == r"0 b'sub1\nfrom here\n'"
    assert reason
    _run(later)


@pytest.mark.usefixtures("way")
def test_a_program_in_a_kernel_is_told_from_its_errors():
    with Client() as muster:
        lab = muster.submit(cpu=0.05, mem="64M")
        muster.wait(lab, until="running")
        done = muster.run(
            lab, ["sh", "-c", "head -c 3000000 /dev/zero; echo wrong >&2; exit 5"], stdin=b"x" * 1_000_000
        )
        assert (done.exit_code, len(done.stdout), done.stderr) == (5, 3_000_000, b"wrong\n")
        with pytest.raises(NotFoundError):
            muster.run(lab, ["true"], kernel="sub1")
        with muster.log_stream(lab) as pieces:
            muster.cancel(lab)
            assert b"".join(pieces) == b""
        assert muster.wait(lab).state == "TERMINATED"
