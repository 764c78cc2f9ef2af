"""Views of secrets: their names, and never what they hold."""

from pydantic import Field

from muster.service.view import Moment, View


class SecretView(View):
    name: str
    changed_at: Moment = Field(description="when it was last set")


class NameView(View):
    """The name of a secret that was set or removed."""

    name: str


class SecretsView(View):
    items: list[SecretView]
