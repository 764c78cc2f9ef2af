"""`/sessions`: the list of sessions; terminate, hold and release several at once."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import Response

from muster.core.model.session import SessionState
from muster.core.values.errors import BadInputError
from muster.service.local_backend import LocalBackend
from muster.service.sessions.list_pages import SORTS, ListPageRequest, SessionFilter
from muster.service.sessions.lists import SessionRowsView
from muster.service.sessions.views import SessionView
from muster.web.api.requests import note_sessions
from muster.web.viewer import CurrentViewer, is_htmx

router = APIRouter(prefix="/sessions", include_in_schema=False)
PAGE_LENGTH = 50
MAX_PAGES = 2000
Text = Annotated[str, Query(max_length=255, pattern=r"^[^\x00]*$")]
Selected = Annotated[list[str], Query(max_length=PAGE_LENGTH)]
_COLUMNS = frozenset(SORTS)
_SHOWN = ("active", "all", "failed")


@dataclass(frozen=True, slots=True)
class ListQuery:
    """The query of the list's URL. `show` is `active`, `all`, `failed` or a state."""

    show: str = "active"
    name: str = ""
    owner: str = ""
    project: str = ""
    group: str = ""
    sort: str = "-submitted"

    def url(self, **changes: str) -> str:
        """Return the URL of this list with changes; of its first page."""
        fields = {name: getattr(self, name) for name in self.__slots__} | changes
        defaults = ListQuery()
        changed = {name: value for name, value in fields.items() if value != getattr(defaults, name)}
        return f"/sessions?{urlencode(changed)}"

    def url_sorted_by(self, column: str) -> str:
        """Return the URL of the list sorted by a column; in the other direction where it is sorted by it already."""
        return self.url(sort=f"-{column}" if self.sort == column else column)

    def direction(self, column: str) -> str:
        """Return the value of `aria-sort` for a column."""
        if self.sort.removeprefix("-") != column:
            return "none"
        return "descending" if self.sort.startswith("-") else "ascending"

    def filter(self) -> SessionFilter:
        return SessionFilter(
            owner=self.owner or None,
            states=(SessionState(self.show),) if self.show not in _SHOWN else (),
            ended=self.show == "all",
            failed=self.show == "failed",
            project=self.project or None,
            resource_group=self.group or None,
            name_contains=self.name or None,
        )


@router.get("")
def sessions(
    viewer: CurrentViewer,
    *,
    show: Text = "active",
    name: Text = "",
    owner: Text = "",
    project: Text = "",
    group: Text = "",
    sort: Text = "-submitted",
    page: Annotated[int, Query(ge=1, le=MAX_PAGES)] = 1,
    selected: Selected = [],  # noqa: B006 - FastAPI copies it
) -> Response:
    if show not in {*_SHOWN, *SessionState}:
        raise BadInputError(
            f"show: {show!r} is no state; write active, all, failed or one of {', '.join(SessionState)}"
        )
    if sort.removeprefix("-") not in _COLUMNS:
        raise BadInputError(f"sort: there is no column {sort!r}; write one of {', '.join(sorted(_COLUMNS))}")
    query = ListQuery(show, name.strip(), owner, project, group, sort)

    def found_on(number: int) -> SessionRowsView:
        offset = (number - 1) * PAGE_LENGTH
        request = ListPageRequest(PAGE_LENGTH, sort.removeprefix("-"), descending=sort.startswith("-"), offset=offset)
        return viewer.backend.lists.rows(query.filter(), request)

    def shown() -> Mapping[str, object]:
        found = found_on(page)
        pages = max(1, min(MAX_PAGES, -(-found.total // PAGE_LENGTH)))
        if page > pages:
            # The list has become shorter since somebody came to the page.
            found = found_on(pages)
        # The filter is no part of what is refreshed.
        has_filter = not is_htmx(viewer.connection)
        return {
            "query": query,
            "found": found,
            "page": min(page, pages),
            "pages": pages,
            "selected": frozenset(selected),
            "states": tuple(SessionState),
            "groups": viewer.backend.resources.group_names() if has_filter else (),
            "words": viewer.backend.lists.recent_words() if has_filter else None,
        }

    return viewer.shared_page("sessions.html", shown)


@router.post("/change")
def change(
    request: Request,
    viewer: CurrentViewer,
    *,
    action: Annotated[Literal["terminate", "hold", "release"], Form()],
    selected: Annotated[list[str], Form(max_length=PAGE_LENGTH)] = [],  # noqa: B006
) -> Response:
    if not selected:
        raise BadInputError("no session is selected; select one or more in the list")
    changed = _change(viewer.backend, action, selected)
    note_sessions(request, changed)
    return viewer.announce(_announcement(action, changed))


def _change(backend: LocalBackend, action: str, references: list[str]) -> list[SessionView]:
    actions: dict[str, Any] = {"terminate": backend.terminate, "hold": backend.hold, "release": backend.release}
    changed: list[SessionView] = actions[action](references)
    return changed


def _announcement(action: str, changed: list[SessionView]) -> str:
    past = {"terminate": "is ending", "hold": "is held", "release": "is released"}[action]
    if len(changed) == 1:
        return f"{changed[0].name} {past}"
    several = {"terminate": "are ending", "hold": "are held", "release": "are released"}[action]
    return f"{len(changed)} sessions {several}"
