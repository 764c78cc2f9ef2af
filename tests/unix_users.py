"""Other Unix users of this machine: those that every Debian has, and uids without a name."""

import ctypes
import os
import pwd
from collections.abc import Callable
from pathlib import Path

from tests.done import Done
from tests.running.forked_cli import run_forked

# Each is in one group of its own, of its own name.
ADA, BOB = "daemon", "games"
NAMELESS_UID = 54321
_CLONE_NEWUSER = 0x10000000


def uid_of(user: str) -> int:
    return pwd.getpwnam(user).pw_uid


def become(user: str | int) -> Callable[[], None]:
    """Return what makes a process this user's, with no rights of root's."""
    account = pwd.getpwnam(user) if isinstance(user, str) else None
    uid, gid = (account.pw_uid, account.pw_gid) if account else (user, user)

    def change() -> None:
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)

    return change


def become_root_of_own_namespace(user: str) -> Callable[[], None]:
    """Return what makes a process this user's, who calls themself root in a user namespace of their own."""
    change = become(user)

    def enter() -> None:
        change()
        uid = os.geteuid()
        # A process that changed its user cannot write its own maps otherwise.
        ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
        assert ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWUSER) == 0, os.strerror(ctypes.get_errno())
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1\n")
        assert os.geteuid() == 0

    return enter


def muster_as(
    prepare: Callable[[], None],
    *arguments: str,
    server: str | None = None,
    config: Path | None = None,
    stdin: str = "",
    home: str = "/nonexistent",
) -> Done:
    """Run `muster` as another user, who has a server and a file of settings if these are named."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MUSTER_", "SUDO_"))}
    environment |= {"HOME": home} | ({"MUSTER_SERVER": server} if server else {})
    environment |= {"MUSTER_CONFIG": str(config)} if config else {}
    done = run_forked(arguments, environment, stdin, 240, prepare)
    assert "Traceback" not in done.err, done.err
    return done
