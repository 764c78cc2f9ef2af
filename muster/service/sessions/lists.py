"""Lists of the sessions that a user may see: as rows for pages, and whole for the API."""

from typing import Self

from pydantic import Field

from muster.core.model.session import Result, Session, SessionState, size_text
from muster.service.sessions.list_pages import ListPageRequest, SessionFilter, SessionListPage
from muster.service.sessions.queries import SessionQueries
from muster.service.sessions.views import ProgressView, SessionView, SlotsView, WaitView, session_views
from muster.service.view import Moment, View


class SessionRowView(View):
    """A session as a row of a page's list: a tenth of a `SessionView`."""

    id: str
    name: str
    owner: str
    state: SessionState
    progress: ProgressView | None
    reason: str
    result: Result | None
    resource_group: str
    size: str
    slots: SlotsView
    agents: list[str]
    submitted_at: Moment
    wait: WaitView | None

    @classmethod
    def of(cls, session: Session) -> Self:
        return cls(
            id=session.id,
            name=session.name,
            owner=session.owner,
            state=session.state,
            progress=ProgressView.of(session.progress),
            reason=session.reason,
            result=session.result,
            resource_group=session.spec.resource_group,
            size=size_text(session.spec, session.given),
            slots=SlotsView.of(session.slots),
            agents=list(session.agents),
            submitted_at=session.submitted_at,
            wait=WaitView.of(session.wait) if session.wait else None,
        )


class SessionRowsView(View):
    """A list page of sessions, as pages show it."""

    items: list[SessionRowView]
    total: int

    @classmethod
    def of(cls, page: SessionListPage) -> Self:
        return cls(items=[SessionRowView.of(session) for session in page.sessions], total=page.total)


class SessionListView(View):
    """A list page of sessions."""

    items: list[SessionView]
    next_cursor: str | None = Field(description="the `cursor` of the next page; null on the last one")
    total: int = Field(description="sessions on all pages")

    @classmethod
    def of(cls, page: SessionListPage) -> Self:
        return cls(items=session_views(page.sessions), next_cursor=page.cursor, total=page.total)


class SessionLists:
    """The lists of what a user may see, whatever the filter says."""

    def __init__(self, queries: SessionQueries) -> None:
        self._queries = queries

    def rows(self, filtered: SessionFilter, request: ListPageRequest) -> SessionRowsView:
        """Return a list page for a page to show."""
        return SessionRowsView.of(self._queries.list_page(filtered, request, None))

    def json_text(self, filtered: SessionFilter, request: ListPageRequest, cursor: str | None) -> str:
        """Return a list page as the JSON of a `SessionListView`. Raises as `session_list_page`.

        The web server passes the text on: views would be made anew there, only to be written.
        """
        return SessionListView.of(self._queries.list_page(filtered, request, cursor)).json_text()

    def recent_words(self) -> dict[str, list[str]]:
        """Return names, owners and projects of the newest sessions, to choose from in a filter."""
        return self._queries.recent_words()
