"""A process gives up the rights that it does not need."""

import ctypes
import os
import pwd
import resource
import sys
import tempfile
from pathlib import Path

from muster.core.values.errors import MusterError
from muster.web.rendering import STATIC
from muster.web.separation.landlock import shut_in

_PR_SET_DUMPABLE = 4
_PR_SET_NO_NEW_PRIVS = 38
_KEPT_VARIABLES = ("LANG", "LC_ALL", "LC_CTYPE", "PATH", "TZ")


class StillPrivilegedError(MusterError):
    """The web server could not give up root's rights; it does not serve with them."""


def give_up_rights(account: pwd.struct_passwd | None) -> None:
    """Become this user for good, in no other group than its own, and get no more rights by any program.

    Without a user this process stays its own. Where the Linux kernel can, it is shut in as well: it reads its libraries
    and the system's, writes temporary files only, executes nothing and connects to no port. Raises
    StillPrivilegedError.
    """
    os.chdir("/")
    os.umask(0o077)
    # A variable may hold a password, such as the database's.
    kept = {name: value for name, value in os.environ.items() if name in _KEPT_VARIABLES}
    os.environ.clear()
    os.environ.update(kept)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if account is not None:
        os.setgroups([account.pw_gid])
        os.setresgid(account.pw_gid, account.pw_gid, account.pw_gid)
        os.setresuid(account.pw_uid, account.pw_uid, account.pw_uid)
    _control_process(_PR_SET_NO_NEW_PRIVS, 1)
    # No other process of the user reads or steers this one.
    _control_process(_PR_SET_DUMPABLE, 0)
    if account is not None and (0 in {*os.getresuid(), *os.getresgid()} or _has_capabilities()):
        raise StillPrivilegedError
    shut_in(_readable(), [Path(tempfile.gettempdir())])


def _readable() -> list[Path]:
    """Return the installation, and what Python's libraries look up late."""
    installed = [Path(sys.prefix), Path(sys.base_prefix), STATIC.parents[1]]
    return [*installed, *map(Path, ("/usr", "/lib", "/lib64", "/etc", "/dev/null", "/dev/urandom"))]


def _control_process(option: int, value: int) -> None:
    """Raises StillPrivilegedError."""
    if ctypes.CDLL(None).prctl(option, value, 0, 0, 0) != 0:
        raise StillPrivilegedError


def _has_capabilities() -> bool:
    status = Path("/proc/thread-self/status").read_bytes().splitlines()
    held = [line.split()[1] for line in status if line.startswith((b"CapEff", b"CapPrm", b"CapInh", b"CapAmb"))]
    return any(int(mask, 16) for mask in held)
