"""`cp`: files between this machine and a kernel."""

import os
import posixpath
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import click

from muster.cli.sessions.access import opened_programs
from muster.contract.values import printable
from muster.core.spec.mounts import HOME
from muster.core.values.errors import BadInputError, MusterError
from muster.core.values.units import spell_bytes
from muster.engine import copying
from muster.engine.execution import Programs

_KERNEL = re.compile(r"([a-z][a-z-]*[0-9]+):(.*)", re.DOTALL)
_FIRST_PROGRESS_S = 1.0
_PROGRESS_S = 0.2


@dataclass(frozen=True, slots=True)
class KernelPath:
    """A path in a kernel. `path` is absolute; `kernel` None stands for main1."""

    session: str
    kernel: str | None
    path: str

    @property
    def reference(self) -> str:
        return self.session if self.kernel is None else f"{self.session}:{self.kernel}"


@click.command()
@click.argument("source", metavar="SRC")
@click.argument("destination", metavar="DST")
def cp(source: str, destination: str) -> None:
    r"""Copy a file or a directory into a kernel or out of it.

    \b
      muster cp data.csv train:                   into main1's home directory
      muster cp train:results ./results           out of it
      muster cp train:sub1:/tmp/trace.json .      of another kernel
      tar c src | muster cp - train:/home/work    a tar stream; as DST, - prints one

    In a kernel PATH begins in the home directory unless it begins with /. A path here that holds a colon is written
    with ./ or / before it. What is copied in is the session's user's.
    """
    there, here = _kernel_path(source), _kernel_path(destination)
    if (there is None) == (here is None):
        problem = "neither SRC nor DST is" if there is None else "both SRC and DST are"
        raise BadInputError(f"DST: {problem} in a session; write one of them as SESSION:PATH or SESSION:KERNEL:PATH")
    place = there or here
    if place is None:
        raise BadInputError("DST: no session is named")
    with opened_programs(place.reference) as kernel, _Progress() as progress:
        try:
            if here is not None:
                _copy_in(kernel, source, here.path, progress)
            else:
                _copy_out(kernel, place.path, destination, progress)
        except copying.CopyFailedError as error:
            raise MusterError(f"{kernel.title}: {error}") from None


def _kernel_path(argument: str) -> KernelPath | None:
    """Return a path in a kernel; None for a path on this machine. Raises BadInputError."""
    session, colon, rest = argument.partition(":")
    if not colon or argument.startswith(("/", ".")):
        return None
    if not session:
        raise BadInputError(f"{argument!r} names no session; write SESSION:PATH, or ./{argument} for a file here")
    named = _KERNEL.fullmatch(rest)
    kernel, path = (named.group(1), named.group(2)) if named else (None, rest)
    return KernelPath(session, kernel, posixpath.join(HOME, path))


def _copy_in(kernel: Programs, source: str, path: str, progress: Callable[[int], None]) -> None:
    kind, real = copying.probe(kernel, path)
    if source == "-":
        if kind != "directory":
            raise BadInputError(f"DST: {path} is no directory there; a tar stream goes into one")
        copying.unpack_into(kernel, real, sys.stdin.buffer, progress)
        return
    origin = Path(source)
    if not origin.exists():
        raise BadInputError(f"SRC: {source} does not exist here")
    if kind == "directory":
        directory, name = real, os.path.basename(os.path.abspath(source))  # noqa: PTH100, PTH119 - a link keeps its name
    elif path.endswith("/"):
        raise BadInputError(f"DST: {path} is no directory there; make it first, or leave the last / out")
    else:
        directory, name = posixpath.split(path)
        if copying.probe(kernel, directory)[0] != "directory":
            raise BadInputError(f"DST: {directory} is no directory there; make it first")
        if kind == "file" and origin.is_dir():
            raise BadInputError(f"DST: {path} is a file there, and SRC a directory; choose another name")
    copying.put(kernel, origin.resolve(), directory, name, progress)


def _copy_out(kernel: Programs, path: str, destination: str, progress: Callable[[int], None]) -> None:
    kind, real = copying.probe(kernel, path)
    if kind == "none":
        raise BadInputError(f"SRC: {path} does not exist there")
    if real == "/":
        raise BadInputError(f"SRC: {path} is everything there is; name a directory in it")
    directory, name = posixpath.split(real)
    if destination == "-":
        copying.pack_of(kernel, directory, name, sys.stdout.buffer, progress)
        sys.stdout.buffer.flush()
        return
    target = Path(destination)
    if target.is_dir():
        target = target.resolve() / posixpath.basename(posixpath.normpath(path))
    elif destination.endswith("/") or not target.absolute().parent.is_dir():
        raise BadInputError(f"DST: {target if destination.endswith('/') else target.parent} is no directory here")
    if kind == "directory" and target.is_file():
        raise BadInputError(f"DST: {target} is a file, and SRC a directory; choose another name")
    try:
        left_out = copying.get(kernel, directory, name, target.absolute(), progress)
    except OSError as error:
        raise MusterError(f"{error.filename or target} cannot be written: {error.strerror or error}") from None
    for member in left_out:
        why = "a device, a link that leads out of what is copied, or in the way of what is here"
        click.echo(f"muster: left out {printable(member)}: {why}", err=True)


class _Progress:
    """The progress on a terminal: how many bytes were copied, once copying takes longer."""

    def __init__(self) -> None:
        self._next_at = time.monotonic() + _FIRST_PROGRESS_S
        self._shown = False
        self._is_terminal = sys.stderr.isatty()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            click.echo(err=True)

    def __call__(self, done: int) -> None:
        now = time.monotonic()
        if self._is_terminal and now >= self._next_at:
            self._next_at = now + _PROGRESS_S
            self._shown = True
            click.echo(f"\r{spell_bytes(done)}", nl=False, err=True)
