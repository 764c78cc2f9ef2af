"""Lists of sessions in pages: where one ends says where the next begins, however the list has changed meanwhile."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from muster.core.model.session import Result, SessionState
from muster.store.database.connection import reading
from muster.store.database.tables import NOT_ENDED, sessions

_INDEX = sa.func.coalesce(sessions.c.array_index, 0)
# Each with a column that orders equal ones: an array's sessions were submitted at one moment.
SORTS = {
    "submitted": (sessions.c.submitted_at, _INDEX, sessions.c.id),
    "name": (sessions.c.name, sessions.c.submitted_at, sessions.c.id),
    "owner": (sessions.c.owner, sessions.c.submitted_at, sessions.c.id),
    "state": (sessions.c.state, sessions.c.submitted_at, sessions.c.id),
    "resource_group": (sessions.c.resource_group, sessions.c.submitted_at, sessions.c.id),
}
# What filters suggest, by the newest sessions. Every list asks for it: the statements are made once.
_WORDS = ("name", "owner", "project")
_NEWEST = (
    sa.select(*(sessions.c[name] for name in _WORDS))
    .order_by(sessions.c.submitted_at.desc())
    .limit(sa.bindparam("most"))
)
_NEWEST_OF = _NEWEST.where(sessions.c.owner == sa.bindparam("of"))
Place = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class SessionFilter:
    """A filter of sessions; None and an empty value: any.

    Ended ones only with `ended` or by their state. `failed`: those alone that ended with FAILURE.
    """

    owner: str | None = None
    states: tuple[SessionState, ...] = ()
    ended: bool = False
    project: str | None = None
    resource_group: str | None = None
    name_contains: str | None = None
    failed: bool = False


@dataclass(frozen=True, slots=True)
class ListPageRequest:
    """A request for a list page. `sort` is one of SORTS; `after` the place of the last session on the page before.

    `offset` sessions of what follows are left out: for pages that one goes to by their number.
    """

    limit: int
    sort: str = "submitted"
    descending: bool = False
    after: Place | None = None
    offset: int = 0


def session_ids_of_page(
    engine: sa.Engine, filtered: SessionFilter, page: ListPageRequest
) -> tuple[list[str], Place | None, int]:
    """Return the page's ids in order, the last one's place if more follow, and how many there are in all."""
    columns = SORTS[page.sort]
    conditions = _conditions(filtered)
    query = sa.select(sessions.c.id, *(column.label(f"key{n}") for n, column in enumerate(columns))).where(*conditions)
    if page.after is not None:
        here, there = sa.tuple_(*columns), sa.tuple_(*(sa.literal(value) for value in page.after))
        query = query.where(here < there if page.descending else here > there)
    query = query.order_by(*(column.desc() if page.descending else column.asc() for column in columns))
    with reading(engine) as connection:
        rows = connection.execute(query.limit(page.limit + 1).offset(page.offset)).all()
        count = connection.execute(sa.select(sa.func.count()).select_from(sessions).where(*conditions)).scalar() or 0
    shown = rows[: page.limit]
    more = len(rows) > page.limit
    return [row[0] for row in shown], tuple(shown[-1][1:]) if more else None, count


def recent_words(engine: sa.Engine, owner: str | None, limit: int) -> dict[str, list[str]]:
    """Return names, owners and projects of the newest sessions, of one owner or of all; each once, in order."""
    query, values = (_NEWEST, {}) if owner is None else (_NEWEST_OF, {"of": owner})
    with reading(engine) as connection:
        rows = connection.execute(query, {"most": limit, **values}).all()
    return {name: sorted({row[number] for row in rows}) for number, name in enumerate(_WORDS)}


def _conditions(filtered: SessionFilter) -> Sequence[sa.ColumnElement[bool] | sa.TextClause]:
    found: list[sa.ColumnElement[bool] | sa.TextClause] = []
    if filtered.states:
        found.append(sessions.c.state.in_([state.value for state in filtered.states]))
    elif filtered.failed:
        # The index by owner has the state, not the result.
        found.append(sessions.c.state.in_([SessionState.TERMINATED.value, SessionState.ERROR.value]))
    elif not filtered.ended:
        found.append(NOT_ENDED)
    if filtered.failed:
        found.append(sessions.c.result == Result.FAILURE.value)
    values = {name: getattr(filtered, name) for name in ("owner", "project", "resource_group")}
    found += [sessions.c[name] == value for name, value in values.items() if value is not None]
    if filtered.name_contains:
        # SQLite's LIKE does not tell capital letters from small ones anyway.
        found.append(sessions.c.name.icontains(filtered.name_contains, autoescape=True))
    return found
