"""The heartbeat of the queue's worker, and what it means when it stops."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from muster.core.values.units import format_duration


class Worker(StrEnum):
    """A worker of the queue: the daemon, or one pass at a time, by cron or a playbook."""

    DAEMON = "muster daemon"
    ONCE = "muster pass"


_SPELLED: Mapping[str, str] = {Worker.DAEMON: "the daemon", Worker.ONCE: "a single pass"}


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The time at which the queue was last worked, in seconds since the epoch, and the command and host that did so."""

    at: float
    worker: str
    host: str
    pid: int


@dataclass(frozen=True, slots=True)
class Unworked:
    """The queue has not been worked for `for_s` seconds. `last` is None if it never was."""

    for_s: float
    last: Heartbeat | None

    @property
    def text(self) -> str:
        """Return a line for every user: what is wrong, and what helps."""
        last = self.last
        by = "" if last is None else f" (last: {_SPELLED.get(last.worker, last.worker)} on {last.host})"
        return (
            f"nobody has worked the queue for {format_duration(self.for_s)}{by}; nothing starts or ends until"
            " the daemon runs again; ask an administrator"
        )


def unworked(last: Heartbeat | None, oldest: float | None, now: float, most_s: float) -> Unworked | None:
    """Return for how long the queue was not worked, if that is more than `most_s`.

    `oldest` is when the oldest session that has not ended was submitted. It counts for a queue that nobody ever worked.
    """
    since = oldest if last is None else last.at
    if since is None:
        return None
    # A heartbeat of the future was written before somebody set the clock back.
    for_s = abs(now - since)
    return Unworked(for_s, last) if for_s > most_s else None
