#!/usr/bin/env python3
"""Debian's Chromium without its windows and without news of the host's network.

Without its windows it takes half of the CPU that the whole of it takes for the same pages.

It breaks off all that it loads when an interface of the host gets an address, as each network of a session does. It
hears of that from the kernel by a netlink socket, and does without where there is none. A filter of system calls
(seccomp(2)) lets it and its children open none.

As a program, this file is that browser.
"""

import ctypes
import errno
import os
import platform
import shutil
import socket
import struct
import sys

_PROGRAM = "chromium-headless-shell"
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _SECCOMP_MODE_FILTER = 22, 38, 2
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000
_LOAD_WORD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
# Of `struct seccomp_data`: the call's number, and the low half of its first argument.
_NUMBER, _FIRST_ARGUMENT = 0, 16
_SOCKET = {"x86_64": 41, "aarch64": 198}


def refuse_netlink() -> None:
    """Make socket(2) fail for netlink in this process and its children, as in a kernel that has none.

    Raise OSError where the kernel takes no filter.
    """
    instructions = [
        _instruction(_LOAD_WORD, _NUMBER),
        _instruction(_JUMP_IF_EQUAL, _SOCKET[platform.machine()], otherwise=3),
        _instruction(_LOAD_WORD, _FIRST_ARGUMENT),
        _instruction(_JUMP_IF_EQUAL, socket.AF_NETLINK, otherwise=1),
        _instruction(_RETURN, _FAIL | errno.EAFNOSUPPORT),
        _instruction(_RETURN, _ALLOW),
    ]
    code = ctypes.create_string_buffer(b"".join(instructions))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(instructions), ctypes.addressof(code)))
    _prctl(_PR_SET_NO_NEW_PRIVS, 1, None)
    _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, program)


def _instruction(code: int, value: int, *, otherwise: int = 0) -> bytes:
    """Return a `struct sock_filter`. `otherwise` says how many a jump skips where what it compares is not equal."""
    return struct.pack("=HBBI", code, 0, otherwise, value)


def _prctl(option: int, value: int, pointer: ctypes.Array | None) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), pointer, ctypes.c_ulong(0), ctypes.c_ulong(0)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    path = shutil.which(_PROGRAM)
    if path is None:
        sys.exit(f"there is no {_PROGRAM}; install it: apt-get install {_PROGRAM}")
    refuse_netlink()
    # Its sandbox is for users other than root.
    os.execv(path, [path, "--no-sandbox", "--disable-dev-shm-usage", *sys.argv[1:]])
