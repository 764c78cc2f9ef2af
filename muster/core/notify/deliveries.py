"""Which changes of sessions are sent to callbacks and hooks, in which words, and how often each is tried."""

from dataclasses import dataclass
from typing import Any

from muster.core.values.units import timestamp

CALLBACK = "callback"
_HOOK = "hook:"
LONGEST_WAIT_S = 3600.0
# After these some 24 hours have gone by.
MAX_ATTEMPTS = 35


@dataclass(frozen=True, slots=True)
class Delivery:
    """A change that is still to be sent to one target. `at` is in seconds since the epoch.

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
        """Return the key of the queue in which changes are sent one after the other, in their order."""
        return self.session_id, self.target

    @property
    def hook(self) -> str | None:
        return self.target.removeprefix(_HOOK) if self.target.startswith(_HOOK) else None

    def message(self) -> dict[str, Any]:
        """Return the message to send. `number` rises with each change; by it receivers recognise repetitions."""
        return {
            "number": self.event_id,
            "session": self.session_name,
            "id": self.session_id,
            "owner": self.owner,
            "from": self.from_state,
            "to": self.to_state,
            "reason": self.reason,
            "at": timestamp(self.at),
        }


def hook_target(name: str) -> str:
    return f"{_HOOK}{name}"


def retry_at(attempts: int, now: float) -> float | None:
    """Return when to retry what failed that many times; None: not any more."""
    if attempts >= MAX_ATTEMPTS:
        return None
    return now + min(LONGEST_WAIT_S, 2.0 ** min(attempts - 1, 20))
