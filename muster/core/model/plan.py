"""What a scheduling decision says: placements to commit, sessions to preempt, and why each other session waits."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from muster.core.model.session import Allocation
from muster.core.model.wait import Wait


class Waits(Mapping[str, Wait]):
    """The waits of sessions, by session id.

    Sessions that wait for the same reason share one; only their positions in the queue differ. A queue of a hundred
    thousand would otherwise cost more to explain than to schedule.
    """

    def __init__(self, queues: Sequence[Mapping[str, Wait]]) -> None:
        """Take the queues: for each resource group, the waits of its sessions in their order."""
        self._queues = queues

    @cached_property
    def reasons(self) -> Mapping[str, Wait]:
        """The waits without the sessions' own positions: one object for all that share it."""
        if len(self._queues) == 1:
            return self._queues[0]
        return {session_id: wait for queue in self._queues for session_id, wait in queue.items()}

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {session_id: number for queue in self._queues for number, session_id in enumerate(queue, start=1)}

    def __getitem__(self, session_id: str) -> Wait:
        return replace(self.reasons[session_id], position=self._positions[session_id])

    def __iter__(self) -> Iterator[str]:
        return iter(self.reasons)

    def __len__(self) -> int:
        return len(self.reasons)


@dataclass(frozen=True, slots=True)
class Placement:
    """A whole gang: an allocation for each kernel id. `mode` is what was actually placed."""

    session_id: str
    mode: str
    allocations: Mapping[str, Allocation]


@dataclass(frozen=True, slots=True)
class Preemption:
    """A running session that gives its room to another; `moves`: to start anew elsewhere at once."""

    session_id: str
    for_session_id: str
    message: str
    moves: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    placements: tuple[Placement, ...]
    waits: Waits
    preemptions: tuple[Preemption, ...] = ()
