"""Callers of the API: a token's user, or a Unix user, and what the scope lets them see and do."""

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

    With `projects`, it submits to these only, of those that its user may name. Without a name it is none that was made:
    it stands for a Unix user of the control node, whom the Linux kernel names.
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
    def is_unix_users(self) -> bool:
        return not self.name

    @property
    def title(self) -> str:
        """Return what to call it in messages."""
        return f"user {self.user}" if self.is_unix_users else f"token {self.name}"

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

    def gives_what(self, earlier: "Token") -> bool:
        """Return whether its holder is who they were by the same token earlier, and may do what they might then."""
        return (self.user, self.scope) == (earlier.user, earlier.scope)

    def sees(self, owner: str) -> bool:
        """Return whether the token may see the owner's sessions."""
        return self.owner_filter in {None, owner}
