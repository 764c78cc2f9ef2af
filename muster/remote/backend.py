"""`Backend` by a server's public API: the same views, from another machine."""

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from muster.core.model.session import FINAL
from muster.core.values.units import timestamp
from muster.remote.client import Client, ServerError, session_path
from muster.remote.folders import RemoteFolders, RemotePresets, RemoteSecrets, RemoteTokens
from muster.remote.images import RemoteImages
from muster.remote.reach import RemoteReach
from muster.remote.reconnection import Reconnection
from muster.service.agents.views import AgentsView, GpusView
from muster.service.questions.views import DetailsView, DryRunView, HeartbeatView, QueueView, WhyView
from muster.service.sessions.lists import SessionListView
from muster.service.sessions.queries import SessionQuery
from muster.service.sessions.views import SessionsView, SessionView, SubmittedView, UpdatedView
from muster.service.usage.views import CurrentUsagesView, ReportView

# The longest ones as a line of HTTP holds them.
_NAMED_AT_ONCE = 20
_PAGE = 1000
_POLL_S = 0.5
# A quarter of the requests that a server takes of one user, who may do other things while they wait.
_MOST_PER_S = 25.0


class RemoteBackend:
    """A backend by the API: what its token's user sees and may change."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._reconnection = Reconnection(client)

    @property
    def folders(self) -> RemoteFolders:
        return RemoteFolders(self._client)

    @property
    def images(self) -> RemoteImages:
        return RemoteImages(self._client)

    @property
    def reach(self) -> RemoteReach:
        return RemoteReach(self._client)

    @property
    def secrets(self) -> RemoteSecrets:
        return RemoteSecrets(self._client)

    @property
    def presets(self) -> RemotePresets:
        return RemotePresets(self._client)

    @property
    def tokens(self) -> RemoteTokens:
        return RemoteTokens(self._client)

    def submit(self, spec: Mapping[str, Any], owner: str | None, count: int) -> SubmittedView:
        # The key makes a repetition harmless if the first answer was lost.
        key = {"Idempotency-Key": secrets.token_hex(16)}
        parameters = {"owner": owner, "count": count}
        try:
            return self._client.post(SubmittedView, "sessions", spec, parameters, headers=key)
        except ServerError:
            return self._client.post(SubmittedView, "sessions", spec, parameters, headers=key)

    def dry_run(self, spec: Mapping[str, Any], owner: str | None, count: int) -> DryRunView:
        return self._client.post(DryRunView, "sessions/dry-run", spec, {"owner": owner, "count": count})

    def search(self, query: SessionQuery) -> list[SessionView]:
        found: list[SessionView] = []
        cursor = None
        while True:
            left = None if query.limit is None else query.limit - len(found)
            page = self._page(query, cursor, _PAGE if left is None else min(_PAGE, left))
            found += page.items
            cursor = page.next_cursor
            if cursor is None or left == len(page.items):
                return sorted(found, key=lambda session: (session.submitted_at, session.array_index or 0, session.id))

    def named(self, references: Iterable[str]) -> list[SessionView]:
        names = list(references)
        parts = [names[begin : begin + _NAMED_AT_ONCE] for begin in range(0, len(names), _NAMED_AT_ONCE)]
        found = [one for part in parts for one in self._client.get(SessionsView, "lookup", {"session": part}).items]
        return list({session.id: session for session in found}.values())

    def details(self, reference: str) -> DetailsView:
        return self._client.get(DetailsView, session_path(reference))

    def why(self, reference: str, *, what_if: bool) -> WhyView:
        return self._client.get(WhyView, f"{session_path(reference)}/why", {"what_if": what_if})

    def queue(self, group: str | None = None) -> QueueView:
        return self._client.get(QueueView, "queue", {"group": group})

    def agents(self, labels: Mapping[str, str]) -> AgentsView:
        return self._client.get(AgentsView, "agents", {"label": _texts(labels)})

    def gpus(self, labels: Mapping[str, str]) -> GpusView:
        return self._client.get(GpusView, "gpus", {"label": _texts(labels)})

    def terminate(self, references: Iterable[str], *, only_pending: bool = False) -> list[SessionView]:
        return self._changed("cancel" if only_pending else "terminate", references)

    def hold(self, references: Iterable[str]) -> list[SessionView]:
        return self._changed("hold", references)

    def release(self, references: Iterable[str]) -> list[SessionView]:
        return self._changed("release", references)

    def restart(self, references: Iterable[str]) -> list[SessionView]:
        return self._changed("restart", references)

    def extend(self, references: Iterable[str], seconds: int) -> list[SessionView]:
        body = {"sessions": list(references), "seconds": seconds}
        return self._client.post(SessionsView, "sessions/extend", body).items

    def rename(self, reference: str, name: str) -> SessionView:
        return self._client.post(SessionView, f"{session_path(reference)}/rename", {"name": name})

    def update(self, reference: str, changes: Mapping[str, Any]) -> UpdatedView:
        return self._client.patch(UpdatedView, session_path(reference), changes)

    def heartbeat(self) -> HeartbeatView:
        return self._client.get(HeartbeatView, "queue/heartbeat")

    def report(
        self,
        since: float | None = None,
        until: float | None = None,
        by: Sequence[str] = ("user",),
        users: Sequence[str] = (),
        projects: Sequence[str] = (),
    ) -> ReportView:
        parameters = {
            "since": timestamp(since),
            "until": timestamp(until),
            "by": list(by),
            "user": list(users),
            "project": list(projects),
        }
        return self._client.get(ReportView, "report", parameters)

    def usage_samples(self, references: Sequence[str], interval_s: float, *, once: bool) -> Iterator[CurrentUsagesView]:
        while True:
            began = time.monotonic()
            yield self._client.get(CurrentUsagesView, "use", {"session": list(references)})
            if once:
                return
            time.sleep(max(0.0, interval_s - (time.monotonic() - began)))

    def wait_for(
        self,
        sessions: Sequence[SessionView],
        reached: Callable[[SessionView], bool],
        timeout_s: float | None = None,
    ) -> Iterator[list[SessionView]]:
        """Yield as `SessionQueries.wait_for`, across restarts of the server. Raises TimeoutError."""
        now: dict[str, SessionView] = {session.id: session for session in sessions}
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        last: list[SessionView] = []
        while True:
            if list(now.values()) != last:
                last = list(now.values())
                yield last
            waited_for = [s for s in now.values() if not (reached(s) or s.state in FINAL)]
            if not waited_for:
                return
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError
            pause_s = max(_POLL_S, len(waited_for) / _MOST_PER_S)
            time.sleep(pause_s if deadline is None else min(pause_s, max(0.0, deadline - time.monotonic())))
            for session in waited_for:
                now[session.id] = self._reconnection.get(SessionView, session_path(session.id), deadline)

    def _page(self, query: SessionQuery, cursor: str | None, limit: int) -> SessionListView:
        parameters = {
            "state": [state.value for state in query.states],
            "ended": query.ended,
            "mine": query.mine,
            "sort": "-submitted",
            "limit": limit,
            "cursor": cursor,
        }
        return self._client.get(SessionListView, "sessions", parameters)

    def _changed(self, action: str, references: Iterable[str]) -> list[SessionView]:
        return self._client.post(SessionsView, f"sessions/{action}", {"sessions": list(references)}).items


def _texts(labels: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in labels.items()]
