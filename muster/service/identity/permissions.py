"""What users may do: by their token's scope, or as Unix users of the control node."""

import pwd

from muster.core.model.token import Token
from muster.service.identity.tokens import ScopeError
from muster.settings import Settings


def check_may_change(token: Token) -> None:
    """Raises ScopeError."""
    if not token.may_change:
        raise ScopeError(f"{token.title} may only read; use one of scope user or admin")


def check_admin(token: Token) -> None:
    """Raises ScopeError."""
    if token.sees_all:
        return
    if token.is_unix_users:
        raise ScopeError(f"{token.title} is no administrator; ask one, such as root")
    raise ScopeError(f"{token.title} is not an administrator's; use one of scope admin")


def owner_of_new(token: Token, owner: str | None, what: str) -> str:
    """Return who shall own something new: the token's user by default. Raises ScopeError.

    `what` names the action in the message, such as "submits".
    """
    check_may_change(token)
    check_acts_for(token, owner, what)
    return owner or token.user


def check_acts_for(token: Token, owner: str | None, what: str) -> None:
    """Refuse to act for another user. Raises ScopeError. `what` is as in `owner_of_new`."""
    if owner in {None, token.user} or token.sees_all:
        return
    if token.is_unix_users:
        raise ScopeError(f"{token.title} is no administrator; only one {what} for others")
    raise ScopeError(f"{token.title} is {token.user}'s; only one of scope admin {what} for others")


def is_administrator(settings: Settings, user: str) -> bool:
    """Return whether a Unix user keeps the control node: root, or the owner of its state."""
    if user == "root":
        return True
    try:
        return pwd.getpwuid(settings.state_dir.stat().st_uid).pw_name == user
    except (OSError, KeyError):  # no state yet, or a uid without a name
        return False
