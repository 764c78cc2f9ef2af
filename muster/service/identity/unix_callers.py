"""Callers at the control node's own socket: Unix users, as the Linux kernel names them. ADR 21.

Each connection gets a secret that holds as long as it is open. With it, the server that reads the connection shows for
whom it asks, as with a token's: it cannot say a name.
"""

import secrets
import threading

from muster.core.model.folders import OWNER_PATTERN
from muster.core.model.token import Scope, Token
from muster.service.identity.permissions import is_administrator
from muster.service.identity.tokens import NoTokenError
from muster.settings import Settings
from muster.unix_accounts import holder_of, is_in_group, name_of, overflow_uid

_RANDOM_BYTES = 32
_PREFIX = "connection_"


class TooManyConnectionsError(Exception):
    """The user has as many connections open as one may."""


class UnixCallers:
    """The open connections of Unix users. Who they are and what they may is looked up for each request."""

    MOST_OF_ONE = 100
    MOST = 1000

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._uids: dict[str, int] = {}
        # By the secret, whose connection it counts as: a user of user namespaces has tens of thousands of uids.
        self._holders: dict[str, int | str] = {}
        self._servers_uid: int | None = None

    def refuse_server(self, uid: int) -> None:
        """Let the web server's own user be nobody: who took it over could come in by the socket as well."""
        self._servers_uid = uid

    def admit(self, uid: int) -> str:
        """Return the secret of a new connection of this user. Raises TooManyConnectionsError."""
        secret = _PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
        holder = holder_of(uid) or uid
        with self._lock:
            others = list(self._holders.values())
            if len(others) >= self.MOST or others.count(holder) >= self.MOST_OF_ONE:
                raise TooManyConnectionsError
            self._uids[secret], self._holders[secret] = uid, holder
        return secret

    def forget(self, secret: str) -> None:
        """Let a secret hold no more: its connection is closed."""
        with self._lock:
            self._uids.pop(secret, None)
            self._holders.pop(secret, None)

    def of_secret(self, secret: str) -> Token:
        """Return the user of an open connection as a token. Raises NoTokenError."""
        with self._lock:
            uid = self._uids.get(secret)
        if uid is None:
            raise NoTokenError("the connection is closed")
        user = _owner_of(uid)
        if uid == self._servers_uid:
            raise NoTokenError(f"uid {uid} is the web server's own, who owns nothing; log in as a user of yours")
        return Token("", user, self._scope_of(user), created_at=0.0)

    def _scope_of(self, user: str) -> Scope:
        group = self._settings.admin_group
        is_admin = is_administrator(self._settings, user) or (group is not None and is_in_group(user, group))
        return Scope.ADMIN if is_admin else Scope.USER


def _owner_of(uid: int) -> str:
    """Return the name by which a Unix user owns sessions. Raises NoTokenError."""
    if uid == overflow_uid():
        # As all users of a user namespace that this one does not know, or services that shall have nothing.
        raise NoTokenError(f"uid {uid} stands for unknown users; log in as a user of the control node")
    name = name_of(uid)
    if name is None:
        raise NoTokenError(f"uid {uid} has no name on the control node; log in as a user whom it knows")
    if not OWNER_PATTERN.fullmatch(name):
        raise NoTokenError(
            f"user {name!r} cannot own sessions: write names of letters, digits and _.+- only; use a token instead"
        )
    return name
