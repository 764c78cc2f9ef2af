"""A process in which Muster is loaded: each short command runs in a fork of it. ADR 16.

The daemon starts it. Loading Muster's libraries takes several times as long as a short command; here that happens once.
All that a command depends on is read in its fork: arguments, environment, directory, settings, database.
"""

import importlib
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from muster.cli.command_client import (
    ACCEPTED,
    GO,
    collect_little_garbage,
    is_own,
    is_short,
    may_last,
    peer_process,
    server_address,
)
from muster.cli.main import run
from muster.core.values.garbage import keep_what_is_loaded

_MOST_CLIENTS_AT_THE_DOOR = 64
_REQUEST_TIMEOUT_S = 5.0
_ADDRESS_TIMEOUT_S = 30.0
_ADDRESS_POLL_S = 0.2
_MOST_BYTES = 16 << 20
_REPEAT_S = 0.1
_COMPILED = b"c"
_CONTROL_GROUPS = Path("/sys/fs/cgroup")
# What the short commands use, themselves and by function.
_MODULES = (
    "muster.cli.sessions.access",
    "muster.cli.sessions.day_two",
    "muster.cli.sessions.ending",
    "muster.cli.sessions.listing",
    "muster.cli.sessions.submit",
    "muster.cli.sessions.update",
    "muster.cli.sessions.why",
    "muster.cli.agents.resources",
    "muster.engine.agent_engine",
    "muster.engine.command",
    "muster.service.audit",
    "muster.service.questions.dry_run",
    "muster.service.questions.queue",
    "muster.service.questions.why",
    "muster.service.service",
    "sqlalchemy.dialects.sqlite",
)


@contextmanager
def command_server() -> Iterator[Callable[[], None]]:
    """Start the server for as long as the context lasts; it ends with this process, however that ends.

    Yield what tells it that the scheduler's compiled code is there to be loaded.
    """
    reading, writing = os.pipe()
    try:
        with os.fdopen(reading) as lifeline:
            subprocess.Popen(
                [sys.executable, "-m", "muster.cli.command_server", str(lifeline.fileno())],
                pass_fds=[lifeline.fileno()],
                # No thread of a numerical library is there to be lost in a fork.
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                # Ctrl-C is for the daemon.
                start_new_session=True,
            )

        def compiled() -> None:
            with suppress(BrokenPipeError):
                os.write(writing, _COMPILED)

        yield compiled
    finally:
        os.close(writing)


def serve(lifeline: int) -> None:
    """Run the commands of all clients, until nothing holds the other end of the lifeline, or our code has changed."""
    # This process does not wait for a fork: the fork sends its exit code itself, and its end closes the connection.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for name in _MODULES:
        importlib.import_module(name)
    code = _Code()
    keep_what_is_loaded()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener, selectors.DefaultSelector() as ready:
        _take_address(listener)
        ready.register(listener, selectors.EVENT_READ)
        ready.register(lifeline, selectors.EVENT_READ)
        while True:
            if any(key.fd == lifeline for key, _ in ready.select()):
                if os.read(lifeline, 1) != _COMPILED:
                    return
                _load_compiled_code()
                continue
            connection, _ = listener.accept()
            with connection:
                if not is_own(connection):
                    continue
                if code.has_changed():
                    # A client without an answer runs its command itself, with the new code.
                    return
                if os.fork() == 0:
                    listener.close()
                    os.close(lifeline)
                    _become_command(connection)


def _take_address(listener: socket.socket) -> None:
    """Listen at our address. Ends the process where that stays another's."""
    deadline = time.monotonic() + _ADDRESS_TIMEOUT_S
    while True:
        try:
            listener.bind(server_address())
        except OSError as error:
            # The server of the daemon before this one may still be about to end.
            if time.monotonic() > deadline:
                sys.exit(f"muster: short commands load Muster themselves: the command server's address: {error}")
            time.sleep(_ADDRESS_POLL_S)
        else:
            listener.listen(_MOST_CLIENTS_AT_THE_DOOR)
            return


class _Code:
    """The files of what is loaded, and the directory of the libraries, as they were."""

    def __init__(self) -> None:
        own = (module.__file__ for name, module in sys.modules.items() if name.partition(".")[0] == "muster")
        library = Path(importlib.import_module("click").__path__[0]).parent
        self._paths = [str(library), *(path for path in own if path)]
        self._then = self._times()

    def has_changed(self) -> bool:
        return self._times() != self._then

    def _times(self) -> list[int]:
        return [os.stat(path).st_mtime_ns if os.path.exists(path) else 0 for path in self._paths]  # noqa: PTH110, PTH116


def _load_compiled_code() -> None:
    from muster.service.scheduler.compiled_code import compile_placement  # noqa: PLC0415 - the daemon compiles first

    compile_placement()
    keep_what_is_loaded()


@dataclass(frozen=True, slots=True)
class _Request:
    """A command to run; `streams` are its standard input, output and error, `encodings` theirs."""

    arguments: list[str]
    environment: dict[str, str]
    encodings: list[tuple[str, str]]
    umask: int
    streams: list[int]
    directory: int


def _become_command(connection: socket.socket) -> NoReturn:
    """Answer one client in this fork, and end it."""
    try:
        request = _read_request(connection)
        joined = _join_control_groups_of(peer_process(connection))
        if request is not None and (joined or not may_last(request.arguments)):
            connection.sendall(ACCEPTED)
            if connection.recv(1) == GO:
                connection.settimeout(None)
                _take_over(request)
                interrupts = Interrupts()
                signal.signal(signal.SIGINT, interrupts.handle)
                threading.Thread(target=obey, args=(connection, interrupts), daemon=True).start()
                connection.sendall(bytes([_exit_code() & 0xFF]))
    except OSError:
        # The client has gone, or has waited for too long and helps itself.
        pass
    finally:
        os._exit(0)


def _join_control_groups_of(process: int) -> bool:
    """Become part of the client's control groups: a restart of the daemon ends what is in its own. Return success."""
    try:
        theirs = set(Path(f"/proc/{process}/cgroup").read_text(encoding="utf-8").splitlines())
        ours = set(Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines())
        for line in theirs - ours:
            _, controllers, path = line.split(":", 2)
            (_mounted(controllers) / path.lstrip("/") / "cgroup.procs").write_text("0", encoding="utf-8")
    except OSError:
        return False
    return True


def _mounted(controllers: str) -> Path:
    """Return where a hierarchy of control groups is, by its name in /proc; version 2 has none."""
    if controllers or (_CONTROL_GROUPS / "cgroup.controllers").exists():
        return _CONTROL_GROUPS / controllers.removeprefix("name=")
    return _CONTROL_GROUPS / "unified"


def _read_request(connection: socket.socket) -> _Request | None:
    """Return what a client wants; None where it has gone before it said so."""
    connection.settimeout(_REQUEST_TIMEOUT_S)
    length, handed, _, _ = socket.recv_fds(connection, 4, 4)
    size = int.from_bytes(length, "big")
    if len(handed) != 4 or size > _MOST_BYTES:
        return None
    content = bytearray()
    while len(content) < size:
        piece = connection.recv(size - len(content))
        if not piece:
            return None
        content += piece
    *streams, directory = handed
    said: dict[str, Any] = json.loads(content)
    return _Request(**said, streams=streams, directory=directory)


def _take_over(request: _Request) -> None:
    """Make this process what the client is: its streams, its directory, its environment."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, stream in enumerate(request.streams):
        os.dup2(stream, number)
        os.close(stream)
    os.fchdir(request.directory)
    os.close(request.directory)
    os.umask(request.umask)
    os.environ.clear()
    os.environ.update(request.environment)
    time.tzset()
    if is_short(request.arguments):
        collect_little_garbage()
    sys.stdin, sys.stdout, sys.stderr = (
        open(number, mode, encoding=encoding, errors=errors, closefd=False)  # noqa: SIM115 - they last as long as the process
        for number, (mode, (encoding, errors)) in enumerate(zip("rww", request.encodings, strict=True))
    )
    sys.argv = ["muster", *request.arguments]


class Interrupts:
    """The client's Ctrl-C, in the command's process. It is repeated until the main thread knows of it.

    Python does not see a signal that comes just before a system call until that call has ended. Reading a pipe may
    take forever.
    """

    def __init__(self) -> None:
        self.due = False

    def handle(self, _number: int, _frame: object) -> None:
        """Raise KeyboardInterrupt, once for each Ctrl-C."""
        if self.due:
            self.due = False
            raise KeyboardInterrupt


def obey(connection: socket.socket, interrupts: Interrupts) -> None:
    """Pass on the client's signals to this process, and end it with the client."""
    with suppress(OSError):
        while True:
            while interrupts.due and not select.select([connection], [], [], _REPEAT_S)[0]:
                os.kill(os.getpid(), signal.SIGINT)
            number = connection.recv(1)
            if not number:
                break
            interrupts.due |= number[0] == signal.SIGINT
            os.kill(os.getpid(), number[0])
    os.kill(os.getpid(), signal.SIGTERM)


def _exit_code() -> int:
    """Run the command and return its exit code."""
    code = 1
    try:
        run()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - this process ends here, and its caller reads why
        traceback.print_exc()
    finish_threads()
    for output in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            output.flush()
    return code


def finish_threads() -> None:
    """Wait for the threads that Python itself waits for at its end; a fork that leaves by os._exit() does not."""
    # As the forks of Python's own multiprocessing do: it ends the idle threads of executors too.
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001


if __name__ == "__main__":
    serve(int(sys.argv[1]))
