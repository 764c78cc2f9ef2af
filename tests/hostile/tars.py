"""Tar streams of a tenant who wants to write elsewhere on the control node, and what must hold after each of them."""

import io
import os
import stat
import tarfile
from pathlib import Path
from random import Random

from muster.engine.extraction import extract
from muster.engine.tar_stream import MalformedTarError

TREE = "tree"
_NAMES = ("a", "b", "link", "deep", ".", "..", "", "x" * 255, "x" * 300, "\udcff", "né", "new\nline", "\x1b[2J")
_TARGETS = (
    *("a", "b", "..", "../..", "../../..", "../outside", "../../outside/secret", "/", "/etc/passwd", "link/..", "."),
    *("link/../..", "deep/link/..", "link/link/..", "./.././..", "a/../../outside", "", "x" * 4096, "../copy/a"),
    *("../../dst/mine", "../mine", "link", "../../../../../../../../etc/passwd", "\x1b[2J"),
)
_KINDS = (
    *(tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE) * 4,
    *(tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.GNUTYPE_SPARSE, b"Z"),
)


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.mode = kind, target, mode
    return made


def archive(*members: tarfile.TarInfo | tuple[tarfile.TarInfo, bytes], tar_format: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tar_format, errors="surrogateescape") as tar:
        for entry in members:
            info, content = entry if isinstance(entry, tuple) else (entry, b"")
            info.size = len(content) if info.type in {tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE} else 0
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def hostile_tar(random: Random) -> bytes:
    """Draw an archive whose members collide, with odd names, targets and modes; at times damaged."""
    members: list[tarfile.TarInfo | tuple[tarfile.TarInfo, bytes]] = []
    for _ in range(random.randrange(1, 12)):
        name = _path(random)
        made = member(name, random.choice(_KINDS), mode=random.choice((0o644, 0o755, 0, 0o7777, 0o6755, 0o1777)))
        made.linkname = _path(random) if random.random() < 0.3 else random.choice(_TARGETS)
        made.mtime = random.choice((0, 1, 1 << 31, 1 << 34))
        made.uid = made.gid = random.choice((0, 1000, 1 << 20))
        if random.random() < 0.1:
            headers = {"path": _path(random), "linkpath": random.choice(_TARGETS), "size": "5", "GNU.sparse.name": "x"}
            key = random.choice(list(headers))
            made.pax_headers = {key: headers[key]}
        members.append((made, random.randbytes(random.choice((0, 1, 511, 512, 513, 4000)))))
    formats = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
    try:
        made_of = archive(*members, tar_format=random.choice(formats))
    except ValueError:  # names that are too long for the oldest form
        made_of = archive(*members, tar_format=tarfile.GNU_FORMAT)
    return _damaged(random, made_of) if random.random() < 0.4 else made_of


def _path(random: Random) -> str:
    parts = [random.choice(_NAMES) for _ in range(random.randrange(1, 5))]
    return random.choice(("./", "", "", "/", "../")) + "/".join([random.choice((TREE,) * 9 + ("other",)), *parts])


def _damaged(random: Random, data: bytes) -> bytes:
    made = bytearray(data)
    for _ in range(random.randrange(1, 6)):
        place = random.randrange(len(made))
        match random.randrange(4):
            case 0:
                made[place] = random.randrange(256)
            case 1:
                del made[place:]
            case 2:
                made[place:place] = random.randbytes(random.choice((1, 512)))
            case _:
                _resum(made, place - place % 512, random)
        if not made:
            break
    return bytes(made)


def _resum(data: bytearray, block: int, random: Random) -> None:
    """Change a header's field, and make its checksum right again."""
    if len(data) < block + 512:
        return
    field, length = random.choice(((100, 8), (124, 12), (136, 12), (156, 1), (157, 100), (0, 100), (345, 155)))
    values = (b"\xff" * length, b"\x80" + b"\xff" * (length - 1), b"7" * length, b"\0" * length, b"-1".ljust(length))
    data[block + field : block + field + length] = random.choice(values)[:length]
    data[block + 148 : block + 156] = b" " * 8
    data[block + 148 : block + 156] = b"%06o\0 " % sum(data[block : block + 512])


class Trap:
    """A destination with what must not be touched beside it, and in it."""

    def __init__(self, directory: Path) -> None:
        self.base = directory
        self.copy = directory / "dst" / "copy"
        (directory / "outside").mkdir()
        (directory / "outside" / "secret").write_text("secret", encoding="utf-8")
        (directory / "outside" / "secret").chmod(0o600)
        (directory / "dst").mkdir()
        (directory / "dst" / "mine").write_text("mine", encoding="utf-8")
        (directory / "dst" / "away").symlink_to("../outside")
        self._before = self._outside()

    def spring(self, data: bytes) -> list[str]:
        """Extract the stream. Raises MalformedTarError."""
        return extract(io.BytesIO(data).read, TREE, self.copy)

    def sprung(self, data: bytes) -> list[str]:
        """Return what is wrong after the stream was extracted, or refused."""
        try:
            self.spring(data)
        except MalformedTarError as error:
            wrong = [] if str(error).isprintable() else ["its refusal is no line"]
            return [*wrong, *self.harm()]
        return self.harm()

    def harm(self) -> list[str]:
        """Return what has happened outside of the copy, or could by what is in it."""
        found = [] if self._outside() == self._before else ["something outside of the copy has changed"]
        theirs = {(state.st_dev, state.st_ino) for state in map(os.lstat, self._paths_outside())}
        root = self.copy.resolve()
        for path in [self.copy, *self.copy.rglob("*")] if os.path.lexists(self.copy) else []:
            state = path.lstat()
            if not (stat.S_ISREG(state.st_mode) or stat.S_ISDIR(state.st_mode) or stat.S_ISLNK(state.st_mode)):
                found.append(f"{path} is a device")
            if not stat.S_ISLNK(state.st_mode) and stat.S_IMODE(state.st_mode) & 0o7022:
                found.append(f"{path} has the mode {stat.S_IMODE(state.st_mode):o}")
            if (state.st_dev, state.st_ino) in theirs:
                found.append(f"{path} is a file from outside")
            if state.st_uid != os.getuid():
                found.append(f"{path} is somebody else's")
            if path.is_symlink() and root not in {_resolved(path), *_resolved(path).parents}:
                found.append(f"{path} leads out: {path.readlink()}")
        return found

    def _paths_outside(self) -> list[Path]:
        return [p for p in self.base.rglob("*") if p != self.copy and self.copy not in p.parents]

    def _outside(self) -> dict[str, object]:
        found: dict[str, object] = {}
        for path in self._paths_outside():
            state = path.lstat()
            content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
            links = 0 if path.is_dir() else state.st_nlink
            found[str(path)] = (state.st_mode, state.st_ino, links, state.st_uid, content)
        return found


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError):  # links that lead to each other lead nowhere
        return path
