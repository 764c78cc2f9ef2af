"""`/sessions`: the list, and several ended at once."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import Response

from muster.core.model.session import Session, SessionState
from muster.core.values.errors import BadInputError
from muster.service.local_backend import LocalBackend
from muster.service.sessions.list_pages import SORTS, ListPageRequest, SessionFilter
from muster.web.api.requests import note_sessions
from muster.web.viewer import Visiting

router = APIRouter(prefix="/sessions", include_in_schema=False)
PAGE_LENGTH = 50
Text = Annotated[str, Query(max_length=255, pattern=r"^[^\x00]*$")]
Selected = Annotated[list[str], Query(max_length=PAGE_LENGTH)]
_SORTED = frozenset(SORTS)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the address says of the list; `show` is `active`, `all` or a state."""

    show: str = "active"
    name: str = ""
    owner: str = ""
    project: str = ""
    group: str = ""
    sort: str = "-submitted"
    cursor: str = ""

    def with_(self, **changes: str) -> str:
        """The address of the same list with this changed; a page of it only where a cursor is given."""
        fields = {name: getattr(self, name) for name in self.__slots__} | {"cursor": ""} | changes
        defaults = Wanted()
        given = {name: value for name, value in fields.items() if value != getattr(defaults, name)}
        return f"/sessions?{urlencode(given)}"

    def sorted_by(self, column: str) -> str:
        """The address for the other order, where it is sorted by that column."""
        return self.with_(sort=f"-{column}" if self.sort == column else column)

    def direction(self, column: str) -> str:
        """What `aria-sort` says of the column."""
        if self.sort.removeprefix("-") != column:
            return "none"
        return "descending" if self.sort.startswith("-") else "ascending"

    def filter(self) -> SessionFilter:
        return SessionFilter(
            owner=self.owner or None,
            states=(SessionState(self.show),) if self.show not in {"active", "all"} else (),
            ended=self.show == "all",
            project=self.project or None,
            resource_group=self.group or None,
            name_contains=self.name or None,
        )


@router.get("")
def sessions(
    visitor: Visiting,
    *,
    show: Text = "active",
    name: Text = "",
    owner: Text = "",
    project: Text = "",
    group: Text = "",
    sort: Text = "-submitted",
    cursor: Annotated[str, Query(max_length=2000)] = "",
    selected: Selected = [],  # noqa: B006 - FastAPI copies it
) -> Response:
    if show not in {"active", "all", *SessionState}:
        raise BadInputError(f"show: {show!r} is no state; write active, all or one of {', '.join(SessionState)}")
    if sort.removeprefix("-") not in _SORTED:
        raise BadInputError(f"sort: there is no column {sort!r}; write one of {', '.join(sorted(_SORTED))}")
    wanted = Wanted(show, name.strip(), owner, project, group, sort, cursor)
    page = ListPageRequest(PAGE_LENGTH, sort.removeprefix("-"), descending=sort.startswith("-"))
    found = visitor.backend.page(wanted.filter(), page, cursor or None)
    return visitor.page(
        "sessions.html", wanted=wanted, found=found, selected=frozenset(selected), states=tuple(SessionState)
    )


@router.post("/change")
def change(
    request: Request,
    visitor: Visiting,
    *,
    action: Annotated[Literal["terminate", "hold", "release"], Form()],
    selected: Annotated[list[str], Form(max_length=PAGE_LENGTH)] = [],  # noqa: B006
) -> Response:
    if not selected:
        raise BadInputError("no session is selected; tick some first")
    changed = _done(visitor.backend, action, selected)
    note_sessions(request, changed)
    return visitor.announce(_told(action, changed))


def _done(asked: LocalBackend, action: str, references: list[str]) -> list[Session]:
    ways: dict[str, Any] = {"terminate": asked.terminate, "hold": asked.hold, "release": asked.release}
    done: list[Session] = ways[action](references)
    return done


def _told(action: str, changed: list[Session]) -> str:
    past = {"terminate": "ends", "hold": "is held", "release": "is released"}[action]
    if len(changed) == 1:
        return f"{changed[0].name} {past}"
    several = {"terminate": "end", "hold": "are held", "release": "are released"}[action]
    return f"{len(changed)} sessions {several}"
