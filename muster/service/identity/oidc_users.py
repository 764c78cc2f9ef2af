"""Who signs in by OpenID Connect: the user whom the provider's claims name, as far as the site's settings go."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from muster.core.model.folders import OWNER_PATTERN
from muster.core.model.token import Scope
from muster.core.values.errors import MusterError
from muster.oidc_settings import EVERYBODY, OidcSettings

# A token's name has 63 letters, of which the prefix takes some.
LONGEST_USER = 58


class SignInRefusedError(MusterError):
    """The provider's word is not enough to sign in: it is another's, or the site does not allow the user."""


class ProviderAwayError(MusterError):
    """The provider cannot be reached, or does not answer as one, or the settings are not those that it knows."""


@dataclass(frozen=True, slots=True)
class Reserved:
    """Names whose holders have administrators' rights otherwise: `keepers` keep the control node."""

    keepers: Collection[str]
    administrators: Collection[str]


def user_name(claims: Mapping[str, Any], settings: OidcSettings) -> str:
    """Return the user whom the claims name. Raises SignInRefusedError."""
    name = claims.get(settings.user_claim)
    if name is None:
        raise SignInRefusedError(
            f"the provider does not tell your name: there is no claim {settings.user_claim}; ask an administrator"
        )
    # `*`, `%group` and `a/b` mean something else to Muster, and no other text is a name.
    if not isinstance(name, str) or len(name) > LONGEST_USER or not OWNER_PATTERN.fullmatch(name):
        raise SignInRefusedError(
            f"the provider's claim {settings.user_claim} is no name for a user here: it takes up to {LONGEST_USER}"
            " letters, digits and _.+-; ask an administrator"
        )
    return name


def scope_of(user: str, claims: Mapping[str, Any], settings: OidcSettings, reserved: Reserved) -> Scope:
    """Return what the user may do. Raises SignInRefusedError for who may not sign in, or has an administrator's name.

    The provider's users are others than those who have these names by the control node or by tokens: only the settings
    can say that they are the same.
    """
    groups = _groups(claims, settings)
    allowed = {EVERYBODY, user} & {*settings.allowed_users} or groups & {*settings.allowed_groups}
    is_named = user in settings.administrators
    is_administrator = is_named or bool(groups & {*settings.administrator_groups})
    if not (allowed or is_administrator):
        raise SignInRefusedError(f"{user} may not sign in here; ask an administrator")
    if (user in reserved.keepers and not is_named) or (user in reserved.administrators and not is_administrator):
        raise SignInRefusedError(
            f"{user} is an administrator's name here, and the settings do not say that the provider's {user} is one;"
            " ask an administrator"
        )
    return Scope.ADMIN if is_administrator else Scope.USER


def _groups(claims: Mapping[str, Any], settings: OidcSettings) -> frozenset[str]:
    found = claims.get(settings.groups_claim)
    if isinstance(found, str):
        found = [found]
    return frozenset(one for one in found if isinstance(one, str)) if isinstance(found, list) else frozenset()
