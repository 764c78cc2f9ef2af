"""List pages of sessions, and the cursors that lead from one to the next."""

import base64
import json
from dataclasses import dataclass, replace

from muster.core.model.session import Session
from muster.core.values.errors import BadInputError
from muster.store.sessions.list_pages import SORTS, ListPageRequest, Place, SessionFilter
from muster.store.store import Store

__all__ = ["SORTS", "ListPageRequest", "SessionFilter", "SessionListPage", "session_list_page"]
_NUMBERS = {"submitted": (0, 1), "name": (1,), "owner": (1,), "state": (1,), "resource_group": (1,)}


@dataclass(frozen=True, slots=True)
class SessionListPage:
    """A page of a list. `cursor` leads to the next, None at the last; `total` counts the sessions of all pages."""

    sessions: list[Session]
    cursor: str | None
    total: int


def session_list_page(
    store: Store, filtered: SessionFilter, page: ListPageRequest, cursor: str | None
) -> SessionListPage:
    """Return the page behind the cursor. Raises BadInputError for a cursor of a list in another order."""
    if cursor is not None:
        page = replace(page, after=_place(cursor, page))
    ids, last, total = store.page(filtered, page)
    found = store.get(ids)
    next_cursor = None if last is None else _cursor(page, last)
    return SessionListPage([found[key] for key in ids if key in found], next_cursor, total)


def _cursor(page: ListPageRequest, place: Place) -> str:
    text = json.dumps([page.sort, page.descending, *place])
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _place(cursor: str, page: ListPageRequest) -> Place:
    try:
        decoded = json.loads(base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True))
        sort, descending, *place = decoded
    except (ValueError, TypeError, RecursionError):
        raise _bad_cursor() from None
    numbers = _NUMBERS[page.sort]
    fits = len(place) == len(SORTS[page.sort]) and all(
        isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15
        if n in numbers
        else isinstance(value, str) and "\0" not in value and value.isprintable()
        for n, value in enumerate(place)
    )
    if (sort, descending) != (page.sort, page.descending) or not fits:
        raise _bad_cursor()
    return tuple(place)


def _bad_cursor() -> BadInputError:
    return BadInputError("cursor: it is not one of this list; write next_cursor of the page before, with the same sort")
