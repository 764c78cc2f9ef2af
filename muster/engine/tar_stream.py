"""Read a tar stream of an untrusted sender: POSIX.1-1988, with GNU's and POSIX.1-2001's long names.

The library's reader keeps headers of any size in memory, and has run in circles (CVE-2025-8194). This one reads in one
direction, bounds what it keeps, and says of everything else that it is no tar stream.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum

_BLOCK = 512
_CHUNK = 1 << 18
_MOST_OF_A_HEADER = 1 << 20
_MOST_BYTES = 1 << 60
_LONG_NAME, _LONG_TARGET, _EXTENDED, _GLOBAL = b"L", b"K", b"x", b"g"
Read = Callable[[int], bytes]


class Kind(Enum):
    """The kind of an entry; OTHER is never copied, such as devices."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    HARD_LINK = "hard link"
    OTHER = "other"


_KINDS = {
    **dict.fromkeys((b"0", b"\0", b"7"), Kind.FILE),
    b"5": Kind.DIRECTORY,
    b"2": Kind.SYMLINK,
    b"1": Kind.HARD_LINK,
}


class MalformedTarError(Exception):
    """What comes is no tar stream."""


@dataclass(frozen=True, slots=True)
class TarEntry:
    """A member as its header has it; `target` is where a link leads, `size` that of its content. None is checked."""

    path: str
    kind: Kind
    mode: int = 0
    mtime: int = 0
    target: str = ""
    size: int = 0


def tar_entries(read: Read) -> Iterator[tuple[TarEntry, Iterator[bytes]]]:
    """Yield each member with its content, which must be read before the next member.

    `read(size)` returns as many bytes, or fewer at the end. Raises MalformedTarError.
    """
    given: dict[str, str] = {}
    while (header := _header(read)) is not None:
        kind = header[156:157]
        size = _number(header[124:136])
        if kind in {_LONG_NAME, _LONG_TARGET}:
            name = os.fsdecode(_kept(read, size).split(b"\0", 1)[0])
            given["path" if kind == _LONG_NAME else "linkpath"] = name
        elif kind == _EXTENDED:
            given |= _records(_kept(read, size))
        elif kind == _GLOBAL:
            _kept(read, size)
        else:
            entry = _entry(header, given)
            if "size" in given:
                size = _decimal(given["size"])
            if entry.kind in {Kind.SYMLINK, Kind.HARD_LINK, Kind.DIRECTORY}:
                size = 0
            content = _content(read, size)
            yield replace(entry, size=size), content
            for _ in content:  # the rest, which its reader has not read
                pass
            given = {}
    if given:
        raise MalformedTarError("it ends after a header")


def _header(read: Read) -> bytes | None:
    """Return the next header, or None at the end."""
    block = read(_BLOCK)
    if not block or not block.strip(b"\0"):
        return None
    if len(block) < _BLOCK:
        raise MalformedTarError("it ends within a header")
    unsigned = sum(block[:148]) + sum(block[156:]) + 8 * ord(" ")
    if _number(block[148:156]) != unsigned:
        raise MalformedTarError("a header's checksum is wrong")
    return block


def _entry(header: bytes, given: dict[str, str]) -> TarEntry:
    name = header[:100].split(b"\0", 1)[0]
    prefix = header[345:500].split(b"\0", 1)[0] if header[257:263] == b"ustar\0" else b""
    entry = TarEntry(
        path=os.fsdecode(prefix + b"/" + name if prefix else name),
        kind=_KINDS.get(header[156:157], Kind.OTHER),
        mode=_number(header[100:108]) & 0o7777,
        mtime=_number(header[136:148]),
        target=os.fsdecode(header[157:257].split(b"\0", 1)[0]),
    )
    if any(name.startswith("GNU.sparse") for name in given):
        entry = replace(entry, kind=Kind.OTHER)
    # Old archives have directories as files whose names end so.
    if entry.kind is Kind.FILE and header[156:157] == b"\0" and entry.path.endswith("/"):
        entry = replace(entry, kind=Kind.DIRECTORY)
    return replace(entry, path=given.get("path", entry.path), target=given.get("linkpath", entry.target))


def _records(data: bytes) -> dict[str, str]:
    """Return the fields of an extended header: `LENGTH NAME=VALUE`, each with a newline."""
    fields: dict[str, str] = {}
    while data:
        length, blank, _ = data.partition(b" ")
        if not blank or not length.isdigit() or len(length) > 7:
            raise MalformedTarError("an extended header has no length")
        record, data = data[: int(length)], data[int(length) :]
        name, equals, value = record[len(length) + 1 :].partition(b"=")
        if len(record) != int(length) or not equals or not value.endswith(b"\n"):
            raise MalformedTarError("an extended header breaks off")
        fields[os.fsdecode(name)] = os.fsdecode(value[:-1])
    return fields


def _kept(read: Read, size: int) -> bytes:
    if size > _MOST_OF_A_HEADER:
        raise MalformedTarError("a header is too large")
    return b"".join(_content(read, size))


def _content(read: Read, size: int) -> Iterator[bytes]:
    left = size
    while left:
        chunk = read(min(left, _CHUNK))
        if not chunk:
            raise MalformedTarError("it ends within a file")
        left -= len(chunk)
        yield chunk
    padding = -size % _BLOCK
    if len(read(padding)) < padding:
        raise MalformedTarError("it ends within a file")


def _number(field: bytes) -> int:
    """Return a header's number: octal digits, or since GNU tar binary ones."""
    if field[0] & 0x80:
        number = int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
    else:
        digits = field.split(b"\0", 1)[0].strip()
        if digits.strip(b"01234567"):
            raise MalformedTarError("a header's number is none")
        number = int(digits or b"0", 8)
    if number > _MOST_BYTES:
        raise MalformedTarError("a header's number is too large")
    return number


def _decimal(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise MalformedTarError("a header's number is none")
    return int(text)
