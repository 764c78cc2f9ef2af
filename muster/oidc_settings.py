"""What the site says of signing in to the pages by an OpenID Connect provider."""

import re
from ipaddress import ip_address
from typing import Self
from urllib.parse import urlsplit

from pydantic import Field, ValidationInfo, field_validator, model_validator

from muster.core.spec.values import Seconds, invalid
from muster.settings_section import AbsolutePath, Section

CALLBACK = "/sign-in/oidc/callback"
EVERYBODY = "*"
_LONGEST_S = 365 * 86400
_CLAIM = re.compile(r"[!-~]{1,100}")


class OidcSettings(Section):
    """The settings of `web: {oidc: ...}`. A user must be among `allowed_users` or in one of `allowed_groups`."""

    issuer: str = Field(description="the provider's URL, exactly as it names itself in its tokens")
    client_id: str = Field(min_length=1, description="as which client the provider knows this server")
    client_secret_file: AbsolutePath = Field(description="file with the client's secret, which only root may read")
    public_url: str = Field(description="the URL at which browsers reach this server, such as https://muster.site")
    name: str = Field(
        default="the site's provider",
        min_length=1,
        max_length=60,
        description="what the sign-in page calls the provider",
    )
    scopes: tuple[str, ...] = Field(default=("openid", "profile"), description="what is requested of the provider")
    user_claim: str = Field(
        default="preferred_username", description="claim with the user's name; take one that users cannot change"
    )
    groups_claim: str = Field(default="groups", description="claim with the names of the user's groups")
    allowed_users: tuple[str, ...] = Field(default=(), description="users who may sign in; '*' for everybody")
    allowed_groups: tuple[str, ...] = Field(default=(), description="groups whose members may sign in")
    administrators: tuple[str, ...] = Field(default=(), description="users who are administrators")
    administrator_groups: tuple[str, ...] = Field(default=(), description="groups whose members are administrators")
    lifetime: Seconds = Field(default=7 * 86400, description="time after which a user has to sign in again")

    @field_validator("issuer", "public_url")
    @classmethod
    def _protected(cls, url: str, info: ValidationInfo) -> str:
        if not is_protected(url) or "?" in url or "#" in url:
            raise invalid(f"{url!r} is no URL of https", "write one such as https://login.site.example")
        if info.field_name == "public_url" and urlsplit(url).path not in {"", "/"}:
            raise invalid(f"{url!r} has a path", "write the scheme, the host and the port only")
        return url

    @field_validator("user_claim", "groups_claim")
    @classmethod
    def _claim(cls, name: str) -> str:
        if not _CLAIM.fullmatch(name):
            raise invalid(f"{name!r} is no claim", "write a name such as preferred_username")
        return name

    @field_validator("scopes")
    @classmethod
    def _openid(cls, scopes: tuple[str, ...]) -> tuple[str, ...]:
        if "openid" not in scopes:
            raise invalid("there is no openid", "add it: without it, the provider says nothing of the user")
        return scopes

    @field_validator("lifetime")
    @classmethod
    def _short(cls, seconds: int) -> int:
        if not 60 <= seconds <= _LONGEST_S:
            raise invalid("it is less than a minute or more than a year", "write a time such as 12h or 7d")
        return seconds

    @model_validator(mode="after")
    def _allows_somebody(self) -> Self:
        if not (self.allowed_users or self.allowed_groups):
            raise invalid("nobody may sign in", "set allowed_groups, or allowed_users, which may be ['*']")
        return self

    @property
    def wanted_claims(self) -> tuple[str, ...]:
        """Return the claims by which a user is named and let in."""
        by_group = self.allowed_groups or self.administrator_groups
        return (self.user_claim, self.groups_claim) if by_group else (self.user_claim,)

    @property
    def redirect_uri(self) -> str:
        """Return where the provider sends browsers back to: what is registered there."""
        return self.public_url.rstrip("/") + CALLBACK


def is_protected(url: object) -> bool:
    """Return whether nobody on the way reads or changes what is sent to this URL: by TLS, or on this machine."""
    if not isinstance(url, str):
        return False
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        if parts.username is not None or not host or parts.port == 0:
            return False
    except ValueError:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and _is_this_machine(host))


def _is_this_machine(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
