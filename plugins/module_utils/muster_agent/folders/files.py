"""The files of a folder with an owner: listed, read, packed, written, renamed and removed for one user.

This is a program of its own on a host: it reads a request from its standard input, and what it writes there. It opens
the folder as root, gives up root's rights for good, and does the rest as the user: with the rights that a kernel of
theirs has. It goes by descriptors and follows no links, so that nothing outside the folder is reached, whatever
somebody puts in the place of a directory meanwhile.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import secrets
import stat
import subprocess
import sys
from contextlib import ExitStack, contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from . import owned, quota
from .mounted import FolderError

if TYPE_CHECKING:
    from collections.abc import Iterator

# What begins an answer: a login may print lines of its own before.
MARK = b"muster:files\n"
_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without waiting, or a named pipe in a file's place would hold up the program.
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_UMASK = 0o007
_PIECE_BYTES = 1 << 18
_MOST_READ_NAMES = 200_000
_NO_REPLACE = 1
_NO_NEW_PRIVILEGES = 38
_KINDS = {stat.S_IFDIR: "directory", stat.S_IFREG: "file", stat.S_IFLNK: "link"}


class FilesError(Exception):
    """A request that cannot be carried out: a word for programs, and a line for people."""

    def __init__(self, kind: str, problem: str) -> None:
        super().__init__(problem)
        self.kind = kind


class Opened(NamedTuple):
    """The folder's descriptor; `shared_from` names the server and path of a network file system."""

    descriptor: int
    shared_from: str | None


class Request(NamedTuple):
    """A request for the files of a folder; `groups` and ids are those of the user's kernels."""

    root: str
    folder: str
    uid: int
    gid: int
    groups: list[int]
    action: str
    path: list[str]
    to: list[str]
    most: int
    size: int
    replaces: bool


def main() -> None:
    answer, content = sys.stdout.buffer, sys.stdin.buffer
    answer.write(MARK)
    try:
        request = Request(**json.loads(content.readline()))
        _serve(request, content, answer)
    except FilesError as error:
        _say(answer, {"kind": error.kind, "problem": str(error)})
    except FolderError as error:
        _say(answer, {"kind": "impossible", "problem": str(error)})
    except OSError as error:
        _say(answer, _refusal(error))


def _serve(request: Request, content: IO[bytes], answer: IO[bytes]) -> None:
    """Carry a request out. Raises FilesError, FolderError and OSError."""
    if not owned.PATH.fullmatch(request.folder):
        raise FilesError("bad-path", "it is not the path of a folder with an owner")
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(owned.opened(request.root, request.folder))
        except FileNotFoundError:
            raise FilesError("no-folder", "the folder is not on this agent") from None
        shared_from = quota.shared_from(quota.file_system(folder))
        _become(request)
        _ACTIONS[request.action](Opened(folder, shared_from), request, content, answer)


def _become(request: Request) -> None:
    """Become the user, for good. Raises OSError."""
    ctypes.CDLL(None, use_errno=True).prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    if request.uid <= 0 or request.gid <= 0:
        raise FilesError("impossible", "the folder's user has no uid of their own on this agent")
    os.setgroups(request.groups)
    os.setresgid(request.gid, request.gid, request.gid)
    os.setresuid(request.uid, request.uid, request.uid)
    os.umask(_UMASK)


def _look(folder: Opened, request: Request, _content: IO[bytes], answer: IO[bytes]) -> None:
    with _above(folder.descriptor, request.path) as (above, name):
        state = os.stat(name, dir_fd=above, follow_symlinks=False)
        said = {**_described(name, state), "entries": [], "left_out": 0, "shared_from": folder.shared_from}
        if stat.S_ISDIR(state.st_mode) and request.most:
            inner = os.open(name, _OPEN_DIRECTORY, dir_fd=above)
            try:
                said["entries"], said["left_out"] = _entries(inner, request.most)
            finally:
                os.close(inner)
    _say(answer, said)


def _entries(directory: int, most: int) -> tuple[list[dict[str, Any]], int]:
    """Return the first entries in order, directories first, and how many are left out."""
    found = []
    with os.scandir(directory) as entries:
        for entry in entries:
            with suppress(OSError):  # it is gone meanwhile
                found.append((not entry.is_dir(follow_symlinks=False), entry.name))
            if len(found) >= _MOST_READ_NAMES:
                break
    found.sort()
    said = []
    for _, name in found[:most]:
        with suppress(OSError):
            said.append(_described(name, os.stat(name, dir_fd=directory, follow_symlinks=False)))
    return said, max(0, len(found) - most)


def _described(name: str, state: os.stat_result) -> dict[str, Any]:
    """Return what is said of an entry. A name that is no UTF-8 is escaped, and cannot be asked for."""
    raw = os.fsencode(name)
    try:
        shown, is_text = raw.decode(), True
    except UnicodeDecodeError:
        shown, is_text = raw.decode(errors="backslashreplace"), False
    return {
        "name": shown,
        "is_text": is_text,
        "kind": _KINDS.get(stat.S_IFMT(state.st_mode), "other"),
        "size": state.st_size,
        "modified": max(0, int(state.st_mtime)),
    }


def _read(folder: Opened, request: Request, _content: IO[bytes], answer: IO[bytes]) -> None:
    """Send a file: its size as it is now, and then as many bytes; fewer where it has become shorter meanwhile."""
    with _above(folder.descriptor, request.path) as (above, name):
        descriptor = os.open(name, _OPEN_FILE, dir_fd=above)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            raise FilesError("impossible", "it is no file")
        left = state.st_size if request.most < 0 else min(state.st_size, request.most)
        _say(answer, {**_described(name, state), "sent": left})
        while left:
            piece = file.read(min(left, _PIECE_BYTES))
            if not piece:
                return
            answer.write(piece)
            left -= len(piece)
        answer.flush()


def _pack(folder: Opened, request: Request, _content: IO[bytes], answer: IO[bytes]) -> None:
    """Send a directory as a tar file, with links as links. What the user may not read is left out."""
    with _opened_directory(folder.descriptor, request.path) as directory:
        os.fchdir(directory)
        _say(answer, {"sent": None})
        # Not by tarfile, whose recursion deep directories would exhaust.
        command = ["tar", "--create", "--file=-", "--one-file-system", "--ignore-failed-read", "--sort=name", "."]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    # 1: a file has changed while it was read.
    if done.returncode not in {0, 1}:
        sys.exit(1)


def _write(folder: Opened, request: Request, content: IO[bytes], answer: IO[bytes]) -> None:
    """Write a file whole or not at all: what comes goes to a file of another name first."""
    with _above(folder.descriptor, request.path) as (above, name):
        if not request.replaces:
            _check_free(name, above)
        _say(answer, {"sent": 0})
        draft = f".{secrets.token_hex(8)}.upload"
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666, dir_fd=above)
        try:
            with os.fdopen(descriptor, "wb", buffering=0) as file:
                _take(content, file, request.size)
            if request.replaces:
                os.rename(draft, name, src_dir_fd=above, dst_dir_fd=above)
            else:
                _rename(draft, name, above, above)
        except BaseException:
            # Also of an interrupt, which is no Exception: no draft stays behind. Raised again.
            with suppress(OSError):
                os.unlink(draft, dir_fd=above)
            raise
    _say(answer, {"done": True})


def _take(content: IO[bytes], file: IO[bytes], size: int) -> None:
    """Write so many bytes of the content. Raises FilesError where it ends before, and OSError."""
    left = size
    while left:
        piece = content.read(min(left, _PIECE_BYTES))
        if not piece:
            raise FilesError("impossible", "the upload broke off")
        view = memoryview(piece)
        while view:
            view = view[file.write(view) :]
        left -= len(piece)
    os.fsync(file.fileno())


def _make(folder: Opened, request: Request, _content: IO[bytes], answer: IO[bytes]) -> None:
    with _above(folder.descriptor, request.path) as (above, name):
        os.mkdir(name, 0o777, dir_fd=above)
    _say(answer, {"done": True})


def _move(folder: Opened, request: Request, _content: IO[bytes], answer: IO[bytes]) -> None:
    with ExitStack() as stack:
        above, name = stack.enter_context(_above(folder.descriptor, request.path))
        into, new_name = stack.enter_context(_above(folder.descriptor, request.to))
        _rename(name, new_name, above, into)
    _say(answer, {"done": True})


def _remove(folder: Opened, request: Request, _content: IO[bytes], answer: IO[bytes]) -> None:
    with _above(folder.descriptor, request.path) as (above, name):
        if stat.S_ISDIR(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode):
            os.fchdir(above)
            # Not by shutil, whose recursion deep directories would exhaust. rm itself goes by descriptors.
            command = ["rm", "-rf", "--one-file-system", "--", f"./{name}"]
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
            if done.returncode:
                lines = done.stderr.strip().splitlines() or ["rm failed"]
                raise FilesError("impossible", f"it cannot be removed whole: {lines[-1][:300]}")
        else:
            os.unlink(name, dir_fd=above)
    _say(answer, {"done": True})


_ACTIONS = {
    "look": _look,
    "read": _read,
    "pack": _pack,
    "write": _write,
    "make": _make,
    "move": _move,
    "remove": _remove,
}


@contextmanager
def _above(folder: int, path: list[str]) -> Iterator[tuple[int, str]]:
    """Yield a descriptor of the directory that a path's last part is in, and that part; of the folder itself, a dot."""
    with _opened_directory(folder, path[:-1]) as above:
        if path:
            _check_part(path[-1])
        yield above, path[-1] if path else "."


@contextmanager
def _opened_directory(folder: int, path: list[str]) -> Iterator[int]:
    descriptor = os.dup(folder)
    try:
        for name in path:
            _check_part(name)
            below = os.open(name, _OPEN_DIRECTORY, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
        yield descriptor
    finally:
        os.close(descriptor)


def _check_part(name: str) -> None:
    if name in {"", ".", ".."} or "/" in name or "\0" in name:
        raise FilesError("bad-path", f"{name!r} is no name of a file")


def _check_free(name: str, above: int) -> None:
    try:
        os.stat(name, dir_fd=above, follow_symlinks=False)
    except FileNotFoundError:
        return
    raise FilesError("taken", f"{name} exists")


def _rename(name: str, new_name: str, above: int, into: int) -> None:
    """Rename without replacing anything. Raises FilesError and OSError."""
    _check_free(new_name, into)
    libc = ctypes.CDLL(None, use_errno=True)
    if not libc.renameat2(above, os.fsencode(name), into, os.fsencode(new_name), _NO_REPLACE):
        return
    number = ctypes.get_errno()
    if number not in {errno.EINVAL, errno.ENOSYS}:
        raise OSError(number, os.strerror(number))
    # A file system that cannot say so itself, such as NFS.
    os.rename(name, new_name, src_dir_fd=above, dst_dir_fd=into)


def _refusal(error: OSError) -> dict[str, str]:
    kind, problem = {
        errno.ENOENT: ("missing", "there is no such file"),
        errno.ENOTDIR: ("missing", "there is no such directory"),
        errno.ELOOP: ("missing", "a link is in the path; links are not followed"),
        errno.EEXIST: ("taken", "a file of that name exists"),
        errno.EISDIR: ("taken", "a directory of that name exists"),
        errno.EACCES: ("denied", "its owner has not given you the right"),
        errno.EPERM: ("denied", "its owner has not given you the right"),
        errno.EDQUOT: ("full", "the folder's quota is used up"),
        errno.ENOSPC: ("full", "the folder's quota is used up, or its file system is full"),
        errno.ENAMETOOLONG: ("bad-path", "the name is too long"),
    }.get(error.errno or 0, ("impossible", error.strerror or str(error)))
    return {"kind": kind, "problem": problem}


def _say(answer: IO[bytes], said: dict[str, Any]) -> None:
    answer.write(json.dumps(said).encode() + b"\n")
    answer.flush()
