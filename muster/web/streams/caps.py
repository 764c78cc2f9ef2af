"""Limits of open streams: in all, and for one user, so that no user takes the places of all others."""

from collections.abc import Collection
from typing import Protocol

from muster.web.problems import TooManyError


class OfUser(Protocol):
    """A stream with the user that reads it."""

    @property
    def user(self) -> str: ...


def check_cap(streams: Collection[OfUser], user: str, *, most: int, most_of_one: int, what: str) -> None:
    """Raise TooManyError if the user, or the server, may open no further stream. `what` names the streams."""
    if sum(one.user == user for one in streams) >= most_of_one:
        raise TooManyError(f"{most_of_one} {what} of yours are open; close one")
    if len(streams) >= most:
        raise TooManyError(f"{most} {what} are open; try again later")
