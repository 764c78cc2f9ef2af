"""`Backend` by a server's API: the same questions, the same values, from another machine."""

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from muster.core.images.committed import CommittedImage
from muster.core.model.heartbeat import Unworked
from muster.core.model.session import FINAL, Session
from muster.core.values.errors import MusterError, NotFoundError
from muster.core.values.moment import timestamp
from muster.remote.client import Client, ServerError
from muster.remote.folders import RemoteFolders, RemoteSecrets
from muster.service.agents.gpu_map import GpuUse
from muster.service.agents.views import AgentsView, AgentView
from muster.service.images.commits_under_way import CommitState, Progressed
from muster.service.images.known import KnownImages
from muster.service.questions.details import Details
from muster.service.questions.dry_run import DryRun
from muster.service.questions.what_if import Queued
from muster.service.questions.why import Why
from muster.service.reach.logs import LogRequest
from muster.service.sessions.commands import Submitted
from muster.service.sessions.list_pages import SessionListPage
from muster.service.sessions.queries import SessionQuery
from muster.service.usage.reports import Report
from muster.service.wire import unpacked

if TYPE_CHECKING:  # the Docker SDK loads slowly
    from muster.service.usage.live import KernelNow

_PAGE = 1000
_POLL_S = 0.5


class RemoteBackend:
    """What its token's user sees and may change."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @property
    def folders(self) -> RemoteFolders:
        return RemoteFolders(self._client)

    @property
    def secrets(self) -> RemoteSecrets:
        return RemoteSecrets(self._client)

    def submit(self, spec: Mapping[str, Any], owner: str | None, count: int) -> Submitted:
        # By its key it is done once, though an answer that was lost on the way is asked for again.
        key = {"Idempotency-Key": secrets.token_hex(16)}
        parameters = {"owner": owner, "count": count}
        try:
            told = self._client.post("sessions", spec, parameters, **key)
        except ServerError:
            told = self._client.post("sessions", spec, parameters, **key)
        done: Submitted = unpacked(Submitted, told)
        return done

    def dry_run(self, spec: Mapping[str, Any], owner: str | None, count: int) -> DryRun:
        told = self._client.post("sessions/dry-run", spec, {"owner": owner, "count": count})
        answered: DryRun = unpacked(DryRun, told)
        return answered

    def search(self, wanted: SessionQuery) -> list[Session]:
        found: list[Session] = []
        cursor = None
        while True:
            left = None if wanted.limit is None else wanted.limit - len(found)
            page = self._page(wanted, cursor, _PAGE if left is None else min(_PAGE, left))
            found += page.sessions
            cursor = page.cursor
            if cursor is None or left == len(page.sessions):
                return sorted(found, key=lambda session: (session.submitted_at, session.array_index or 0, session.id))

    def details(self, reference: str) -> Details:
        details: Details = unpacked(Details, self._client.get(_session(reference)))
        return details

    def why(self, reference: str, *, what_if: bool) -> Why:
        why: Why = unpacked(Why, self._client.get(f"{_session(reference)}/why", {"what_if": what_if}))
        return why

    def queue(self) -> list[Queued]:
        queued: list[Queued] = unpacked(list[Queued], self._client.get("queue"))
        return queued

    def agents(self, labels: Mapping[str, str]) -> list[AgentView]:
        found: AgentsView = unpacked(AgentsView, self._client.get("agents", {"label": _texts(labels)}))
        return found.items

    def gpus(self, labels: Mapping[str, str]) -> list[GpuUse]:
        uses: list[GpuUse] = unpacked(list[GpuUse], self._client.get("gpus", {"label": _texts(labels)}))
        return uses

    def terminate(self, references: Iterable[str], *, only_pending: bool = False) -> list[Session]:
        return self._changed("cancel" if only_pending else "terminate", references)

    def hold(self, references: Iterable[str]) -> list[Session]:
        return self._changed("hold", references)

    def release(self, references: Iterable[str]) -> list[Session]:
        return self._changed("release", references)

    def restart(self, references: Iterable[str]) -> list[Session]:
        return self._changed("restart", references)

    def rename(self, reference: str, name: str) -> Session:
        renamed: Session = unpacked(Session, self._client.post(f"{_session(reference)}/rename", {"name": name}))
        return renamed

    def unworked(self) -> Unworked | None:
        found: Unworked | None = unpacked(Unworked | None, self._client.get("queue/heartbeat"))
        return found

    def known_images(self) -> KnownImages:
        known: KnownImages = unpacked(KnownImages, self._client.get("images"))
        return known

    def report(
        self,
        since: float | None = None,
        until: float | None = None,
        by: Sequence[str] = ("user",),
        users: Sequence[str] = (),
        projects: Sequence[str] = (),
    ) -> Report:
        parameters = {
            "since": timestamp(since),
            "until": timestamp(until),
            "by": list(by),
            "user": list(users),
            "project": list(projects),
        }
        report: Report = unpacked(Report, self._client.get("report", parameters))
        return report

    def looks(self, references: Sequence[str], interval_s: float, *, once: bool) -> Iterator[Sequence["KernelNow"]]:
        from muster.service.usage.live import KernelNow  # noqa: PLC0415 - the Docker SDK loads slowly

        while True:
            began = time.monotonic()
            yield unpacked(list[KernelNow], self._client.get("use", {"session": list(references)}))
            if once:
                return
            time.sleep(max(0.0, interval_s - (time.monotonic() - began)))

    def commit(
        self,
        reference: str,
        kernel: str | None,
        name: str,
        *,
        message: str = "",
        public: bool = False,
        progressed: Progressed | None = None,
    ) -> CommittedImage:
        """Raises as `LocalBackend.commit`; MusterError for what goes wrong once it has begun."""
        wanted = {"kernel": kernel, "name": name, "message": message, "public": public}
        state: CommitState = unpacked(CommitState, self._client.post(f"{_session(reference)}/commit", wanted))
        while state.image is None:
            if state.problem is not None:
                raise MusterError(state.problem)
            if progressed is not None:
                progressed(state.done_bytes, state.total_bytes)
            time.sleep(_POLL_S)
            state = unpacked(CommitState, self._client.get(f"commits/{quote(name, safe='')}"))
        return state.image

    @contextmanager
    def log(self, reference: str, kernel: str | None, wanted: LogRequest) -> Iterator[Iterable[bytes]]:
        wanted.check()
        path = f"{_session(reference)}/kernels/{quote(kernel or '-', safe='')}/log"
        parameters = {
            "follow": wanted.follow,
            "tail": wanted.tail,
            "timestamps": wanted.timestamps,
            "app": wanted.app,
        }
        with self._client.stream(path, parameters) as pieces:
            yield pieces

    def wait_for(
        self, sessions: Sequence[Session], reached: Callable[[Session], bool], timeout_s: float | None = None
    ) -> Iterator[list[Session]]:
        """As `Sessions.wait_for`. Raises TimeoutError."""
        now = {session.id: session for session in sessions}
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        last: list[Session] = []
        while True:
            if list(now.values()) != last:
                last = list(now.values())
                yield last
            waited_for = [s for s in now.values() if not (reached(s) or s.state in FINAL)]
            if not waited_for:
                return
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError
            time.sleep(_POLL_S)
            for session in waited_for:
                now[session.id] = self.details(session.id).session

    def _page(self, wanted: SessionQuery, cursor: str | None, limit: int) -> SessionListPage:
        parameters = {
            "state": [state.value for state in wanted.states],
            "ended": wanted.ended,
            "mine": wanted.mine,
            "sort": "-submitted",
            "limit": limit,
            "cursor": cursor,
        }
        page: SessionListPage = unpacked(SessionListPage, self._client.get("sessions", parameters))
        return page

    def _changed(self, action: str, references: Iterable[str]) -> list[Session]:
        told = self._client.post(f"sessions/{action}", {"sessions": list(references)})
        changed: list[Session] = unpacked(list[Session], told)
        return changed


def _session(reference: str) -> str:
    """Raises NotFoundError for what would be no part of a path."""
    if reference in {"", ".", ".."}:
        raise NotFoundError(f"there is no session {reference!r}; see `muster ls --all`")
    return f"sessions/{quote(reference, safe='')}"


def _texts(labels: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in labels.items()]
