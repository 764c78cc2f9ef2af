"""Tokens for the API: made, shown once, recognised, revoked."""

import hashlib
import math
import secrets
import time
from typing import Any

from muster.core.model.token import Scope, Token
from muster.core.spec.session_spec import NAME_PATTERN
from muster.core.values.duration import parse_duration
from muster.core.values.errors import BadInputError, MusterError
from muster.service.sessions.views import timestamp
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


def create_token(store: Store, name: str, user: str, scope: Scope, expires: str | None) -> tuple[Token, str]:
    """The token, and its secret: nobody can tell that a second time. Raises BadInputError and NameTakenError."""
    if not NAME_PATTERN.fullmatch(name):
        raise BadInputError(
            f"NAME: {name!r} is no name; write up to 63 letters, digits and _.-, a letter or digit first"
        )
    if not user.strip() or len(user) > _LONGEST_USER or not user.isprintable():
        raise BadInputError("--user: that is no user's name; write the name that owns his sessions, such as ada")
    now = time.time()
    expires_at = None if expires is None else now + _lifetime_s(expires)
    token = Token(name, user, scope, now, expires_at)
    # A random secret of 256 bits needs no slow hash: there is nothing to guess.
    secret = PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
    store.tokens.add(token, _hash(secret))
    return token, secret


def token_of(store: Store, secret: str) -> Token:
    """Whose secret it is. Raises NoTokenError."""
    now = time.time()
    token = store.tokens.of_hash(_hash(secret))
    if token is None:
        raise NoTokenError("the token is not known here; ask for one made by `muster token create`")
    if token.is_expired(now):
        raise NoTokenError(f"token {token.name} expired at {timestamp(token.expires_at)}; ask for another")
    store.tokens.note_use(token, now)
    return token


def sign_in(store: Store, token: Token) -> tuple[str, float]:
    """A browser's own secret, so that it need not keep the token, and how many seconds it is good for."""
    now = time.time()
    lifetime_s = min(_SIGN_IN_S, math.inf if token.expires_at is None else token.expires_at - now)
    secret = secrets.token_urlsafe(_RANDOM_BYTES)
    store.sign_ins.add(_hash(secret), token, now + lifetime_s, now)
    return secret, lifetime_s


def signed_in(store: Store, secret: str) -> Token:
    """By whose token that browser signed in. Raises NoTokenError."""
    now = time.time()
    token = store.sign_ins.token_of(_hash(secret), now)
    if token is None or token.is_expired(now):
        raise NoTokenError("you are not signed in any more; sign in with your token")
    store.tokens.note_use(token, now)
    return token


def sign_out(store: Store, secret: str) -> None:
    store.sign_ins.remove(_hash(secret))


def token_json(token: Token) -> dict[str, Any]:
    return {
        "name": token.name,
        "user": token.user,
        "scope": token.scope,
        "created_at": timestamp(token.created_at),
        "expires_at": timestamp(token.expires_at),
        "last_used_at": timestamp(token.last_used_at),
    }


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
