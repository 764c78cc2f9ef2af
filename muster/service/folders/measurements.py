"""What folders hold, as agents have counted it lately: counting reads whole trees on every agent."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from muster.contract.folders import FolderState
from muster.core.model.folders import Folder
from muster.core.values.errors import NotPossibleInStateError
from muster.service.folders.views import FolderUsage

FRESH_S = 30.0
MOST_WAITING = 8
_MOST_KEPT = 10_000
_ENFORCED = "enforced"


@dataclass(slots=True)
class Visited:
    """The agents' answers by agent id, in the order of the folders; and why other agents did not answer."""

    answers: dict[str, Sequence[FolderState]] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)

    def use_of(self, folder: Folder) -> FolderUsage | None:
        """Return what the folder holds; None where no agent answered."""
        found = {
            agent_id: entry
            for agent_id, entries in self.answers.items()
            for entry in entries
            if entry.path == folder.path
        }
        if not found:
            return None
        # What several agents have from one place is counted once.
        places = {entry.shared_from or agent_id: entry for agent_id, entry in found.items() if entry.exists}
        return FolderUsage(
            used_bytes=_sum(entry.used_bytes for entry in places.values()),
            files=_sum(entry.files for entry in places.values()),
            unenforced={key: e.quota for key, e in found.items() if e.quota not in {None, _ENFORCED}},
        )


@dataclass(frozen=True, slots=True)
class _Measured:
    at: float
    states: Mapping[str, FolderState]
    problems: Mapping[str, str]


class Measurements:
    """The latest measurement of each folder. One is taken at a time, and few callers wait for it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._measuring = threading.Lock()
        self._waiting = threading.BoundedSemaphore(MOST_WAITING)
        self._by_path: OrderedDict[str, _Measured] = OrderedDict()

    def of(self, folders: Sequence[Folder], measure: Callable[[Sequence[Folder]], Visited]) -> Visited:
        """Return what the folders hold. Measures those that were not measured in the last half minute.

        Raises NotPossibleInStateError where too many wait already.
        """
        if not self._waiting.acquire(blocking=False):
            raise NotPossibleInStateError(
                "folders are being measured for others; ask again in a minute, or without sizes"
            )
        try:
            with self._measuring:
                stale = [folder for folder in folders if not self._is_fresh(folder)]
                if stale:
                    self._keep(stale, measure(stale))
                return self._kept(folders)
        finally:
            self._waiting.release()

    def forget(self, folder: Folder) -> None:
        """Forget the folder's size, so that the next request measures it again."""
        with self._measuring:
            self._by_path.pop(folder.path, None)

    def _is_fresh(self, folder: Folder) -> bool:
        known = self._by_path.get(folder.path)
        return known is not None and self._clock() - known.at < FRESH_S

    def _keep(self, folders: Sequence[Folder], visited: Visited) -> None:
        now = self._clock()
        for folder in folders:
            states = {
                agent_id: state
                for agent_id, answer in visited.answers.items()
                for state in answer
                if state.path == folder.path
            }
            self._by_path[folder.path] = _Measured(now, states, dict(visited.problems))
            self._by_path.move_to_end(folder.path)
        while len(self._by_path) > max(_MOST_KEPT, len(folders)):
            self._by_path.popitem(last=False)

    def _kept(self, folders: Sequence[Folder]) -> Visited:
        known = [self._by_path[folder.path] for folder in folders]
        visited = Visited()
        for measured in known:
            visited.problems |= measured.problems
            for agent_id, state in measured.states.items():
                visited.answers[agent_id] = (*visited.answers.get(agent_id, ()), state)
        return visited


def _sum(values: Iterable[int | None]) -> int | None:
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total
