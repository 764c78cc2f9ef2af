"""The control node's own answers to one user, who sees and changes what their token's scope allows.

Every face that lets others in goes through here, so that ownership is checked in one place.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from muster.core.images.committed import CommittedImage
from muster.core.model.apps import App
from muster.core.model.heartbeat import Unworked
from muster.core.model.session import Session, StoryLine, kernel_named
from muster.core.model.token import Token
from muster.core.usage.report import usage_report
from muster.core.values.errors import BadInputError, NotFoundError
from muster.service.agents.agents import Agents, AgentUse
from muster.service.agents.gpu_map import GpuUse, HeldShare, session_shares
from muster.service.agents.resources import ClusterResources, visible_gpus
from muster.service.agents.views import AgentView
from muster.service.folders.owned import OwnedFolders
from muster.service.identity.permissions import check_admin, check_may_change, owner_of_new
from muster.service.identity.tokens import Tokens
from muster.service.images.commits_under_way import CommitState, CommitsUnderWay, Progressed
from muster.service.images.known import KnownImages, known_images
from muster.service.images.views import ImageView
from muster.service.questions.details import Details, has_gpus, visible_details
from muster.service.questions.dry_run import DryRun, visible_dry_run
from muster.service.questions.queue import VisibleQueue, visible_queue
from muster.service.questions.what_if import Queued
from muster.service.questions.why import Why, visible_why
from muster.service.queue.heartbeat import unworked_queue
from muster.service.reach.app_gateway import AppWay, openable_app, way_to_app
from muster.service.reach.logs import LogRequest, opened_log
from muster.service.reach.terminal import Terminal, open_terminal
from muster.service.secrets.owned import OwnedSecrets
from muster.service.secrets.secrets import Secrets
from muster.service.sessions.commands import SessionCommands, Submitted
from muster.service.sessions.launch_choices import LaunchChoices, launch_choices, spec_again
from muster.service.sessions.list_pages import ListPageRequest, SessionFilter, SessionListPage
from muster.service.sessions.preparation import SessionPreparation, impossible_waits
from muster.service.sessions.queries import SessionQueries, SessionQuery
from muster.service.usage.reports import DEFAULT_SPAN_S, Report, report_keys
from muster.settings import Settings
from muster.store.sessions.submissions import Submission, SubmittedBeforeError
from muster.store.store import Store

if TYPE_CHECKING:  # the Docker SDK loads slowly
    from muster.service.images.commits import Commit
    from muster.service.usage.live import KernelNow


class KeyUsedError(BadInputError):
    """The idempotency key was used for another request; choose a new one for each."""


class LocalBackend:
    """`Backend` on the control node's store, for a token's user."""

    def __init__(self, store: Store, settings: Settings, commits: CommitsUnderWay, token: Token) -> None:
        secrets = Secrets(store.secrets, settings.seal_key)
        owner = token.owner_filter
        self._store = store
        self._settings = settings
        self._commits = commits
        self._token = token
        self._secrets = secrets
        self._agents = Agents(store, settings)
        self._queries = SessionQueries(store, owner)
        self._commands = SessionCommands(store, settings, secrets, visible_owner=owner)
        self._preparation = SessionPreparation(store, settings, secrets, owner)

    @property
    def token(self) -> Token:
        return self._token

    @property
    def folders(self) -> OwnedFolders:
        return OwnedFolders(self._store, self._settings, self._token)

    @property
    def resources(self) -> ClusterResources:
        return ClusterResources(self._store, self._settings, self.sees)

    @property
    def secrets(self) -> OwnedSecrets:
        return OwnedSecrets(self._secrets, self._token)

    @property
    def user(self) -> str:
        return self._token.user

    def token_is_valid(self) -> bool:
        """Return whether the token still is: for streams, which outlast a request."""
        return Tokens(self._store).is_valid(self._token)

    def sees(self, session: Session) -> bool:
        """Return whether the user may see the session."""
        return self._queries.sees(session)

    def submit(self, spec: Mapping[str, Any], owner: str | None, count: int, key: str | None = None) -> Submitted:
        """Queue new sessions. With the key of a submit of the last day, return that one's sessions instead.

        Raises as `SessionCommands.submit`, ScopeError, and KeyUsedError where the earlier submit was another request.
        """
        owner = owner_of_new(self._token, owner, "submits")
        submission = None if key is None else self._submission(key, spec, owner, count)
        try:
            if submission is not None:
                self._store.submissions.check(submission)
            new = self._commands.submit(spec, owner, count, submission)
        except SubmittedBeforeError as earlier:
            if not earlier.same:
                raise KeyUsedError from None
            return Submitted(list(self._store.get(earlier.session_ids).values()), again=True)
        return Submitted(new, impossible_waits(self._store, self._settings, new, time.time()))

    def dry_run(self, spec: Mapping[str, Any], owner: str | None, count: int) -> DryRun:
        """Return what would become of a submit. Raises as `submit`."""
        new = self._preparation.sessions(spec, owner_of_new(self._token, owner, "submits"), count, time.time())
        return visible_dry_run(self._store, self._settings, new, self.sees)

    def launch_choices(self) -> LaunchChoices:
        return launch_choices(self._store, self._settings, self._secrets, self.user)

    def spec_again(self, reference: str) -> dict[str, Any]:
        """Return what to submit for another session like this one. Raises as `find`."""
        return spec_again(self._settings, self.find(reference))

    def search(self, query: SessionQuery) -> list[Session]:
        return self._queries.search(query, self.user)

    def page(self, filtered: SessionFilter, request: ListPageRequest, cursor: str | None) -> SessionListPage:
        """Return a list page of what the user may see, whatever the filter says. Raises as `session_list_page`."""
        return self._queries.list_page(filtered, request, cursor)

    def find(self, reference: str) -> Session:
        """Raises NotFoundError and AmbiguousNameError, as if there were only what the user may see."""
        return self._queries.find(reference)

    def details(self, reference: str) -> Details:
        return visible_details(self._store, self.find(reference), self.sees)

    def story(self, reference: str) -> Sequence[StoryLine]:
        """Raises as `find`."""
        return self._queries.story(reference)

    def shares(self, session: Session) -> Mapping[str, Sequence[HeldShare]]:
        """Return by kernel id the GPU shares of a session that the user may see."""
        return session_shares(session, self._store.agents()) if has_gpus(session) else {}

    def why(self, reference: str, *, what_if: bool) -> Why:
        """Raises NotPossibleInStateError with `what_if` for a session that does not wait."""
        return visible_why(self._store, self._settings, self.find(reference), self.sees, what_if=what_if)

    def queue(self) -> list[Queued]:
        """Return the pending sessions that the user may see; their positions count all that wait."""
        return list(self.visible_queue().queued)

    def visible_queue(self) -> VisibleQueue:
        """Return the same, with how many wait in all."""
        return visible_queue(self._store, self._settings, self.sees)

    def agents(self, labels: Mapping[str, str]) -> list[AgentView]:
        """Return the agents that have all of the labels.

        Of the sessions on them, only those that the user may see.
        """
        return [AgentView.of(use, self.sees) for use in self._uses(labels)]

    def agent(self, agent_id: str) -> AgentView:
        """Raises NotFoundError."""
        (use,) = self._agents.named([agent_id])
        return AgentView.of(use, self.sees)

    def images(self) -> list[ImageView]:
        return [ImageView.of(image) for image in self.known_images().images]

    def unworked(self) -> Unworked | None:
        """Return for how long nobody has worked the queue, if that is too long and a session waits or runs."""
        return unworked_queue(self._store, self._settings)

    def known_images(self) -> KnownImages:
        return KnownImages(known_images(self._store, self._settings, self.user), len(self._store.agents()))

    def gpus(self, labels: Mapping[str, str]) -> list[GpuUse]:
        """Return the GPUs of such agents; of others' shares only their sizes."""
        return visible_gpus(self._uses(labels), self.sees)

    def terminate(self, references: Iterable[str], *, only_pending: bool = False) -> list[Session]:
        self.check_may_change()
        return self._commands.terminate(references, self.user, only_pending=only_pending)

    def hold(self, references: Iterable[str]) -> list[Session]:
        self.check_may_change()
        return self._queries.visible(self._commands.hold(references, self.user))

    def release(self, references: Iterable[str]) -> list[Session]:
        self.check_may_change()
        return self._queries.visible(self._commands.release(references, self.user))

    def restart(self, references: Iterable[str]) -> list[Session]:
        self.check_may_change()
        return self._commands.restart(references, self.user)

    def rename(self, reference: str, name: str) -> Session:
        self.check_may_change()
        return self._commands.rename(reference, name, self.user)

    def openable_app(self, reference: str, name: str) -> tuple[Session, App]:
        """Raises ScopeError, NotFoundError and NotPossibleInStateError."""
        self.check_may_change()
        session = self.find(reference)
        return session, openable_app(self._store.agents(), session, name)

    def way_to_app(self, session: Session, app: App) -> AppWay:
        """Open a tunnel to an app of `openable_app`. Raises MusterError."""
        return way_to_app(self._settings, self._store.agents(), session, app)

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
        """Make an image NAME:TAG of a running kernel (main1 for None) and return it; this may take minutes.

        `begin_commit` does not wait for that. Raises as `begin_commit`, ImageError and AgentUnreachableError.
        """
        from muster.service.images.commits import committed  # noqa: PLC0415 - the Docker SDK loads slowly

        planned = self._planned_commit(reference, kernel, name, message=message, public=public)
        return committed(self._store, self._settings, planned, progressed or (lambda _done, _total: None))

    def begin_commit(
        self, reference: str, kernel: str | None, name: str, *, message: str = "", public: bool = False
    ) -> CommitState:
        """Make the same in the background: `commit_state` says how far it has come.

        Raises ScopeError, NotFoundError, BadInputError and NameTakenError for the name, and NotPossibleInStateError for
        a session that does not run.
        """
        from muster.service.images.commits import made_of_claim  # noqa: PLC0415 - the Docker SDK loads slowly

        planned = self._planned_commit(reference, kernel, name, message=message, public=public)
        self._commits.check_room(self.user)
        self._store.images.claim(planned.image)
        return self._commits.begin(
            planned.image, lambda progressed: made_of_claim(self._store, self._settings, planned, progressed)
        )

    def commit_state(self, name: str) -> CommitState:
        """Return the build state of NAME:TAG. Raises NotFoundError if the user never built it or has removed it."""
        known = self._commits.find(name)
        repository, _, tag = name.rpartition(":")
        image = self._store.images.find(repository, tag)
        if image is not None and image.is_made:
            known = CommitState(name, image.owner, image=image)
        elif image is not None and (known is None or known.state != "making"):
            # Another process makes it.
            known = CommitState(name, image.owner)
        elif image is None and known is not None and known.state == "made":
            known = None
        if known is None or self._token.owner_filter not in {None, known.owner}:
            raise NotFoundError(f"no image {name!r} is being made, or was; see `muster images`")
        return known

    def report(
        self,
        since: float | None = None,
        until: float | None = None,
        by: Sequence[str] = ("user",),
        users: Sequence[str] = (),
        projects: Sequence[str] = (),
    ) -> Report:
        """Return what was allocated and used, a line for each value of the keys `by`.

        Times are seconds since the epoch; without them it is about the last 30 days. Only administrators get others'
        usage. Raises BadInputError.
        """
        now = time.time()
        ends = now if until is None else until
        begins = ends - DEFAULT_SPAN_S if since is None else since
        if ends <= begins:
            raise BadInputError("until: it is not after since; leave it out, or give a later time")
        keys = report_keys(by)
        if (owner := self._token.owner_filter) is not None:
            if users and owner not in users:
                return Report(begins, ends, keys, [])
            users = [owner]
        runs = self._store.uses.runs(begins, ends, now, users, projects)
        return Report(begins, ends, keys, usage_report(runs, begins, ends, keys))

    def looks(self, references: Sequence[str], interval_s: float, *, once: bool) -> Iterator[Sequence["KernelNow"]]:
        """Yield what running sessions use: the named ones, or all that the user may see. Raises as `looks.looks`."""
        from muster.service.usage.looks import looks  # noqa: PLC0415 - the Docker SDK loads slowly

        return looks(self._store, references, self._token.owner_filter, interval_s, once=once)

    def drain(self, agent_id: str, reason: str) -> bool:
        """Return whether it changed. Raises ScopeError and NotFoundError."""
        check_admin(self._token)
        return self._agents.drain([agent_id], reason or f"drained by {self.user}")[agent_id]

    def resume(self, agent_id: str) -> bool:
        """Return whether it changed. Raises ScopeError and NotFoundError."""
        check_admin(self._token)
        return self._agents.resume([agent_id])[agent_id]

    @contextmanager
    def log(self, reference: str, kernel: str | None, request: LogRequest) -> Iterator[Iterable[bytes]]:
        session = self.find(reference)
        runtime_path = self._settings.launch_policy().runtime_path
        with opened_log(self._store, runtime_path, session, kernel_named(session, kernel), request) as chunks:
            yield chunks

    def open_terminal(self, reference: str, kernel: str | None) -> Terminal:
        """Raises ScopeError, and as `find` and `terminal.open_terminal`."""
        self.check_may_change()
        return open_terminal(self._settings, self._store.agents(), self.find(reference), kernel)

    def wait_for(
        self, sessions: Sequence[Session], reached: Callable[[Session], bool], timeout_s: float | None = None
    ) -> Iterator[list[Session]]:
        return self._queries.wait_for(sessions, reached, timeout_s)

    def still_runs(self, session: Session) -> bool:
        """Return whether the session runs in the same launch as when it was read."""
        return self._queries.still_runs(session)

    def check_may_change(self) -> None:
        """Raises ScopeError."""
        check_may_change(self._token)

    def _planned_commit(self, reference: str, kernel: str | None, name: str, *, message: str, public: bool) -> "Commit":
        from muster.service.images.commits import CommitRequest, planned_commit  # noqa: PLC0415 - the Docker SDK loads slowly

        self.check_may_change()
        request = CommitRequest(kernel, name, message, public)
        return planned_commit(
            self._store, self._settings, self.find(reference), request, self.user, of_anybody=self._token.sees_all
        )

    def _submission(self, key: str, spec: Mapping[str, Any], owner: str, count: int) -> Submission:
        request = json.dumps([spec, owner, count], sort_keys=True)
        return Submission(self.user, key, hashlib.sha256(request.encode()).hexdigest(), time.time())

    def _uses(self, labels: Mapping[str, str]) -> list[AgentUse]:
        uses = self._agents.in_use()
        return [use for use in uses if labels.items() <= use.agent.choosable_labels.items()]
