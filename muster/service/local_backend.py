"""The control node's own answers to one user, who sees and changes what their token's scope allows.

Every face that lets others in goes through here, so that ownership is checked in one place.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from muster.core.model.session import Session
from muster.core.model.token import Token
from muster.core.usage.report import usage_report
from muster.core.values.errors import BadInputError, StoreUnavailableError
from muster.service.agents.agents import AgentOccupancy, Agents
from muster.service.agents.reservations import Reservations
from muster.service.agents.resources import ClusterResources, visible_gpus
from muster.service.agents.views import AgentsView, AgentView, GpusView, GpuView
from muster.service.agents.visible_reservations import AdministratorsReservations
from muster.service.at_once import AtOnce
from muster.service.folders.measurements import Measurements
from muster.service.folders.owned import OwnedFolders
from muster.service.identity.owned_tokens import OwnedTokens
from muster.service.identity.permissions import check_admin, check_may_change, owner_of_new
from muster.service.identity.tokens import Tokens
from muster.service.images.commits_under_way import CommitsUnderWay
from muster.service.images.owned import OwnedImages
from muster.service.owned_reach import OwnedReach
from muster.service.questions.details import visible_details
from muster.service.questions.views import (
    DetailsView,
    DryRunView,
    HeartbeatView,
    OverviewView,
    QueueView,
    WhyView,
    session_with_shares,
)
from muster.service.queue.heartbeat import unworked_queue
from muster.service.scheduler.administrators import AdministratorsLimits, AdministratorsWeights
from muster.service.scheduler.overrides import SiteLimits, SiteWeights
from muster.service.secrets.owned import OwnedSecrets
from muster.service.sessions.commands import SessionCommands
from muster.service.sessions.lists import SessionLists
from muster.service.sessions.queries import SessionQueries, SessionQuery
from muster.service.sessions.updates import SessionUpdates
from muster.service.sessions.views import (
    SessionView,
    StoryLineView,
    StoryView,
    SubmittedView,
    UpdatedView,
    session_views,
)
from muster.service.sessions.warnings import warnings_about
from muster.service.specs.launch_choices import LaunchChoices, launch_choices
from muster.service.specs.preparation import SessionPreparation, impossible_waits
from muster.service.specs.presets import OwnedPresets
from muster.service.specs.scope import SessionScope
from muster.service.specs.spec_again import spec_again
from muster.service.usage.reports import DEFAULT_SPAN_S, report_keys
from muster.service.usage.views import CurrentUsagesView, CurrentUsageView, ReportView, SessionHistoryView
from muster.settings import Settings
from muster.store.sessions.submissions import Submission, SubmittedBeforeError
from muster.store.store import Store

if TYPE_CHECKING:  # the scheduler loads slowly
    from muster.service.questions.decided_queue import DecidedQueue
    from muster.service.questions.queue_pages import QueuePages


# Each polls all of the user's agents, for some seconds.
_MEASURED = AtOnce(32, 8, ("sessions", "are measured"))
# Each decides the whole queue anew, some as often as there are suggestions.
_QUESTIONS = AtOnce(16, 4, ("questions", "are answered"))


class KeyUsedError(BadInputError):
    """The idempotency key was used for another request; choose a new one for each."""


class LocalBackend:
    """A backend on the control node's store, for a token's user."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        commits: CommitsUnderWay,
        measurements: Measurements,
        decided: "Callable[[], DecidedQueue]",
        token: Token,
    ) -> None:
        scope = SessionScope(store, settings, token.owner_filter, token.projects)
        self._store = store
        self._settings = settings
        self._commits = commits
        self._measurements = measurements
        self._decided = decided
        self._token = token
        self._secrets = scope.secrets
        self._agents = Agents(store, settings)
        self._queries = SessionQueries(store, scope.visible_owner)
        self._commands = SessionCommands(scope)
        self._updates = SessionUpdates(scope)
        self._preparation = SessionPreparation(scope)

    @property
    def token(self) -> Token:
        return self._token

    @property
    def folders(self) -> OwnedFolders:
        return OwnedFolders(self._store, self._settings, self._token, self._measurements)

    @property
    def images(self) -> OwnedImages:
        return OwnedImages(self._store, self._settings, self._commits, self._token, self.find, self.sees)

    @property
    def reach(self) -> OwnedReach:
        return OwnedReach(self._store, self._settings, self._token, self.find)

    @property
    def resources(self) -> ClusterResources:
        return ClusterResources(self._store, self._settings, self.sees)

    @property
    def secrets(self) -> OwnedSecrets:
        return OwnedSecrets(self._secrets, self._token)

    @property
    def lists(self) -> SessionLists:
        return SessionLists(self._queries)

    @property
    def presets(self) -> OwnedPresets:
        return OwnedPresets(self._store.presets, self._settings, self._token)

    @property
    def reservations(self) -> AdministratorsReservations:
        return AdministratorsReservations(Reservations(self._store, self._settings), self._token)

    @property
    def limits(self) -> AdministratorsLimits:
        return AdministratorsLimits(SiteLimits(self._store, self._settings), self._token)

    @property
    def weights(self) -> AdministratorsWeights:
        return AdministratorsWeights(SiteWeights(self._store, self._settings), self._token)

    @property
    def tokens(self) -> OwnedTokens:
        return OwnedTokens(Tokens(self._store), self._token)

    @property
    def user(self) -> str:
        return self._token.user

    def token_is_valid(self) -> bool:
        """Return whether the token still is: for streams, which outlast a request."""
        return Tokens(self._store).is_valid(self._token)

    def sees(self, session: Session) -> bool:
        """Return whether the user may see the session."""
        return self._queries.sees(session)

    def submit(self, spec: Mapping[str, Any], owner: str | None, count: int, key: str | None = None) -> SubmittedView:
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
            same = list(self._store.get(earlier.session_ids).values())
            return SubmittedView.of(self._queries.visible(same), {}, again=True)
        try:
            impossible = impossible_waits(self._store, self._settings, new, time.time())
            return SubmittedView.of(new, impossible, warnings=warnings_about(self._store, self._settings, new))
        except StoreUnavailableError:
            # They are queued: users who get an error submit them again.
            return SubmittedView.of(new, {})

    def dry_run(self, spec: Mapping[str, Any], owner: str | None, count: int) -> DryRunView:
        """Return what would become of a submit.

        Raises as `submit`, and NotPossibleInStateError where too many of theirs are answered at once.
        """
        from muster.service.questions.dry_run import visible_dry_run  # noqa: PLC0415 - the scheduler loads slowly

        new = self._preparation.sessions(spec, owner_of_new(self._token, owner, "submits"), count, time.time())
        with _QUESTIONS.counted(self.user):
            answer = visible_dry_run(self._store, self._settings, new, self.sees)
        return DryRunView.of(answer, warnings_about(self._store, self._settings, new))

    def overview(self) -> OverviewView:
        """Return the cluster at a glance: the visible sessions, the queues' heads, free capacity, agents in trouble."""
        from muster.service.questions.overview import overview  # noqa: PLC0415 - the scheduler loads slowly

        queue = self._decided().queue()
        return OverviewView.of(overview(self._store, self._settings, queue, self.sees, self.user), self.sees)

    def launch_choices(self) -> LaunchChoices:
        return launch_choices(self._store, self._settings, self._secrets, self.user)

    def spec_again(self, reference: str) -> dict[str, Any]:
        """Return what to submit for another session like this one. Raises as `find`."""
        return spec_again(self._settings, self.find(reference))

    def search(self, query: SessionQuery) -> list[SessionView]:
        return session_views(self._queries.search(query, self.user))

    def named(self, references: Iterable[str]) -> list[SessionView]:
        """Return several sessions, of an array's name all of it. Raises as `session`."""
        return session_views(self._queries.named(references))

    def find(self, reference: str) -> Session:
        """Return a session, for the ways into it. Raises as `session`."""
        return self._queries.find(reference)

    def session(self, reference: str) -> SessionView:
        """Raises NotFoundError and AmbiguousNameError, as if there were only what the user may see."""
        return SessionView.of(self.find(reference))

    def session_with_shares(self, session: Session) -> SessionView:
        """Return the view of a session that the user may see, with what its agents say of its GPU shares."""
        return session_with_shares(session, self._store.agents.all())

    def details(self, reference: str) -> DetailsView:
        """Raises as `session`."""
        return DetailsView.of_details(visible_details(self._store, self.find(reference), self.sees))

    def story(self, reference: str) -> StoryView:
        """Raises as `session`."""
        return StoryView(items=[StoryLineView.of(line) for line in self._queries.story(reference)])

    def usage_history(self, reference: str) -> SessionHistoryView:
        """Return the usage of its kernels over its life. Raises as `session`."""
        session = self.find(reference)
        return SessionHistoryView.of(session, self._store.usage_steps.of_session(session.id))

    def why(self, reference: str, *, what_if: bool) -> WhyView:
        """Raises as `session`; with `what_if` also as `dry_run`, and NotPossibleInStateError where it does not wait."""
        from muster.service.questions.why import visible_why  # noqa: PLC0415 - the scheduler loads slowly

        session, decided = self.find(reference), self._decided()
        with _QUESTIONS.counted(self.user) if what_if else nullcontext():
            return WhyView.of(visible_why(self._store, self._settings, decided, session, self.sees, what_if=what_if))

    def queue(self, group: str | None = None) -> QueueView:
        """Return the pending sessions that the user may see, of all groups or of one; positions count all that wait."""
        from muster.service.questions.queue import visible_queue  # noqa: PLC0415 - the scheduler loads slowly

        queued = visible_queue(self._store, self._settings, self._decided().queue(), self.sees).queued
        return QueueView.of(one for one in queued if group in {None, one.session.spec.resource_group})

    @property
    def queue_pages(self) -> "QueuePages":
        from muster.service.questions.queue_pages import QueuePages  # noqa: PLC0415 - the scheduler loads slowly

        return QueuePages(self._store, self._settings, self._decided(), self.sees)

    def agents(self, labels: Mapping[str, str]) -> AgentsView:
        """Return the agents that have all of the labels.

        Of the sessions on them, only those that the user may see.
        """
        return AgentsView(items=[AgentView.of(use, self.sees) for use in self._uses(labels)])

    def agent(self, agent_id: str) -> AgentView:
        """Raises NotFoundError."""
        (use,) = self._agents.named([agent_id])
        return AgentView.of(use, self.sees)

    def heartbeat(self) -> HeartbeatView:
        """Return whether nobody has worked the queue for too long, though a session waits or runs."""
        return HeartbeatView.of(unworked_queue(self._store, self._settings))

    def gpus(self, labels: Mapping[str, str]) -> GpusView:
        """Return the GPUs of such agents; of others' shares only their sizes."""
        return GpusView(items=[GpuView.of(use) for use in visible_gpus(self._uses(labels), self.sees)])

    def terminate(self, references: Iterable[str], *, only_pending: bool = False) -> list[SessionView]:
        self.check_may_change()
        return self._views(self._commands.terminate(references, self.user, only_pending=only_pending))

    def hold(self, references: Iterable[str]) -> list[SessionView]:
        self.check_may_change()
        return self._views(self._commands.hold(references, self.user))

    def release(self, references: Iterable[str]) -> list[SessionView]:
        self.check_may_change()
        return self._views(self._commands.release(references, self.user))

    def restart(self, references: Iterable[str]) -> list[SessionView]:
        """Raises as `SessionCommands.restart`; administrators may restart any."""
        self.check_may_change()
        is_bound = not self._token.sees_all
        return self._views(self._commands.restart(references, self.user, is_bound=is_bound))

    def extend(self, references: Iterable[str], seconds: int) -> list[SessionView]:
        """Raises as `SessionCommands.extend`; administrators may add any time."""
        self.check_may_change()
        is_bound = not self._token.sees_all
        return self._views(self._commands.extend(references, seconds, self.user, is_bound=is_bound))

    def update(self, reference: str, changes: Mapping[str, Any]) -> UpdatedView:
        """Change what a pending session asks for, or all of an array that are.

        Raises as `SessionUpdates.update`; administrators may give any priority.
        """
        self.check_may_change()
        done = self._updates.update(reference, changes, self.user, is_bound=not self._token.sees_all)
        now = self._queries.visible(done.sessions)
        try:
            impossible = impossible_waits(self._store, self._settings, now, time.time())
            return UpdatedView.of(now, done.changes, impossible, warnings_about(self._store, self._settings, now))
        except StoreUnavailableError:
            return UpdatedView.of(now, done.changes)

    def rename(self, reference: str, name: str) -> SessionView:
        self.check_may_change()
        (view,) = self._views([self._commands.rename(reference, name, self.user)])
        return view

    def report(
        self,
        since: float | None = None,
        until: float | None = None,
        by: Sequence[str] = ("user",),
        users: Sequence[str] = (),
        projects: Sequence[str] = (),
    ) -> ReportView:
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
                return ReportView.of(begins, ends, keys)
            users = [owner]
        runs = self._store.uses.runs(begins, ends, now, users, projects)
        return ReportView.of(begins, ends, keys, usage_report(runs, begins, ends, keys))

    def usage_samples(self, references: Sequence[str], interval_s: float, *, once: bool) -> Iterator[CurrentUsagesView]:
        """Yield as `samples.usage_samples`, of the sessions that the user may see.

        Raises NotPossibleInStateError where so many of theirs are measured at once that others would wait for threads.
        """
        from muster.service.usage.samples import usage_samples  # noqa: PLC0415 - the Docker SDK loads slowly

        with _MEASURED.counted(self.user):
            for sample in usage_samples(self._store, references, self._token.owner_filter, interval_s, once=once):
                yield CurrentUsagesView(items=[CurrentUsageView.of(now) for now in sample])

    def drain(self, agent_id: str, reason: str) -> bool:
        """Return whether it changed. Raises ScopeError and NotFoundError."""
        check_admin(self._token)
        return self._agents.drain([agent_id], reason, self.user)[agent_id]

    def resume(self, agent_id: str) -> bool:
        """Return whether it changed. Raises ScopeError and NotFoundError."""
        check_admin(self._token)
        return self._agents.resume([agent_id])[agent_id]

    def wait_for(
        self,
        sessions: Sequence[SessionView],
        reached: Callable[[SessionView], bool],
        timeout_s: float | None = None,
    ) -> Iterator[list[SessionView]]:
        """Yield as `SessionQueries.wait_for`. Raises TimeoutError."""
        views: dict[str, tuple[Session, SessionView]] = {}

        def view_of(session: Session) -> SessionView:
            # A view takes longer than the comparison, which takes longer than to see that it is the same value.
            known = views.get(session.id)
            if known is None or (known[0] is not session and known[0] != session):
                views[session.id] = (session, SessionView.of(session))
            return views[session.id][1]

        ids = [session.id for session in sessions]
        for now in self._queries.wait_for(ids, lambda session: reached(view_of(session)), timeout_s):
            yield [view_of(session) for session in now]

    def still_runs(self, session: Session) -> bool:
        """Return whether the session runs in the same launch as when it was read."""
        return self._queries.still_runs(session)

    def check_may_change(self) -> None:
        """Raises ScopeError."""
        check_may_change(self._token)

    def _submission(self, key: str, spec: Mapping[str, Any], owner: str, count: int) -> Submission:
        request = json.dumps([spec, owner, count], sort_keys=True)
        return Submission(self.user, key, hashlib.sha256(request.encode()).hexdigest(), time.time())

    def _views(self, changed: Sequence[Session]) -> list[SessionView]:
        """Return the user's views of sessions that they have changed."""
        return session_views(self._queries.visible(changed))

    def _uses(self, labels: Mapping[str, str]) -> list[AgentOccupancy]:
        uses = self._agents.in_use()
        return [use for use in uses if labels.items() <= use.agent.choosable_labels.items()]
