"""Callers of the API: a token's user, and what its scope lets them see and do."""

from dataclasses import dataclass
from enum import StrEnum


class Scope(StrEnum):
    """The rights of a token: ADMIN all, USER to see and change their own, READ to see their own."""

    ADMIN = "admin"
    USER = "user"
    READ = "read"


@dataclass(frozen=True, slots=True)
class Token:
    """A token without its secret. Times are seconds since the epoch.

    With `projects`, it submits to these only, of those that its user may name.
    """

    name: str
    user: str
    scope: Scope
    created_at: float
    expires_at: float | None = None
    last_used_at: float | None = None
    projects: tuple[str, ...] = ()

    def is_expired(self, now: float) -> bool:
        return self.expires_at is not None and self.expires_at <= now

    @property
    def sees_all(self) -> bool:
        return self.scope is Scope.ADMIN

    @property
    def may_change(self) -> bool:
        return self.scope is not Scope.READ

    @property
    def owner_filter(self) -> str | None:
        """Return the owner whose sessions the token may see; None for everybody's."""
        return None if self.sees_all else self.user

    def sees(self, owner: str) -> bool:
        """Return whether the token may see the owner's sessions."""
        return self.owner_filter in {None, owner}
