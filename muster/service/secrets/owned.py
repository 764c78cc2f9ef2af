"""A user's own secrets: set, named, removed. Nobody is told what one holds."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from muster.core.model.token import Token
from muster.service.identity.scope import check_may_change
from muster.service.sessions.sessions import Sessions
from muster.service.sessions.views import timestamp


@dataclass(frozen=True, slots=True)
class SecretName:
    """When it was set last, in seconds since the epoch."""

    name: str
    changed_at: float


class OwnedSecrets:
    """An administrator has no more than his own, too."""

    def __init__(self, service: Sessions, token: Token) -> None:
        self._service = service
        self._token = token

    def names(self) -> Sequence[SecretName]:
        """In the names' order."""
        return [SecretName(secret.name, secret.changed_at) for secret in self._service.secrets.of(self._token.user)]

    def set(self, name: str, value: str) -> None:
        """Raises ScopeError, BadInputError for a name or a value that is none, SettingsError without the key."""
        check_may_change(self._token)
        self._service.secrets.set(self._token.user, name, value, time.time())

    def remove(self, name: str) -> None:
        """Raises ScopeError and NotFoundError."""
        check_may_change(self._token)
        self._service.secrets.remove(self._token.user, name)


def secret_json(secret: SecretName) -> dict[str, Any]:
    return {"name": secret.name, "changed_at": timestamp(secret.changed_at)}
