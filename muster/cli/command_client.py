"""A short command handed to the daemon's command server, in which Muster is loaded: `command_server.py`."""

import gc
import hashlib
import json
import os
import signal
import socket
import struct
import sys
from collections.abc import Sequence

from muster.places import SETTINGS

ACCEPTED, GO = b"+", b"!"
# The commands that are served, each with the flags with which it may last for days.
_SERVED = {
    "agents": frozenset[str](),
    "cancel": frozenset[str](),
    "exec": frozenset[str](),
    "logs": frozenset({"--follow", "-f"}),
    "ls": frozenset[str](),
    "queue": frozenset[str](),
    "restart": frozenset({"--wait"}),
    "show": frozenset[str](),
    "submit": frozenset({"--wait"}),
    "terminate": frozenset({"--wait"}),
    "why": frozenset[str](),
}
_LASTING = "exec"
# It ends before it has made much garbage, and collecting it would cost up to half of its time.
_OBJECTS_BEFORE_GARBAGE_COLLECTION = 1_000_000
_COMPLETION = "_MUSTER_COMPLETE"
_PATIENCE_S = 1.0
_PEER = struct.Struct("3i")


def served_exit_code(arguments: Sequence[str]) -> int | None:
    """Let the command server run a command with this process' streams, and return its exit code.

    None where it has to run here: it is none of the short ones, or no server of this user and installation answers.
    """
    if not _is_served(arguments):
        return None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            if not _is_accepted(connection, arguments):
                return None
        except OSError:
            return None
        return _exit_code(connection)


def server_address() -> bytes:
    """Return the abstract address of the server for this user, settings file, installation and view of the files."""
    parts = (
        os.geteuid(),
        os.path.abspath(os.environ.get("MUSTER_CONFIG", SETTINGS)),  # noqa: PTH100 - links stay as written
        sys.prefix,
        __file__,
        sys.getfilesystemencoding(),
        *(os.readlink(f"/proc/self/ns/{space}") for space in ("mnt", "user", "net")),  # noqa: PTH115
    )
    return b"\0muster-commands-" + hashlib.sha256(repr(parts).encode(errors="surrogateescape")).hexdigest().encode()


def collect_little_garbage() -> None:
    """Let this process, which runs one short command, keep its garbage to its end."""
    gc.set_threshold(_OBJECTS_BEFORE_GARBAGE_COLLECTION)


def is_own(connection: socket.socket) -> bool:
    """Return whether this user is at the other end: any user may take an abstract address, or connect to it."""
    return _peer(connection)[1] == os.geteuid()


def peer_process(connection: socket.socket) -> int:
    """Return the process at the other end; 0 if it cannot be seen from here."""
    return _peer(connection)[0]


def _peer(connection: socket.socket) -> tuple[int, int]:
    process, uid, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return process, uid


def is_short(arguments: Sequence[str]) -> bool:
    """Return whether this is a command that reads or writes a little, and ends."""
    return _is_served(arguments) and not may_last(arguments)


def may_last(arguments: Sequence[str]) -> bool:
    """Return whether this is a command that may go on for days: it must outlast a restart of the daemon."""
    command = arguments[0] if arguments else ""
    return command == _LASTING or bool(_SERVED.get(command, frozenset()).intersection(arguments))


def _is_served(arguments: Sequence[str]) -> bool:
    """Return whether the command server knows this command, or completes this line."""
    if "MUSTER_SERVER" in os.environ:
        return False
    return _COMPLETION in os.environ or (bool(arguments) and arguments[0] in _SERVED)


def _is_accepted(connection: socket.socket, arguments: Sequence[str]) -> bool:
    if None in (sys.stdin, sys.stdout, sys.stderr):
        return False
    connection.settimeout(_PATIENCE_S)
    connection.connect(server_address())
    if not is_own(connection):
        return False
    streams = [stream.fileno() for stream in (sys.stdin, sys.stdout, sys.stderr)]
    directory = os.open(".", os.O_PATH | os.O_DIRECTORY)
    umask = os.umask(0o077)
    os.umask(umask)
    request = {
        "arguments": list(arguments),
        "environment": dict(os.environ),
        "encodings": [(stream.encoding, stream.errors) for stream in (sys.stdin, sys.stdout, sys.stderr)],
        "umask": umask,
    }
    content = json.dumps(request).encode()
    try:
        socket.send_fds(connection, [len(content).to_bytes(4, "big")], [*streams, directory])
    finally:
        os.close(directory)
    connection.sendall(content)
    if connection.recv(1) != ACCEPTED:
        return False
    # It begins only now: a request that was given up, and is carried out here, is not carried out there as well.
    connection.settimeout(None)
    connection.sendall(GO)
    return True


def _exit_code(connection: socket.socket) -> int:
    # The size of a terminal changes for its foreground, which is this process.
    signal.signal(signal.SIGWINCH, lambda number, _frame: connection.sendall(bytes([number])))
    while True:
        try:
            code = connection.recv(1)
        except KeyboardInterrupt:
            # Ctrl-C reaches this process alone.
            connection.sendall(bytes([signal.SIGINT]))
            continue
        if code:
            return code[0]
        sys.stderr.write("muster: the daemon's command server has ended; see whether the command was carried out\n")
        return 1
