"""Who may do what concerns others: root, and the user who owns the control node's state."""

import pwd

from muster.settings import Settings


def is_administrator(settings: Settings, user: str) -> bool:
    if user == "root":
        return True
    try:
        return pwd.getpwuid(settings.state_dir.stat().st_uid).pw_name == user
    except (OSError, KeyError):  # no state yet, or a uid without a name
        return False
