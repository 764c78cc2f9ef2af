"""Signing in to the pages by an OpenID Connect provider: begun, and finished with the code that the provider gave.

Both are the broker's: the server carries what the browser shows, and has neither the client's secret nor a say in who
somebody is.
"""

import json
import logging
import os
import secrets
import threading
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from muster.core.model.token import Token
from muster.core.values.errors import NotFoundError, SettingsError
from muster.oidc_settings import OidcSettings
from muster.seal import SealKey
from muster.service.identity.oidc_users import ProviderAwayError, Reserved, SignInRefusedError, scope_of, user_name
from muster.service.identity.permissions import is_administrator
from muster.service.identity.tokens import Tokens
from muster.settings import Settings
from muster.unix_accounts import is_in_group

if TYPE_CHECKING:  # authlib loads slowly
    from muster.service.identity.oidc_provider import Attempt, Provider

log = logging.getLogger("muster.sign_in")
PREFIX = "oidc:"
# As long as people take to sign in at the provider.
ATTEMPT_S = 600.0
_RANDOM_BYTES = 32
_PLACE = ("sign-in", "oidc")
_LONGEST_RETURN = 1000
_MOST_SECRET_BYTES = 10_000
_BEGIN_AGAIN = "this sign-in was begun too long ago, or in another browser; sign in again"


@dataclass(frozen=True, slots=True)
class Begun:
    """A sign-in that was begun: where the browser goes, and what it keeps meanwhile, which only we can read."""

    url: str
    sealed: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class SignedIn:
    """A browser's sign-in: its secret, for how many seconds it holds, by which token, and where the browser was."""

    secret: str = field(repr=False)
    lifetime_s: float
    token: Token
    return_to: str


class OidcSignIns:
    """The sign-ins by the site's provider. Methods raise NotFoundError where the settings name none."""

    def __init__(self, settings: Settings, tokens: Tokens) -> None:
        self._settings = settings
        self._tokens = tokens
        # Who began a sign-in before the process was started begins another.
        self._key = SealKey(os.urandom(_RANDOM_BYTES))
        self._used: OrderedDict[str, float] = OrderedDict()
        self._lock = threading.Lock()

    def begin(self, return_to: str) -> Begun:
        """Begin a sign-in. Raises ProviderAwayError."""
        from muster.service.identity.oidc_provider import Attempt  # noqa: PLC0415 - authlib loads slowly

        attempt = Attempt(*(secrets.token_urlsafe(_RANDOM_BYTES) for _ in range(3)))
        url = self._provider.authorization_url(attempt)
        kept = {
            "state": attempt.state,
            "nonce": attempt.nonce,
            "code_verifier": attempt.code_verifier,
            "until": time.time() + ATTEMPT_S,
            "return_to": return_to if len(return_to) <= _LONGEST_RETURN else "/",
        }
        sealed = self._key.seal(json.dumps(kept, ensure_ascii=False), *_PLACE)
        return Begun(url, urlsafe_b64encode(sealed).decode())

    def finish(self, sealed: str, state: str, code: str, issuer: str | None) -> SignedIn:
        """Sign in whom the provider's code stands for. `issuer`: who says that it gave the code.

        Raises SignInRefusedError and ProviderAwayError.
        """
        attempt, return_to = self._opened(sealed)
        if not secrets.compare_digest(attempt.state.encode(), state.encode(errors="replace")):
            raise SignInRefusedError(_BEGIN_AGAIN)
        if issuer is not None and issuer != self._oidc.issuer:
            raise SignInRefusedError("another provider answered; sign in again")
        claims = self._provider.claims(code, attempt, self._client_secret())
        # Only now, so that strangers fill no memory of ours. That a code is used once, the provider takes care of.
        self._use(attempt.state)
        user = user_name(claims, self._oidc)
        scope = scope_of(user, claims, self._oidc, self._reserved(user))
        token = self._tokens.renewed(PREFIX + user, user, scope, self._oidc.lifetime)
        secret, lifetime_s = self._tokens.sign_in(token, self._oidc.lifetime)
        return SignedIn(secret, lifetime_s, token, return_to)

    @property
    def _oidc(self) -> OidcSettings:
        found = self._settings.web.oidc
        if found is None:
            raise NotFoundError("nobody signs in by a provider here; sign in with a token")
        return found

    @cached_property
    def _provider(self) -> "Provider":
        from muster.service.identity.oidc_provider import Provider  # noqa: PLC0415 - authlib loads slowly

        return Provider(self._oidc)

    def _opened(self, sealed: str) -> "tuple[Attempt, str]":
        """Return the attempt that the browser has kept. Raises SignInRefusedError."""
        from muster.service.identity.oidc_provider import Attempt  # noqa: PLC0415 - authlib loads slowly

        try:
            kept = json.loads(self._key.open(urlsafe_b64decode(sealed.encode()), *_PLACE))
        except (SettingsError, ValueError):
            raise SignInRefusedError(_BEGIN_AGAIN) from None
        if kept["until"] < time.time():
            raise SignInRefusedError(_BEGIN_AGAIN)
        return Attempt(kept["state"], kept["nonce"], kept["code_verifier"]), kept["return_to"]

    def _use(self, state: str) -> None:
        """Let an attempt be finished once. Raises SignInRefusedError."""
        now = time.monotonic()
        with self._lock:
            while self._used and next(iter(self._used.values())) < now - ATTEMPT_S:
                self._used.popitem(last=False)
            if state in self._used:
                raise SignInRefusedError(_BEGIN_AGAIN)
            self._used[state] = now

    def _client_secret(self) -> str:
        """Read the client's secret: a changed one counts at once. Raises ProviderAwayError."""
        path = self._oidc.client_secret_file
        try:
            with path.open("rb") as file:
                wrong = f"others may read it; chmod 600 {path}" if os.fstat(file.fileno()).st_mode & 0o007 else ""
                secret = file.read(_MOST_SECRET_BYTES).decode().strip()
        except (OSError, UnicodeDecodeError) as error:
            wrong, secret = getattr(error, "strerror", None) or "it is no text", ""
        if wrong or not secret:
            # The settings are nothing for strangers.
            log.error("web.oidc.client_secret_file: %s: %s", path, wrong or "it is empty")
            raise ProviderAwayError("signing in is not set up well here; ask an administrator, or sign in with a token")
        return secret

    def _reserved(self, user: str) -> Reserved:
        """Return whether the user's name is an administrator's, by the control node or by a token."""
        group = self._settings.admin_group
        now = time.time()
        by_token = any(
            token.user == user and token.sees_all and not token.is_expired(now) and not token.name.startswith(PREFIX)
            for token in self._tokens.all()
        )
        by_group = group is not None and is_in_group(user, group)
        return Reserved(
            keepers=(user,) if is_administrator(self._settings, user) else (),
            administrators=(user,) if by_token or by_group else (),
        )
