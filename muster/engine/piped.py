"""A process with pipes that reaches another machine: most often ssh."""

import subprocess
from collections.abc import Mapping, Sequence
from typing import IO

from muster.contract.values import one_line
from muster.core.values.errors import MusterError

_OPTIONS = {
    "BatchMode": "yes",
    # A host that vanished is noticed within some 20 s.
    "ServerAliveInterval": "5",
    "ServerAliveCountMax": "3",
}


class NoSshError(MusterError):
    """There is no ssh on this machine; install openssh-client."""


def ssh_options(more: Mapping[str, str]) -> list[str]:
    """Return the words for an ssh that asks nothing and notices a host that vanished, with `more` options."""
    return [word for name, value in {**_OPTIONS, **more}.items() for word in ("-o", f"{name}={value}")]


def start_piped(command: Sequence[str], messages: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a command with pipes; what it complains of goes into the file `messages`. Raises NoSshError."""
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=messages,
            # We handle the terminal's Ctrl-C ourselves, and ssh must not prompt for a password.
            start_new_session=True,
            bufsize=0,
        )
    except FileNotFoundError:
        raise NoSshError from None


def last_line(messages: IO[bytes]) -> str:
    """Return the last line of what it complained of, or an empty text. The other machine may have written it."""
    messages.seek(0)
    lines = messages.read(1 << 16).decode(errors="replace").strip().splitlines()
    return one_line(lines[-1].strip()[:300]) if lines else ""
