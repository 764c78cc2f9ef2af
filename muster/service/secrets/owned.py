"""A user's own secrets: set, named, removed. No answer holds a secret's value."""

import time

from muster.core.model.token import Token
from muster.service.identity.permissions import check_may_change
from muster.service.secrets.secrets import Secrets
from muster.service.secrets.views import SecretsView, SecretView


class OwnedSecrets:
    """The secrets of a token's user; an administrator's token gives no others."""

    def __init__(self, secrets: Secrets, token: Token) -> None:
        self._secrets = secrets
        self._token = token

    def names(self) -> SecretsView:
        """Return the names in their order."""
        secrets = self._secrets.of(self._token.user)
        return SecretsView(items=[SecretView(name=secret.name, changed_at=secret.changed_at) for secret in secrets])

    def set(self, name: str, value: str) -> None:
        """Raises ScopeError, BadInputError for a name or a value that is none, SettingsError without the key."""
        check_may_change(self._token)
        self._secrets.set(self._token.user, name, value, time.time())

    def remove(self, name: str) -> None:
        """Raises ScopeError and NotFoundError."""
        check_may_change(self._token)
        self._secrets.remove(self._token.user, name)
