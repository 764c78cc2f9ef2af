"""Files into a kernel and out of it, as tar streams through the runtime's own tar.

It runs in the container as the session's user: it sees every mount, in memory ones too, may do what that user may,
and leaves files that are the user's. A link in the way leads nowhere that the user could not go anyway.
"""

import io
import socket
import tarfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, cast

from muster.contract.values import one_line
from muster.core.launch.manifest import LaunchPolicy
from muster.core.values.errors import BadInputError, MusterError
from muster.engine.execution import Programs
from muster.engine.extraction import extract
from muster.engine.frames import OUTPUT, frames
from muster.engine.tar_stream import MalformedTarError

_BUSYBOX = f"{LaunchPolicy().runtime_path}/bin/busybox"
_CHUNK = 1 << 18
_MOST_COMPLAINT = 4096
# The most bytes of padding after the end.
_MOST_DRAINED = 64 << 20
# $1 is the path. Prints the kind of the file there, and its path with every link followed.
_PROBE = """
p=$1; here=none
if [ -d "$p" ]; then here=directory; elif [ -e "$p" ]; then here=file; fi
echo "$here"; "$0" readlink -f "$p" || true
"""
Progress = Callable[[int], None]


class CopyFailedError(MusterError):
    """What the kernel's tar said when it gave up."""


def probe(kernel: Programs, path: str) -> tuple[str, str]:
    """Return what is at a path of the kernel (`directory`, `file` or `none`), and where that really is."""
    with _tar(kernel, [_BUSYBOX, "sh", "-c", _PROBE, _BUSYBOX, path]) as run:
        said = run.read().decode(errors="replace").split("\n")
    return said[0], said[1] if len(said) > 1 and said[1] else path


def unpack_into(kernel: Programs, directory: str, stream: IO[bytes], progress: Progress) -> None:
    """Unpack a tar stream into a directory of the kernel. Raises CopyFailedError."""
    with _tar(kernel, [_BUSYBOX, "tar", "-x", "-f", "-", "-C", directory]) as run:
        done = 0
        with suppress(OSError):  # it has ended: its complaint is why
            while chunk := stream.read(_CHUNK):
                run.write(chunk)
                done += len(chunk)
                progress(done)


def put(kernel: Programs, source: Path, directory: str, name: str, progress: Progress) -> None:
    """Copy a file or a directory of this machine into a directory of the kernel, as `name`.

    Raises CopyFailedError, and BadInputError for a file that cannot be read.
    """
    with _tar(kernel, [_BUSYBOX, "tar", "-x", "-f", "-", "-C", directory]) as run:
        out = _Counting(run.write, progress)
        try:
            with suppress(BrokenPipeError, ConnectionResetError), tarfile.open(fileobj=out, mode="w|") as tar:
                tar.add(source, arcname=name, filter=_plain)
        except OSError as error:
            raise BadInputError(f"SRC: {error.filename or source} cannot be read: {error.strerror or error}") from None


def pack_of(kernel: Programs, directory: str, name: str, sink: IO[bytes], progress: Progress) -> None:
    """Yield a file or a directory of the kernel as a tar stream. Raises CopyFailedError."""
    out = _Counting(lambda chunk: _write_all(sink, chunk), progress)
    with _tar(kernel, _pack(directory, name)) as run:
        while chunk := run.read(_CHUNK):
            out.write(chunk)


def get(kernel: Programs, directory: str, name: str, target: Path, progress: Progress) -> list[str]:
    """Copy a file or a directory of the kernel to `target` here, its new name; return what was left out.

    Nothing is written outside of `target`, whatever the kernel sends (`extract`). Raises CopyFailedError, and OSError
    where it cannot be written.
    """
    malformed: MalformedTarError | None = None
    with _tar(kernel, _pack(directory, name)) as run:
        try:
            return extract(_Counting(lambda _: None, progress, run.read).read, name, target)
        except MalformedTarError as error:
            malformed = error
            if not run.has_ended:
                run.break_off()
    # Where the stream broke off because its program failed, that has been raised.
    raise CopyFailedError(f"its answer is no tar archive: {malformed}")


def _pack(directory: str, name: str) -> list[str]:
    return [_BUSYBOX, "tar", "-c", "-f", "-", "-C", directory, f"./{name}"]


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Return the entry without its owner, whom nobody knows where it goes."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode &= 0o777
    return member


def _write_all(sink: IO[bytes], chunk: bytes) -> None:
    sink.write(chunk)


class _Counting(io.RawIOBase):
    """A counter of the bytes that were read."""

    def __init__(
        self, write: Callable[[bytes], object], progress: Progress, read: Callable[[int], bytes] | None = None
    ) -> None:
        self._write = write
        self._read = read
        self._progress = progress
        self._done = 0

    def write(self, chunk: object) -> int:
        data = bytes(cast("bytes", chunk))
        self._write(data)
        self._count(len(data))
        return len(data)

    def read(self, size: int = -1) -> bytes:
        data = self._read(size) if self._read else b""
        self._count(len(data))
        return data

    def _count(self, more: int) -> None:
        self._done += more
        self._progress(self._done)


class _Run:
    """A program in the container: `write` is its input, `read` its output."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._pieces = frames(connection.recv)
        self._out = bytearray()
        self.complaint = bytearray()
        self._ended = False
        self._drained = 0
        self._reader: threading.Thread | None = None

    def write(self, data: bytes) -> None:
        """Raises OSError once it has ended. What it says meanwhile is read beside that, or it would stop reading."""
        if self._reader is None:
            self._reader = threading.Thread(target=self._drain, daemon=True)
            self._reader.start()
        self._connection.sendall(data)

    def read(self, size: int = -1) -> bytes:
        while not self._ended and (size < 0 or len(self._out) < size):
            self._receive()
        taken = bytes(self._out if size < 0 else self._out[:size])
        del self._out[: len(taken)]
        return taken

    @property
    def has_ended(self) -> bool:
        return self._ended

    def break_off(self) -> None:
        """Read no further: the sender may never end."""
        self._ended = True

    def finish(self) -> None:
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)
        if self._reader is not None:
            self._reader.join()
        self._drain()

    def _drain(self) -> None:
        while not self._ended:
            self._receive()
            self._drained += len(self._out)
            self._out.clear()
            if self._drained > _MOST_DRAINED:
                self.break_off()

    def _receive(self) -> None:
        try:
            piece = next(self._pieces, None)
        except OSError:
            piece = None
        if piece is None:
            self._ended = True
            return
        descriptor, chunk = piece
        if descriptor == OUTPUT:
            self._out += chunk
        elif len(self.complaint) < _MOST_COMPLAINT:
            self.complaint += chunk


@contextmanager
def _tar(kernel: Programs, command: Sequence[str]) -> Iterator[_Run]:
    """Raises CopyFailedError where the program fails, in its own words."""
    with kernel.start(command) as execution:
        run = _Run(execution.connection)
        try:
            yield run
        finally:
            run.finish()
        code = execution.exit_code()
    if code:
        lines = [line for line in run.complaint.decode(errors="replace").split("\n") if line.strip()]
        said = one_line(lines[0].strip().removeprefix("tar: ")) if lines else f"its tar ended with exit code {code}"
        raise CopyFailedError(said)
