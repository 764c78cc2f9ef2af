"""The queue in pages for people: what is alike is one row, and each page holds a few rows of each resource group."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from muster.core.model.heartbeat import Unworked
from muster.core.model.wait import WaitCode
from muster.core.values.errors import NotFoundError
from muster.core.whatif.redaction import redacted
from muster.service.questions.decided_queue import DecidedQueue, Queued
from muster.service.queue.heartbeat import unworked_queue
from muster.service.sessions.visibility import Sees
from muster.settings import Settings
from muster.store.store import Store

_CHANGED = "the queue has changed meanwhile; look at it again"
_DIGEST_LENGTH = 32
_ALIKE = 3
"""Of fewer sessions that are alike, but of no array, each has a row."""


@dataclass(frozen=True, slots=True)
class _Request:
    size: int
    begin: int
    within: str | None


@dataclass(frozen=True, slots=True)
class QueueRow:
    """Sessions that stand one after another in the queue, are alike and wait for the same. `last` may be `first`.

    `digest` stands for their ids: who changes the row names by it what they have seen.
    """

    first: Queued
    last: Queued
    count: int
    digest: str


@dataclass(frozen=True, slots=True)
class QueuePart:
    """A group's part of a page.

    `length` counts the places of all users' sessions, `codes` the visible sessions by the code of their wait; None for
    those that are about to start. `row_count` counts the rows of all pages.
    """

    name: str
    length: int
    codes: Mapping[WaitCode | None, int]
    rows: Sequence[QueueRow]
    row_count: int


@dataclass(frozen=True, slots=True)
class QueuePage:
    """A page. `names` are by id those of the sessions that its sessions wait for."""

    parts: Sequence[QueuePart]
    names: Mapping[str, str]
    unworked: Unworked | None


class QueuePages:
    """The pages of the queue for a user, who sees some of the sessions."""

    def __init__(self, store: Store, settings: Settings, decided: DecidedQueue, sees: Sees) -> None:
        self._store = store
        self._settings = settings
        self._decided = decided
        self._sees = sees

    def page(self, size: int, begin: int = 0, group: str | None = None, within: str | None = None) -> QueuePage:
        """Return the rows of one group or of all, `size` of each from `begin` on.

        `within` is the id of a session: then the rows are those of its row, one by one. Raises NotFoundError for a row
        that is there no more.
        """
        request = _Request(size, begin, within)
        everything = self._decided.queue()
        lengths = Counter({queued.session.spec.resource_group: 0 for queued in everything})
        lengths.update(queued.session.spec.resource_group for queued in everything if queued.wait)
        visible: dict[str, list[Queued]] = {name: [] for name in sorted(lengths) if group in {None, name}}
        for queued in everything:
            if queued.session.spec.resource_group in visible and self._sees(queued.session):
                visible[queued.session.spec.resource_group].append(queued)
        parts = [_part(name, lengths[name], queued, request) for name, queued in visible.items()]
        names, hidden = _others(self._store, self._sees, parts)
        shown = [replace(part, rows=[_without_names(row, hidden) for row in part.rows]) for part in parts]
        return QueuePage(shown, names, unworked_queue(self._store, self._settings))

    def members(self, first: str, count: int, digest: str) -> list[str]:
        """Return the ids of a row's first sessions. Raises NotFoundError if these are not the ones of the digest."""
        visible = [queued for queued in self._decided.queue() if self._sees(queued.session)]
        row = _row_with(visible, first)
        begin = next(number for number, queued in enumerate(row) if queued.session.id == first)
        found = row[begin : begin + count]
        if _digest(found) != digest:
            raise NotFoundError(_CHANGED)
        return [queued.session.id for queued in found]


def _part(name: str, length: int, visible: Sequence[Queued], request: _Request) -> QueuePart:
    codes = Counter(queued.wait.code if queued.wait else None for queued in visible)
    rows = _rows(visible) if request.within is None else [[queued] for queued in _row_with(visible, request.within)]
    shown = rows[request.begin : request.begin + request.size]
    return QueuePart(name, length, codes, [_row(row) for row in shown], len(rows))


def _row(sessions: Sequence[Queued]) -> QueueRow:
    return QueueRow(sessions[0], sessions[-1], len(sessions), _digest(sessions))


def _digest(sessions: Sequence[Queued]) -> str:
    return hashlib.sha256(" ".join(queued.session.id for queued in sessions).encode()).hexdigest()[:_DIGEST_LENGTH]


def _rows(visible: Sequence[Queued]) -> list[list[Queued]]:
    rows: list[list[Queued]] = []
    for _, alike in groupby(visible, _likeness):
        row = list(alike)
        if len(row) >= _ALIKE or row[0].session.array_id is not None:
            rows.append(row)
        else:
            rows += [[queued] for queued in row]
    return rows


def _row_with(visible: Sequence[Queued], session_id: str) -> list[Queued]:
    """Return the sessions of the row that has this one. Raises NotFoundError."""
    row = next((row for row in _rows(visible) if any(one.session.id == session_id for one in row)), None)
    if row is None:
        raise NotFoundError(_CHANGED)
    return row


def _likeness(queued: Queued) -> object:
    """Return what the sessions of a row have in common."""
    session, wait = queued.session, queued.wait
    return (
        session.spec.resource_group,
        session.owner,
        session.array_id,
        session.spec.priority,
        len(session.kernels),
        session.slots,
        None if wait is None else (wait.code, wait.message),
    )


def _others(store: Store, sees: Sees, parts: Sequence[QueuePart]) -> tuple[Mapping[str, str], set[str]]:
    """Return by id the names of sessions that the rows wait for, and the ids of those that the user may not see."""
    waited_for = {
        session_id for part in parts for row in part.rows if row.first.wait for session_id in row.first.wait.waits_for
    }
    others = store.get(sorted(waited_for))
    hidden = {key for key, other in others.items() if not sees(other)}
    return {key: f"{other.name} ({other.state})" for key, other in others.items() if key not in hidden}, hidden


def _without_names(row: QueueRow, hidden: set[str]) -> QueueRow:
    if row.first.wait is None:
        return row
    first = replace(row.first, wait=redacted(row.first.wait, hidden))
    last = first if row.count == 1 else replace(row.last, wait=row.last.wait and redacted(row.last.wait, hidden))
    return replace(row, first=first, last=last)
