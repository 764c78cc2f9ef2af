"""`muster` in a forked child: the real command line in a process of its own, without the price of Python's imports.

A test session runs it some five hundred times; each import of its libraries would cost half a second of CPU.
"""

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from io import TextIOWrapper
from typing import Any, NoReturn

import muster.cli.agents.agent
import muster.cli.agents.resources
import muster.cli.doctor
import muster.cli.folder
import muster.cli.images
import muster.cli.operate
import muster.cli.report
import muster.cli.secret
import muster.cli.sessions.access
import muster.cli.sessions.commit
import muster.cli.sessions.copying
import muster.cli.sessions.day_two
import muster.cli.sessions.ending
import muster.cli.sessions.listing
import muster.cli.sessions.open
import muster.cli.sessions.submit
import muster.cli.sessions.top
import muster.cli.sessions.why
import muster.cli.simulate
import muster.cli.token
import muster.service.control_node
import muster.service.images.commits
import muster.service.images.distribution  # noqa: F401 - like the ones above, for the children to find
from muster.cli.main import main


@dataclass
class Done:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


def run_forked(arguments: tuple[str, ...], environment: Mapping[str, str], stdin: str, timeout_s: float) -> Done:
    """Raises TimeoutError; the child is killed then."""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(stdin.encode())
        given.seek(0)
        child = os.fork()
        if child == 0:
            _become_muster(arguments, environment, (given.fileno(), out.fileno(), err.fileno()))
        code = _waited(child, timeout_s)
        out.seek(0)
        err.seek(0)
        return Done(code, out.read().decode(), err.read().decode())


def _become_muster(
    arguments: tuple[str, ...], environment: Mapping[str, str], descriptors: tuple[int, ...]
) -> NoReturn:
    code: object = 1
    try:
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
        sys.stdin, sys.stdout, sys.stderr = (_stream(number, mode) for number, mode in enumerate("rww"))
        os.environ.clear()
        os.environ.update(environment)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.argv = ["muster", *arguments]
        main()
    except SystemExit as ended:
        code = ended.code
    except BaseException:  # noqa: BLE001 - shown as Python itself would show it, then the child ends
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def _stream(number: int, mode: str) -> TextIOWrapper:
    return open(number, mode, encoding="utf-8", closefd=False)


def _waited(child: int, timeout_s: float) -> int:
    deadline = time.monotonic() + timeout_s
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise TimeoutError(f"still running after {timeout_s} s")
        time.sleep(0.01)
