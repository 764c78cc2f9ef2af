"""Apps as a person opens them: `muster open` serves, and a browser asks."""

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.control_node import ControlNode
from tests.running.forked_cli import start_forked, wait_for

# A program that a shell started in the background ignores Ctrl-C, and so would its children.
_OPEN = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from muster.cli.main import main
main()
"""


@contextmanager
def opened(node: ControlNode, *arguments: str) -> Iterator[str]:
    """Yield the URL that `muster open` prints, while it serves."""
    command = [sys.executable, "-c", _OPEN, "open", *arguments]
    # A killed process leaves its temporary directory, which is removed with the test's.
    environment = {**node.environment, "TMPDIR": str(node.directory)}
    serving = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert serving.stdout is not None
        url = serving.stdout.readline().strip()
        assert url, serving.communicate()[1]
        yield url
    finally:
        serving.send_signal(signal.SIGINT)
        serving.communicate(timeout=60)
    assert serving.returncode == 130


@contextmanager
def opened_by(prepare: Callable[[], None], environment: Mapping[str, str], *arguments: str) -> Iterator[str]:
    """Yield the same after `prepare` in its process, such as one that becomes another user."""
    reading, writing = os.pipe()
    with os.fdopen(reading) as printed, Path(os.devnull).open("r+b") as nothing:
        child = start_forked(("open", *arguments), environment, (nothing.fileno(), writing, nothing.fileno()), prepare)
        os.close(writing)
        try:
            yield printed.readline().strip()
        finally:
            os.kill(child, signal.SIGINT)
        assert wait_for(child, 60) == 130


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, ""
