"""The site's OpenID Connect provider, as the broker of `muster web` speaks to it."""

import logging
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from authlib.common.errors import AuthlibBaseError
from authlib.integrations.httpx_client import OAuth2Client
from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import BadSignatureError, InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet
from joserfc.jws import JWSRegistry

from muster.contract.values import printable_line
from muster.oidc_settings import OidcSettings, is_protected
from muster.service.identity.oidc_users import ProviderAwayError, SignInRefusedError

# With a key of the provider's own: the client's secret signs nothing, and no token goes without a signature.
_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519", "EdDSA")
log = logging.getLogger("muster.sign_in")
_LEEWAY_S = 60
_TIMEOUT = httpx.Timeout(10.0, connect=5.0)
# People who do not sign in wait for a provider that hangs, too: the server's threads are everybody's.
_MOST_AT_ONCE = 16
# How long what the provider says of itself is believed, and the keys that it has taken back since.
_READ_EVERY_S = 3600.0
_MOST_OF_A_CAUSE = 200
_ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri")


@dataclass(frozen=True, slots=True)
class Attempt:
    """What an attempt to sign in is known by: to the browser, in the ID token, and at the token endpoint."""

    state: str
    nonce: str = field(repr=False)
    code_verifier: str = field(repr=False)


class Provider:
    """A provider by its URL. What it says of itself is read at the first sign-in, and its keys when one is unknown."""

    def __init__(self, settings: OidcSettings) -> None:
        self._settings = settings
        self._tls = ssl.create_default_context()
        self._slots = threading.BoundedSemaphore(_MOST_AT_ONCE)
        self._metadata: Mapping[str, Any] | None = None
        self._keys: KeySet | None = None
        self._read_at = -_READ_EVERY_S

    def authorization_url(self, attempt: Attempt) -> str:
        """Return where the browser asks the provider for a code. Raises ProviderAwayError."""
        with self._spoken():
            endpoint = self._described()["authorization_endpoint"]
            # Its URL tells the provider nothing that the client's secret would be needed for.
            with self._client(secret="") as client:
                url, _ = client.create_authorization_url(
                    endpoint, state=attempt.state, nonce=attempt.nonce, code_verifier=attempt.code_verifier
                )
        return str(url)

    def claims(self, code: str, attempt: Attempt, secret: str) -> Mapping[str, Any]:
        """Exchange a code, and return what the provider says of the user.

        Raises SignInRefusedError where the code or the ID token is not this attempt's, and ProviderAwayError.
        """
        with self._spoken():
            described = self._described()
            with self._client(secret) as client:
                token = client.fetch_token(
                    described["token_endpoint"],
                    grant_type="authorization_code",
                    code=code,
                    code_verifier=attempt.code_verifier,
                )
                claims = self._validated(token, attempt.nonce)
                if not {*self._settings.wanted_claims} <= claims.keys() and is_protected(
                    described.get("userinfo_endpoint")
                ):
                    user_info = _json(client.get(described["userinfo_endpoint"]))
                    # Another's answer would make another of them.
                    if user_info.get("sub") == claims["sub"]:
                        claims = {**user_info, **claims}
            return claims

    @contextmanager
    def _spoken(self) -> Iterator[None]:
        """Turn errors into ours. Raises SignInRefusedError and ProviderAwayError."""
        if not self._slots.acquire(blocking=False):
            raise ProviderAwayError("too many people sign in at this moment; try again, or sign in with a token")
        try:
            yield
        except httpx.HTTPStatusError as error:
            raise _away(f"it answers {error.response.status_code}") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            cause = printable_line(str(error))[:_MOST_OF_A_CAUSE] or type(error).__name__
            raise _away("it cannot be reached", cause) from error
        except JoseError as error:
            log.warning("the provider's ID token is not valid: %s", error)
            raise SignInRefusedError("the provider's word is not valid for this sign-in; sign in again") from error
        except AuthlibBaseError as error:
            # Such as invalid_grant, which is the user's, or invalid_client, which is the site's.
            log.warning("the provider gives no token: %.100s", error.error)
            raise SignInRefusedError("the provider does not know this sign-in; sign in again") from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise _away("it does not answer as a provider") from error
        finally:
            self._slots.release()

    def _client(self, secret: str) -> OAuth2Client:
        settings = self._settings
        methods = (self._metadata or {}).get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
        method = "client_secret_basic" if "client_secret_basic" in methods else "client_secret_post"
        return OAuth2Client(
            settings.client_id,
            secret,
            token_endpoint_auth_method=method,
            scope=" ".join(settings.scopes),
            redirect_uri=settings.redirect_uri,
            code_challenge_method="S256",
            verify=self._tls,
            timeout=_TIMEOUT,
        )

    def _described(self) -> Mapping[str, Any]:
        """Return what the provider says of itself. Raises ProviderAwayError, and as `_read`."""
        if self._metadata is None or time.monotonic() - self._read_at > _READ_EVERY_S:
            issuer = self._settings.issuer
            described = self._read(issuer.rstrip("/") + "/.well-known/openid-configuration")
            if described.get("issuer") != issuer:
                raise _away("it calls itself another than the settings' web.oidc.issuer")
            if wrong := [name for name in _ENDPOINTS if not is_protected(described.get(name))]:
                raise _away(f"its {wrong[0]} is no URL of https")
            self._metadata, self._keys, self._read_at = described, None, time.monotonic()
        return self._metadata

    def _validated(self, token: Mapping[str, Any], nonce: str) -> dict[str, Any]:
        """Return the claims of the ID token. Raises JoseError, SignInRefusedError, and as `_described`."""
        id_token = token.get("id_token")
        if not isinstance(id_token, str):
            raise SignInRefusedError("the provider gave no ID token; ask an administrator")
        registry = JWSRegistry(algorithms=list(_ALGORITHMS), strict_check_header=False)
        is_fresh = self._keys is None
        try:
            decoded = jwt.decode(id_token, self._known_keys(), registry=registry)
        except (InvalidKeyIdError, BadSignatureError):
            # The provider may have changed its keys since.
            if is_fresh:
                raise
            self._keys = None
            decoded = jwt.decode(id_token, self._known_keys(), registry=registry)
        issuer, client_id = self._settings.issuer, self._settings.client_id
        claims = CodeIDToken(
            decoded.claims,
            decoded.header,
            {"iss": {"essential": True, "value": issuer}, "aud": {"essential": True, "value": client_id}},
            {"nonce": nonce, "client_id": client_id, "access_token": token.get("access_token")},
        )
        claims.validate(leeway=_LEEWAY_S)
        return dict(claims)

    def _known_keys(self) -> KeySet:
        keys = self._keys
        if keys is None:
            read = self._read(self._described()["jwks_uri"])
            self._keys = keys = KeySet.import_key_set({"keys": read["keys"]})
        return keys

    def _read(self, url: str) -> dict[str, Any]:
        """Raises httpx's errors, ValueError and TypeError."""
        with httpx.Client(verify=self._tls, timeout=_TIMEOUT) as client:
            return _json(client.get(url))


def _json(response: httpx.Response) -> dict[str, Any]:
    """Raises httpx.HTTPStatusError, ValueError and TypeError."""
    response.raise_for_status()
    content = response.json()
    if not isinstance(content, dict):
        raise TypeError("no object")
    return content


def _away(why: str, cause: str = "") -> ProviderAwayError:
    """Return the error for users; the log gets its cause as well, by which an administrator knows what to mend."""
    log.warning("the provider of web.oidc: %s%s", why, f": {cause}" if cause else "")
    return ProviderAwayError(
        f"the provider cannot sign anybody in at this moment: {why}; try again, or sign in with a token"
    )
