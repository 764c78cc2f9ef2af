"""`muster` in a forked child: the real command line in a process of its own, without the price of Python's imports.

A test session runs it some five hundred times, and starts some thirty daemons and servers: imports and the scheduler's
compiled code would cost each of them 1.3 to 2 s of CPU.
"""

import faulthandler
import functools
import gc
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, NoReturn

import muster.cli.agents.agent
import muster.cli.agents.resources
import muster.cli.backup
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
import muster.daemon
import muster.service.backup
import muster.service.control_node
import muster.service.images.commits
import muster.service.images.distribution
import muster.web.separation.processes  # noqa: F401 - like the ones above, for the children to find
from muster.cli.command_server import finish_threads
from muster.cli.main import main
from muster.service.scheduler.compiled_code import compile_placement
from tests.done import Done
from tests.waiting import PATIENCE_S


class ForkedMuster:
    """A `muster` that goes on, such as a daemon or a server. All that it prints goes to the end of `log`."""

    def __init__(self, arguments: tuple[str, ...], environment: Mapping[str, str], log: Path) -> None:
        self._code: int | None = None
        with Path(os.devnull).open("rb") as nothing, log.open("ab") as out:
            self._pid = start_forked(arguments, environment, (nothing.fileno(), out.fileno(), out.fileno()))

    @property
    def pid(self) -> int:
        return self._pid

    def poll(self) -> int | None:
        """Return its exit code, or None while it runs."""
        if self._code is None:
            ended, status = os.waitpid(self._pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if ended else None
        return self._code

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """Return its exit code once it has ended. Raises TimeoutError."""
        deadline = time.monotonic() + timeout_s
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"still running after {timeout_s} s")
            time.sleep(0.01)
        return code

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self._pid, number)


def _nothing() -> None:
    return


def run_forked(
    arguments: tuple[str, ...],
    environment: Mapping[str, str],
    stdin: str,
    timeout_s: float,
    prepare: Callable[[], None] = _nothing,
) -> Done:
    """Run `muster` to its end, after `prepare` in the same process.

    Raises TimeoutError; the child is killed then.
    """
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(stdin.encode())
        given.seek(0)
        child = start_forked(arguments, environment, (given.fileno(), out.fileno(), err.fileno()), prepare)
        code = wait_for(child, timeout_s)
        out.seek(0)
        err.seek(0)
        return Done(code, out.read().decode(), err.read().decode())


def start_forked(
    arguments: tuple[str, ...],
    environment: Mapping[str, str],
    descriptors: Sequence[int],
    prepare: Callable[[], None] = _nothing,
) -> int:
    """Run `muster` on these three files, after `prepare` in the same process. Return its process id."""
    _load_compiled_code()
    child = os.fork()
    if child == 0:
        _become_muster(arguments, environment, descriptors, prepare)
    return child


@functools.cache
def _load_compiled_code() -> None:
    compile_placement()


def _become_muster(
    arguments: tuple[str, ...],
    environment: Mapping[str, str],
    descriptors: Sequence[int],
    prepare: Callable[[], None],
) -> NoReturn:
    code: object = 1
    try:
        gc.freeze()
        faulthandler.disable()
        signal.set_wakeup_fd(-1)
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
        _let_go_of_files()
        sys.stdin, sys.stdout, sys.stderr = (_stream(number, mode) for number, mode in enumerate("rww"))
        # Pytest's own handlers keep `muster` from having one.
        logging.getLogger().handlers.clear()
        os.environ.clear()
        os.environ.update(environment)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        prepare()
        if "LD_PRELOAD" in environment:
            # Only a program that is started anew loads it.
            program = str(Path(sys.executable).with_name("muster"))
            os.execv(program, [program, *arguments])
        sys.argv = ["muster", *arguments]
        main()
    except SystemExit as ended:
        code = ended.code
    except BaseException:  # noqa: BLE001 - shown as Python itself would show it, then the child ends
        sys.excepthook(*sys.exc_info())
    finally:
        finish_threads()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def _let_go_of_files() -> None:
    """Close all files of the tests' process, but keep their numbers in use.

    An object of that process, such as a database's connection, may close its number at any time. A file of `muster`'s
    that had taken the number would then be gone: SQLite said "disk I/O error" from there on.
    """
    with Path(os.devnull).open("rb") as nothing:
        for number in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
            if number not in {0, 1, 2}:
                with suppress(OSError):  # the listing's own is closed
                    os.fstat(number)
                    os.dup2(nothing.fileno(), number, inheritable=False)


def _stream(number: int, mode: str) -> IO[str]:
    return open(number, mode, encoding="utf-8", closefd=False)


def wait_for(child: int, timeout_s: float) -> int:
    """Return a child's exit code. Raises TimeoutError; the child is killed then."""
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
