"""What commands on sessions work on, and for whom."""

from collections.abc import Collection
from dataclasses import dataclass

from muster.service.secrets.secrets import Secrets
from muster.settings import Settings
from muster.store.store import Store


@dataclass(frozen=True, slots=True)
class SessionScope:
    """The control node's store and settings, and what the caller may name in it.

    References mean sessions of `visible_owner` only; everybody's where it is None. `projects` are those that the caller
    may submit to, all where it is empty.
    """

    store: Store
    settings: Settings
    visible_owner: str | None = None
    projects: Collection[str] = ()

    @property
    def secrets(self) -> Secrets:
        return Secrets(self.store.secrets, self.settings.seal_key)
