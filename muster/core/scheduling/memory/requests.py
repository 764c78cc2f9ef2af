"""How often each gang is requested in a group: by that, placements leave room for what is typical."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from operator import attrgetter
from zlib import crc32

from muster.core.model.session import Session
from muster.core.scheduling.memory.difference import Changes
from muster.core.scheduling.placement import Gang, gang_of

_SAMPLED = 16_384
_id = attrgetter("id")


class Requests:
    """The requests of the sessions that run and wait, which are a group's latest history.

    They are kept up to date by the sessions that came and went.
    """

    def __init__(self, sampled: int = _SAMPLED) -> None:
        """With more sessions than `sampled`, only some of them are counted."""
        self._most = sampled
        self._changes: Changes[Session] = Changes()
        self._counts: Counter[Gang] = Counter()
        # Those whose numbers have none of these bits are counted.
        self._mask = 0

    def change(self, gone: Sequence[Session], new: Sequence[Session]) -> None:
        """Note which sessions are gone, and which are new."""
        self._changes.add(gone, new)

    def of(
        self, placed: Collection[Session], pending: Collection[Session], plain: Mapping[int, Gang | None]
    ) -> Mapping[Gang, int]:
        """Return how often each gang is requested by these, which all changes have led to.

        `plain` are gangs that are known, by the identity of their sessions.
        """
        mask = self._mask_for(len(placed) + len(pending))
        gone, new = self._changes.taken()
        if mask != self._mask:
            self._mask, self._counts = mask, Counter()
            gone, new = [], [*placed, *pending]
        for session in self._sampled(gone):
            gang = gang_of(session, overlay=True)
            self._counts[gang] -= 1
            if not self._counts[gang]:
                del self._counts[gang]
        gangs = [plain.get(id(session)) or gang_of(session, overlay=True) for session in self._sampled(new)]
        # By identity first: most share theirs, and to hash one costs more than all else here.
        shared = dict(zip(map(id, gangs), gangs, strict=True))
        for key, times in Counter(map(id, gangs)).items():
            self._counts[shared[key]] += times
        return self._counts

    def _sampled(self, sessions: Sequence[Session]) -> Sequence[Session]:
        """Return those that are counted: by their ids, so that neither order nor earlier passes have a bearing."""
        if not self._mask:
            return sessions
        numbers = map(crc32, map(str.encode, map(_id, sessions)))
        return [session for session, number in zip(sessions, numbers, strict=True) if not number & self._mask]

    def _mask_for(self, sessions: int) -> int:
        return 0 if sessions < self._most else (1 << (sessions // self._most).bit_length()) - 1
