"""What hosts hold, and how their modules fail."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


class ModuleFailedError(Exception):
    """The module ended with a message, and with what it `said` of the sessions that it had worked on."""

    def __init__(self, message: str, **said: Any) -> None:
        super().__init__(message)
        self.said = said


@dataclass(eq=False)
class Container:
    """A kernel's container, as its engine keeps it. `started_clock` and `finished_clock` are by its host's clock."""

    number: int
    session_id: str
    kernel_id: str
    kernel_name: str
    generation: int
    image: str
    network: str
    cpu_milli: int
    mem_bytes: int
    gpus: Sequence[Mapping[str, Any]]
    public_key: str
    state: str = "created"
    exit_code: int | None = None
    oom_killed: bool = False
    started_at: float | None = None
    finished_at: float | None = None
    started_clock: float | None = None
    finished_clock: float | None = None
    notice: str | None = None
    signals: int = 0

    def busy_s(self, most_s: float, now: float) -> float:
        """Return for how long it has been busy, if it is idle after `most_s`."""
        if self.started_at is None:
            return 0.0
        return min(most_s, (now if self.finished_at is None else self.finished_at) - self.started_at)


@dataclass(frozen=True)
class Network:
    """A network of one session's launch."""

    name: str
    session_id: str
    generation: int
    driver: str
