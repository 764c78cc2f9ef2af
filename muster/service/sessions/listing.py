"""Sessions page by page, and the cursors that lead from one to the next."""

import base64
import json
from dataclasses import dataclass, replace

from muster.core.model.session import Session
from muster.core.values.errors import BadInputError
from muster.service.sessions.sessions import Sessions
from muster.store.sessions.pages import SORTS, PageWanted, Place, SessionFilter

__all__ = ["SORTS", "PageWanted", "SessionFilter", "SessionPage", "session_page"]
_NUMBERS = {"submitted": (0, 1), "name": (1,), "owner": (1,), "state": (1,), "resource_group": (1,)}


@dataclass(frozen=True, slots=True)
class SessionPage:
    """`cursor` leads to the next page; None where this is the last. `total` counts the sessions of all pages."""

    sessions: list[Session]
    cursor: str | None
    total: int


def session_page(service: Sessions, filtered: SessionFilter, page: PageWanted, cursor: str | None) -> SessionPage:
    """Raises BadInputError for a cursor that is not of a list in this order."""
    if cursor is not None:
        page = replace(page, after=_place(cursor, page))
    ids, last, total = service.store.page(filtered, page)
    found = service.store.get(ids)
    next_cursor = None if last is None else _cursor(page, last)
    return SessionPage([found[key] for key in ids if key in found], next_cursor, total)


def _cursor(page: PageWanted, place: Place) -> str:
    text = json.dumps([page.sort, page.descending, *place])
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _place(cursor: str, page: PageWanted) -> Place:
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
