"""What each owner has, kept up to date while a pass places sessions, and added up only on request."""

from collections.abc import Collection, Iterable, Iterator, Mapping

from muster.core.model.session import Session
from muster.core.values.slots import Slots


class Allocated(Mapping[str, Slots]):
    """The slots that each owner has. Orders without use for it, such as first in, first out, cost nothing."""

    def __init__(self, placed: Collection[Session]) -> None:
        self._to_count: list[tuple[str, Slots]] = []
        self._placed = placed
        self._counted: dict[str, Slots] | None = None

    def add(self, owner: str, slots: Slots) -> None:
        """Add to what the owner has."""
        self._to_count.append((owner, slots))

    def add_each(self, pairs: Iterable[tuple[str, Slots]]) -> None:
        """Add to what owners have."""
        self._to_count.extend(pairs)

    def __getitem__(self, owner: str) -> Slots:
        return self._read[owner]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read)

    def __len__(self) -> int:
        return len(self._read)

    @property
    def _read(self) -> dict[str, Slots]:
        if self._counted is None:
            self._counted = {}
            self._to_count = [*((session.owner, session.slots) for session in self._placed), *self._to_count]
        while self._to_count:
            owner, slots = self._to_count.pop()
            self._counted[owner] = self._counted.get(owner, Slots()) + slots
        return self._counted
