"""Tokens for the API: made, shown once, recognised, revoked."""

import hashlib
import math
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress

from muster.core.model.token import Scope, Token
from muster.core.spec.session_spec import NAME_PATTERN
from muster.core.values.errors import (
    BadInputError,
    MusterError,
    NameTakenError,
    NotFoundError,
    StoreUnavailableError,
)
from muster.core.values.units import parse_duration, timestamp
from muster.store.store import Store

PREFIX = "muster_"
_RANDOM_BYTES = 32
_LONGEST_USER = 255
_LONGEST_S = 3650 * 86400
_SIGN_IN_S = 7 * 86400.0


class NoTokenError(MusterError):
    """No token was given, or it is not known here, or it has expired."""


class ScopeError(MusterError):
    """The token's scope does not allow that."""


class Tokens:
    """The API tokens and the browsers' sign-ins. Only hashes of their secrets are kept."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def all(self) -> list[Token]:
        """Return all tokens, also those that have expired."""
        return list(self._store.tokens.all())

    def create(
        self,
        name: str,
        user: str,
        scope: Scope,
        expires: str | None,
        projects: Sequence[str] = (),
        until: float | None = None,
        most: int | None = None,
    ) -> tuple[Token, str]:
        """Return a new token and its secret, which cannot be read again. It expires `until` then at the latest.

        Raises NameTakenError, and BadInputError also where the user has `most` tokens already.
        """
        if not NAME_PATTERN.fullmatch(name):
            raise BadInputError(
                f"NAME: {name!r} is no name; write up to 63 letters, digits and _.-, a letter or digit first"
            )
        if not user.strip() or len(user) > _LONGEST_USER or not user.isprintable():
            raise BadInputError("--user: that is no user's name; write the name that owns the sessions, such as ada")
        now = time.time()
        expires_at = until if expires is None else now + _lifetime_s(expires)
        if expires_at is not None and until is not None and expires_at > until:
            raise BadInputError(f"--expires: your own token expires at {timestamp(until)}; write a shorter time")
        if wrong := [one for one in projects if not one or len(one) > _LONGEST_USER or not one.isprintable()]:
            raise BadInputError(f"--project: {wrong[0]!r} is no project's name; write one such as vision")
        token = Token(name, user, scope, now, expires_at, projects=tuple(dict.fromkeys(projects)))
        # A random secret of 256 bits needs no slow hash: there is nothing to guess.
        secret = PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
        self._store.tokens.add(token, _hash(secret), most)
        return token, secret

    def renewed(self, name: str, user: str, scope: Scope, lifetime_s: float) -> Token:
        """Return the user's token of that name, whose secret nobody knows, as one for so many seconds from now on."""
        now = time.time()
        token = Token(name, user, scope, now, now + lifetime_s)
        while (renewed := self._store.tokens.renew(token)) is None:
            # Somebody else's sign-in may have made it meanwhile.
            with suppress(NameTakenError):
                self._store.tokens.add(token, _hash(secrets.token_urlsafe(_RANDOM_BYTES)))
        return renewed

    def revoke(self, name: str, user: str | None = None) -> Token:
        """Make a token worthless at once, with a `user` one of theirs, and return what it was. Raises NotFoundError."""
        return self._store.tokens.remove(name, user)

    def of_secret(self, secret: str) -> Token:
        """Return the token whose secret this is. Raises NoTokenError."""
        now = time.time()
        token = self._store.tokens.of_hash(_hash(secret))
        if token is None:
            raise NoTokenError("the token is not known here; ask an administrator for one")
        if token.is_expired(now):
            raise NoTokenError(f"token {token.name} expired at {timestamp(token.expires_at)}; ask for another")
        self._note_use(token, now)
        return token

    def is_valid(self, token: Token) -> bool:
        """Return whether a token has been neither revoked nor made anew since, gives the same, and has not expired.

        A Unix user is looked up for each request, so this one has just been found.
        """
        if token.is_unix_users:
            return True
        known = {one.name: one for one in self._store.tokens.all()}.get(token.name)
        if known is None or known.created_at != token.created_at or known.is_expired(time.time()):
            return False
        return known.gives_what(token)

    def sign_in(self, token: Token, longest_s: float = _SIGN_IN_S) -> tuple[str, float]:
        """Return a secret of the browser's own, so that it need not keep the token, and for how many seconds it holds.

        Never for longer than the token itself. Raises NoTokenError for a Unix user, and where the token was revoked.
        """
        if token.is_unix_users:
            raise NoTokenError("a browser signs in with a token; make one by `muster token create`")
        now = time.time()
        lifetime_s = min(longest_s, math.inf if token.expires_at is None else token.expires_at - now)
        secret = secrets.token_urlsafe(_RANDOM_BYTES)
        try:
            self._store.sign_ins.add(_hash(secret), token, now + lifetime_s, now)
        except NotFoundError:
            raise NoTokenError("the token is not known here any more; ask an administrator for one") from None
        return secret, lifetime_s

    def signed_in(self, secret: str) -> Token:
        """Return the token by which a browser signed in. Raises NoTokenError."""
        now = time.time()
        token = self._store.sign_ins.token_of(_hash(secret), now)
        if token is None or token.is_expired(now):
            raise NoTokenError("you are not signed in any more; sign in again")
        self._note_use(token, now)
        return token

    def sign_out(self, secret: str) -> None:
        """End a browser's sign-in."""
        self._store.sign_ins.remove(_hash(secret))

    def _note_use(self, token: Token, now: float) -> None:
        # Each request comes here, also one that only reads: that is answered where nothing can be written.
        with suppress(StoreUnavailableError):
            self._store.tokens.note_use(token, now)


def _lifetime_s(text: str) -> int:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise BadInputError(f"--expires: {error}; write a time such as 30d, 12h or 90m") from None
    if seconds > _LONGEST_S:
        raise BadInputError("--expires: that is more than ten years; write 3650d or less, or leave it out")
    return seconds


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
