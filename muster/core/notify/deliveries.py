"""Who is told of a session's changes, in which words, and how often it is tried."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

CALLBACK = "callback"
_HOOK = "hook:"
_LONGEST_WAIT_S = 3600.0
# After these some 24 hours have gone by.
MAX_ATTEMPTS = 35


@dataclass(frozen=True, slots=True)
class Delivery:
    """One change that one target is still to be told of. `at` is in seconds since the epoch.

    `target` is `callback`, which is sent to `url`, or the name of a hook.
    """

    event_id: int
    target: str
    session_id: str
    session_name: str
    owner: str
    at: float
    from_state: str | None
    to_state: str
    reason: str
    attempts: int
    url: str | None

    @property
    def queue(self) -> tuple[str, str]:
        """What is delivered one after the other, in the order of the changes."""
        return self.session_id, self.target

    @property
    def hook(self) -> str | None:
        return self.target.removeprefix(_HOOK) if self.target.startswith(_HOOK) else None

    def message(self) -> dict[str, Any]:
        """What is sent. `number` rises with each change: who hears of one twice knows it by that."""
        return {
            "number": self.event_id,
            "session": self.session_name,
            "id": self.session_id,
            "owner": self.owner,
            "from": self.from_state,
            "to": self.to_state,
            "reason": self.reason,
            "at": datetime.fromtimestamp(self.at, UTC).isoformat(timespec="milliseconds"),
        }


def hook_target(name: str) -> str:
    return f"{_HOOK}{name}"


def retry_at(attempts: int, now: float) -> float | None:
    """When to try again what failed that many times; None: not any more."""
    if attempts >= MAX_ATTEMPTS:
        return None
    return now + min(_LONGEST_WAIT_S, 2.0 ** min(attempts - 1, 20))
