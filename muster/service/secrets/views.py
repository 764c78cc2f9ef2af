"""Views of secrets: their names, and never what they hold."""

from typing import Self

from muster.service.secrets.owned import SecretName
from muster.service.view import Moment, View


class SecretView(View):
    name: str
    changed_at: Moment

    @classmethod
    def of(cls, secret: SecretName) -> Self:
        return cls(name=secret.name, changed_at=secret.changed_at)


class SecretsView(View):
    items: list[SecretView]
