"""Why sessions wait. Those that wait for the same reason share a row: of a long queue, a few rows change in a pass."""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import sqlalchemy as sa

from muster.core.model.session import SessionState
from muster.core.model.wait import LimitHit, LimitKind, NearestMiss, Wait, WaitCode
from muster.store.database.connection import upsert
from muster.store.database.counters import increment_counter
from muster.store.database.tables import sessions, waits

_CHUNK = 500
_NUMBER = "wait"
_ALL = sa.select(waits.c.id, waits.c.wait)
_BY_ID = _ALL.where(waits.c.id.in_(sa.bindparam("rows", expanding=True)))


@dataclass(frozen=True, slots=True)
class KnownWaits:
    """The rows as they were last read or written: the text of each, and which one each session has."""

    texts: Mapping[int, str] = field(default_factory=dict)
    of_sessions: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: Mapping[int, Wait], of_sessions: Mapping[str, int]) -> "KnownWaits":
        return cls({number: _text(wait) for number, wait in rows.items()}, of_sessions)

    def changes(self, new: Mapping[str, Wait]) -> "WaitChanges | None":
        """Return the changes that make these the waits; None if they are already.

        A row goes on with whatever most of its sessions wait for now, so that they need no change themselves.
        """
        # A whole queue goes through this in each pass: by the identity of waits, which sessions share.
        reasons = dict(new)
        texts = {key: _text(wait) for key, wait in {id(wait): wait for wait in reasons.values()}.items()}
        counts = Counter(zip(map(id, reasons.values()), map(self.of_sessions.get, reasons), strict=True))
        rows = _rows_of(texts, counts)
        moves = {(key, row) for key, row in counts if row is None or rows.get(texts[key]) != row}
        moved = {
            session_id: texts[id(wait)]
            for session_id, wait in (reasons.items() if moves else ())
            if (id(wait), self.of_sessions.get(session_id)) in moves
        }
        had = sum(count for (_, row), count in counts.items() if row is not None)
        gone = self.of_sessions.keys() - reasons.keys() if had < len(self.of_sessions) else frozenset()
        changes = WaitChanges(self, frozenset(texts.values()), rows, moved, gone)
        return changes if changes.needed else None


def _rows_of(texts: Mapping[int, str], counts: Mapping[tuple[int, int | None], int]) -> dict[str, int]:
    """Return by text a row that its sessions have already; each row once.

    `texts` are by the identity of the waits, `counts` says how many sessions with such a wait have which row.
    """
    by_text: Counter[tuple[int, str]] = Counter()
    for (key, row), count in counts.items():
        if row is not None:
            by_text[row, texts[key]] += count
    chosen: dict[str, int] = {}
    taken: set[int] = set()
    for _, row, text in sorted(((count, row, text) for (row, text), count in by_text.items()), reverse=True):
        if text not in chosen and row not in taken:
            chosen[text] = row
            taken.add(row)
    return chosen


@dataclass(frozen=True, slots=True)
class WaitChanges:
    """The changes of waits: `texts` are the new ones, `rows` holds those that go on in a row.

    `moved` holds by session id the text of each whose row changes or is new, `gone` the sessions that had a row and
    have no wait.
    """

    before: KnownWaits
    texts: frozenset[str]
    rows: Mapping[str, int]
    moved: Mapping[str, str]
    gone: Collection[str]

    @property
    def needed(self) -> bool:
        return len(self.rows) != len(self.texts) or bool(self.moved) or bool(self.rewritten)

    @property
    def rewritten(self) -> frozenset[int]:
        """Return the rows that go on with another text."""
        return frozenset(row for text, row in self.rows.items() if self.before.texts.get(row) != text)

    def write(self, connection: sa.Connection, revision: int) -> KnownWaits:
        """Write the changes; sessions that are no longer pending are left as they are."""
        rows = dict(self.rows)
        numberless = sorted(self.texts - rows.keys())
        if numberless:
            last = increment_counter(connection, _NUMBER, step=len(numberless))
            rows |= {text: last - place for place, text in enumerate(numberless)}
        changed = sorted((row, text) for text, row in rows.items() if self.before.texts.get(row) != text)
        upsert(connection, waits, [{"id": row, "wait": json.loads(text)} for row, text in changed])
        moved = {session_id: rows[text] for session_id, text in self.moved.items()}
        _assign(connection, moved, revision)
        _remove(connection, sorted(set(self.before.texts) - set(rows.values())))
        of_sessions = {**self.before.of_sessions, **moved}
        for session_id in self.gone:
            del of_sessions[session_id]
        return KnownWaits({row: text for text, row in rows.items()}, of_sessions)


def _assign(connection: sa.Connection, rows: Mapping[str, int], revision: int) -> None:
    """Give sessions, by their ids, rows."""
    if rows:
        is_pending = sessions.c.state == SessionState.PENDING.value
        statement = sa.update(sessions).where(sessions.c.id == sa.bindparam("session"), is_pending)
        statement = statement.values(wait_id=sa.bindparam("row"), revision=revision)
        connection.execute(statement, [{"session": session_id, "row": row} for session_id, row in sorted(rows.items())])


def read_waits(connection: sa.Connection, rows: Iterable[int] | None = None) -> dict[int, Wait]:
    """Return waits by the row's id; all of them if no ids are given."""
    if rows is None:
        return {row.id: wait_from(row.wait) for row in connection.execute(_ALL)}
    ordered = sorted(set(rows))
    found: dict[int, Wait] = {}
    for start in range(0, len(ordered), _CHUNK):
        these = {"rows": ordered[start : start + _CHUNK]}
        found |= {row.id: wait_from(row.wait) for row in connection.execute(_BY_ID, these)}
    return found


def _remove(connection: sa.Connection, unused: list[int]) -> None:
    """Remove waits, except those that a session has got in the meantime."""
    in_use = sa.exists().where(sessions.c.wait_id == waits.c.id)
    for start in range(0, len(unused), _CHUNK):
        these = waits.c.id.in_(unused[start : start + _CHUNK])
        connection.execute(sa.delete(waits).where(these, ~in_use))


def wait_row(wait: Wait) -> dict[str, Any]:
    """Return the wait as it is stored: without the position, which changes with every start."""
    fields = asdict(wait)
    del fields["position"]
    return fields


def wait_from(stored: Mapping[str, Any]) -> Wait:
    """Return the wait that a row holds.

    What an older version did not store has its default, and what it stored in another form is left out: the next pass
    writes the row again.
    """
    known = {name: value for name, value in stored.items() if name in Wait.__dataclass_fields__}
    nearest, limit = known.get("nearest"), known.get("limit")
    values = {
        "message": "",
        **known,
        "code": WaitCode(stored["code"]),
        "nearest": NearestMiss(**nearest) if nearest else None,
        "limit": _limit_from(limit) if limit else None,
        "waits_for": tuple(stored.get("waits_for") or ()),
    }
    return Wait(**values)


def _limit_from(stored: Mapping[str, Any]) -> LimitHit | None:
    """Return None for the form before `kind`, which held only a text."""
    return LimitHit(**{**stored, "kind": LimitKind(stored["kind"])}) if "kind" in stored else None


def _text(wait: Wait) -> str:
    return json.dumps(wait_row(wait), sort_keys=True)
