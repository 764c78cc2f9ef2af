"""Write a tar stream's entries safely, although a hostile sender may try to write elsewhere as root.

Each place is reached from the destination's own descriptor, one directory after the other, and no link is followed on
the way. Links are made when all else is written, so that none can be in the way of anything.
"""

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from muster.engine.tar_stream import Kind, MalformedTarError, Read, TarEntry, tar_entries

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_OF_A_NAME = 255
_MOST_PARTS = 200
_MOST_LINKS = 200_000
_MOST_LEFT_OUT = 1_000
_LAST_MTIME = 1 << 33
# No setuid, no setgid, no sticky bit, and nothing that others may write to.
_KEPT_MODE = 0o755


class _LeftOutError(Exception):
    """An entry is not written."""


def extract(read: Read, name: str, target: Path) -> list[str]:
    """Write the tree `name` of a tar stream to `target`, its new name; return what was left out, up to a thousand.

    It leaves out devices, entries outside of that tree, and links that lead out of it. It also leaves out entries in
    whose place the destination has a directory or a link. Owners are not taken over. Raises OSError and
    MalformedTarError.
    """
    place = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return _Extraction(place, name, target.name).run(read)
    finally:
        os.close(place)


class _Extraction:
    def __init__(self, place: int, name: str, new_name: str) -> None:
        self._place = place
        self._name = name
        self._new_name = new_name
        self._written: set[tuple[int, int]] = set()
        self._left_out: list[str] = []

    def run(self, read: Read) -> list[str]:
        links: list[TarEntry] = []
        for entry, content in tar_entries(read):
            if entry.kind in {Kind.SYMLINK, Kind.HARD_LINK}:
                if len(links) == _MOST_LINKS:
                    raise MalformedTarError("it has too many links")
                links.append(entry)
            else:
                self._tried(entry, content)
        # Hard links first: they must not lead to a symbolic one.
        for kind in (Kind.HARD_LINK, Kind.SYMLINK):
            for entry in links:
                if entry.kind is kind:
                    self._tried(entry, iter(()))
        return self._left_out

    def _tried(self, entry: TarEntry, content: Iterator[bytes]) -> None:
        try:
            self._write(entry, content)
        except _LeftOutError:
            if len(self._left_out) < _MOST_LEFT_OUT:
                self._left_out.append(entry.path)

    def _write(self, entry: TarEntry, content: Iterator[bytes]) -> None:
        parts = self._parts(entry.path)
        match entry.kind:
            case Kind.DIRECTORY:
                with self._directory(parts):
                    pass
            case Kind.FILE:
                with self._directory(parts[:-1]) as parent:
                    self._write_file(parent, parts[-1], entry, content)
            case Kind.HARD_LINK:
                self._link(parts, self._parts(entry.target))
            case Kind.SYMLINK:
                self._symlink(parts, entry.target)
            case Kind.OTHER:
                raise _LeftOutError

    def _parts(self, path: str) -> list[str]:
        """Return the way from the destination's directory. Raises _LeftOutError for what is not in the tree."""
        parts = [part for part in path.split("/") if part not in {"", "."}]
        if path.startswith("/") or not parts or parts[0] != self._name:
            raise _LeftOutError
        parts[0] = self._new_name
        if len(parts) > _MOST_PARTS or not all(map(_is_a_name, parts)):
            raise _LeftOutError
        return parts

    @contextmanager
    def _directory(self, parts: Sequence[str]) -> Iterator[int]:
        """Open a directory, making what is missing of it."""
        descriptor = os.dup(self._place)
        try:
            for part in parts:
                descriptor = _stepped(descriptor, part)
            yield descriptor
        finally:
            os.close(descriptor)

    def _write_file(self, parent: int, name: str, entry: TarEntry, content: Iterator[bytes]) -> None:
        _make_room(parent, name)
        try:
            descriptor = os.open(name, _NEW_FILE, 0o600, dir_fd=parent)
        except FileExistsError:  # by another hand
            raise _LeftOutError from None
        try:
            for chunk in content:
                _write_all(descriptor, chunk)
            os.fchmod(descriptor, entry.mode & _KEPT_MODE | 0o600)
            mtime = min(entry.mtime, _LAST_MTIME)
            os.utime(descriptor, (mtime, mtime))
            state = os.fstat(descriptor)
            self._written.add((state.st_dev, state.st_ino))
        finally:
            os.close(descriptor)

    def _link(self, parts: list[str], source: list[str]) -> None:
        """Make a hard link to a file of this stream, and to no other: existing files may belong to other users."""
        with self._directory(source[:-1]) as there, self._directory(parts[:-1]) as here:
            state = _state(there, source[-1])
            if state is None or not stat.S_ISREG(state.st_mode) or (state.st_dev, state.st_ino) not in self._written:
                raise _LeftOutError
            if source == parts:
                return
            _make_room(here, parts[-1])
            os.link(source[-1], parts[-1], src_dir_fd=there, dst_dir_fd=here, follow_symlinks=False)

    def _symlink(self, parts: list[str], target: str) -> None:
        """Make a link that stays in the tree.

        Only at its beginning may it go up: from there on it goes down, perhaps by other links of the tree, which stay
        in it as well. `a/link/..` would go up from wherever the link leads.
        """
        way = [part for part in target.split("/") if part not in {"", "."}]
        up = next((number for number, part in enumerate(way) if part != ".."), len(way))
        # The link's own directory is so far below the tree's root.
        depth = len(parts) - 2
        if target.startswith("/") or up > depth or not all(map(_is_a_name, way[up:])):
            raise _LeftOutError
        with self._directory(parts[:-1]) as parent:
            _make_room(parent, parts[-1])
            os.symlink("/".join(way) or ".", parts[-1], dir_fd=parent)


def _is_a_name(part: str) -> bool:
    try:
        return part != ".." and "\0" not in part and len(os.fsencode(part)) <= _MOST_OF_A_NAME
    except UnicodeEncodeError:
        return False


def _stepped(directory: int, name: str) -> int:
    """Return a directory in this one, made if it is missing, and close this one where that goes well."""
    for _ in range(2):
        try:
            inner = os.open(name, _DIRECTORY, dir_fd=directory)
        except FileNotFoundError:
            with suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=directory)
        except OSError as error:
            if error.errno in {errno.ENOTDIR, errno.ELOOP}:  # a file, or a link
                raise _LeftOutError from None
            raise
        else:
            os.close(directory)
            return inner
    raise _LeftOutError


def _state(directory: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _make_room(directory: int, name: str) -> None:
    """Remove what has the name, unless it is a directory."""
    state = _state(directory, name)
    if state is not None and stat.S_ISDIR(state.st_mode):
        raise _LeftOutError
    if state is not None:
        os.unlink(name, dir_fd=directory)


def _write_all(descriptor: int, chunk: bytes) -> None:
    view = memoryview(chunk)
    while view:
        view = view[os.write(descriptor, view) :]
