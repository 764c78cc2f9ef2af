"""How many streams may be open: so many in all, and so many of one user, who must not use up everybody's."""

from collections.abc import Collection
from typing import Protocol

from muster.web.problems import TooManyError


class OfUser(Protocol):
    """A stream, with the user who reads it."""

    @property
    def user(self) -> str: ...


def check_cap(streams: Collection[OfUser], user: str, *, most: int, most_of_one: int, what: str) -> None:
    """Refuse one stream too many. Raises TooManyError."""
    if sum(one.user == user for one in streams) >= most_of_one:
        raise TooManyError(f"{most_of_one} {what} of yours are open; close one")
    if len(streams) >= most:
        raise TooManyError(f"{most} {what} are open; try again later")
