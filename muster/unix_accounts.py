"""The Unix users and groups of this machine, as its name service knows them."""

import grp
import os
import pwd
from contextlib import suppress
from pathlib import Path

_SUBORDINATE = Path("/etc/subuid")


def name_of(uid: int) -> str | None:
    """Return the user's name; None for a uid that has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None


def ids_of(user: str) -> tuple[int, int] | None:
    """Return the user's uid and primary gid; None for an unknown user."""
    try:
        account = pwd.getpwnam(user)
    except (KeyError, ValueError):
        return None
    return account.pw_uid, account.pw_gid


def is_in_group(user: str, group: str) -> bool:
    """Return whether the user is in the group, as its primary group or another one; no unknown user or group is."""
    try:
        account, gid = pwd.getpwnam(user), grp.getgrnam(group).gr_gid
    except (KeyError, ValueError):  # unknown, or no name at all
        return False
    return gid in os.getgrouplist(account.pw_name, account.pw_gid)


def overflow_uid() -> int:
    """Return the uid that the Linux kernel gives for users whom this user namespace does not have."""
    with open("/proc/sys/kernel/overflowuid", encoding="ascii") as file:  # noqa: PTH123 - as short
        return int(file.read())


def holder_of(uid: int) -> str | None:
    """Return the user, as /etc/subuid writes them, who has the uid for user namespaces of theirs; None if nobody has.

    Without asking the name service, which may take long for each of a user's many uids.
    """
    with suppress(OSError):
        for line in _SUBORDINATE.read_text("utf-8", "replace").splitlines():
            user, first, count = (*line.split(":"), "", "")[:3]
            with suppress(ValueError):
                if 0 <= uid - int(first) < int(count):
                    return user
    return None
