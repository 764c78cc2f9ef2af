"""The control node's own answers, to somebody who sees and changes what his token's scope lets him.

Every face that lets others in goes through here, so that whose session it is is looked at in one place.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from muster.core.images.committed import CommittedImage
from muster.core.model.apps import App
from muster.core.model.session import Session
from muster.core.model.token import Token
from muster.core.usage.report import use_report
from muster.core.values.errors import BadInputError, NotFoundError
from muster.service.agents.agents import AgentUse, agent_use_json, agents_in_use, drain, named_agents, resume
from muster.service.agents.gpu_map import GpuUse, session_shares
from muster.service.agents.resources import ClusterResources, seen_gpus
from muster.service.backend import Details, DryRun, Submitted, Wanted, Why
from muster.service.folders.owned import OwnedFolders
from muster.service.identity.scope import check_admin, check_may_change, owner_of_new
from muster.service.images.commits_under_way import CommitState, Progressed
from muster.service.images.known import KnownImages, known_images, known_json
from muster.service.questions.dry_run import seen_answers
from muster.service.questions.queue import SeenQueue, seen_queue
from muster.service.questions.what_if import Queued, WhatIf
from muster.service.questions.why import seen_sessions, seen_why
from muster.service.reach.app_gateway import openable_app
from muster.service.reach.apps import session_apps
from muster.service.reach.logs import LogWanted, opened_log
from muster.service.reach.terminal import Terminal, open_terminal
from muster.service.secrets.owned import OwnedSecrets
from muster.service.sessions.launch_choices import LaunchChoices, launch_choices, spec_again
from muster.service.sessions.listing import PageWanted, SessionFilter, SessionPage, session_page
from muster.service.sessions.sessions import Sessions, kernel_named
from muster.service.usage.reports import DEFAULT_SPAN_S, Report, report_keys
from muster.service.usage.views import session_uses_json
from muster.store.sessions.submissions import Submission, SubmittedBeforeError

if TYPE_CHECKING:  # the Docker SDK loads slowly
    from muster.service.images.commits import Commit
    from muster.service.usage.live import KernelNow

_MOST_DEPENDENCIES = 10


class KeyUsedError(BadInputError):
    """The idempotency key was used for another request; choose a new one for each."""


class LocalBackend:
    """`Backend` on the control node's store."""

    def __init__(self, service: Sessions, token: Token) -> None:
        self.service = service.of(token.owner_filter)
        self._token = token

    @property
    def token(self) -> Token:
        return self._token

    @property
    def folders(self) -> OwnedFolders:
        return OwnedFolders(self.service, self._token)

    @property
    def resources(self) -> ClusterResources:
        return ClusterResources(self.service, self.sees)

    @property
    def secrets(self) -> OwnedSecrets:
        return OwnedSecrets(self.service, self._token)

    @property
    def user(self) -> str:
        return self._token.user

    def submit(self, spec: Mapping[str, Any], owner: str | None, count: int, key: str | None = None) -> Submitted:
        """A submit with the key of an earlier one of the last day answers with that one's sessions.

        Raises as `Sessions.submit`, ScopeError, and KeyUsedError where the earlier one asked for something else.
        """
        owner = owner_of_new(self._token, owner, "submits")
        submission = None if key is None else self._submission(key, spec, owner, count)
        try:
            if submission is not None:
                self.service.store.submissions.check(submission)
            new = self.service.submit(spec, owner, count, submission)
        except SubmittedBeforeError as earlier:
            if not earlier.same:
                raise KeyUsedError from None
            return Submitted(list(self.service.store.get(earlier.session_ids).values()), again=True)
        return Submitted(new, self.service.impossible(new))

    def dry_run(self, spec: Mapping[str, Any], owner: str | None, count: int) -> DryRun:
        new = self.service.prepared(spec, owner_of_new(self._token, owner, "submits"), count)
        what_if = WhatIf(self.service)
        snapshot = what_if.snapshot()
        indexes = {gpu.uuid: gpu.index for agent in snapshot.agents for gpu in agent.gpus}
        names = {session.id: session.name for session in (*snapshot.sessions, *new) if self.sees(session)}
        return DryRun(seen_answers(self.service, what_if.would_start(new), self.sees), indexes, names)

    def launch_choices(self) -> LaunchChoices:
        return launch_choices(self.service, self.user)

    def spec_again(self, reference: str) -> dict[str, Any]:
        """To submit another session like this one. Raises as `find`."""
        return spec_again(self.service, self.find(reference))

    def search(self, wanted: Wanted) -> list[Session]:
        found = self.service.store.search(
            ended=wanted.ended,
            states=wanted.states,
            owner=self.user if wanted.mine else self._token.owner_filter,
            limit=wanted.limit,
        )
        return self._told(found)

    def page(self, filtered: SessionFilter, wanted: PageWanted, cursor: str | None) -> SessionPage:
        """Of what the user may see, whatever the filter says. Raises as `session_page`."""
        owner = self._token.owner_filter
        narrowed = filtered if owner is None else replace(filtered, owner=owner)
        found = session_page(self.service, narrowed, wanted, cursor)
        return replace(found, sessions=self._told(found.sessions))

    def find(self, reference: str) -> Session:
        """Raises NotFoundError and AmbiguousNameError, as if there were only what the user may see."""
        (found,) = self._told([self.service.store.find(reference, self._token.owner_filter)])
        return found

    def details(self, reference: str) -> Details:
        found = self.find(reference)
        store = self.service.store
        has_apps = bool(found.spec.apps or found.spec.publish)
        has_gpus = any(kernel.allocation and kernel.allocation.gpus for kernel in found.kernels)
        agents = store.agents() if has_apps or has_gpus else ()
        return Details(
            session=found,
            story=store.story(found.id),
            dependencies=self._visible(store.get(found.spec.dependencies[:_MOST_DEPENDENCIES])),
            apps=session_apps(found, agents, time.time()) if has_apps else [],
            shares=session_shares(found, agents) if has_gpus else {},
            uses=session_uses_json(found, store.uses.of_sessions([found.id])),
        )

    def why(self, reference: str, *, what_if: bool) -> Why:
        """Raises NotPossibleInStateError with `what_if` for a session that does not wait."""
        return seen_why(self.service, self.find(reference), self.sees, what_if=what_if)

    def queue(self) -> list[Queued]:
        """Only what the user may see, naming nothing else; positions count all that wait."""
        return list(self.seen_queue().queued)

    def seen_queue(self) -> SeenQueue:
        """The same, with how many wait in all; nothing of it names what the user may not see."""
        return seen_queue(self.service, self.sees)

    def agents(self, labels: Mapping[str, str]) -> list[dict[str, Any]]:
        """Those that have all of the labels, as `muster agents --json` prints them; of sessions those he may see."""
        return [self._agent_json(use) for use in self._uses(labels)]

    def agent(self, agent_id: str) -> dict[str, Any]:
        """Raises NotFoundError."""
        (use,) = named_agents(self.service.snapshot(), [agent_id])
        return self._agent_json(use)

    def images(self) -> list[dict[str, Any]]:
        return [known_json(image) for image in self.known_images().images]

    def known_images(self) -> KnownImages:
        return KnownImages(known_images(self.service, self.user), len(self.service.store.agents()))

    def gpus(self, labels: Mapping[str, str]) -> list[GpuUse]:
        """Those of such agents; of others' shares only how large they are."""
        return seen_gpus(self._uses(labels), self.sees)

    def terminate(self, references: Iterable[str], *, only_pending: bool = False) -> list[Session]:
        self.check_may_change()
        return self.service.terminate(references, self.user, only_pending=only_pending)

    def hold(self, references: Iterable[str]) -> list[Session]:
        self.check_may_change()
        return self._told(self.service.hold(references, self.user))

    def release(self, references: Iterable[str]) -> list[Session]:
        self.check_may_change()
        return self._told(self.service.release(references, self.user))

    def restart(self, references: Iterable[str]) -> list[Session]:
        self.check_may_change()
        return self.service.restart(references, self.user)

    def openable_app(self, reference: str, name: str) -> tuple[Session, App]:
        """Raises ScopeError, NotFoundError and NotPossibleInStateError."""
        self.check_may_change()
        session = self.find(reference)
        return session, openable_app(self.service, session, name)

    def rename(self, reference: str, name: str) -> Session:
        self.check_may_change()
        return self.service.rename(reference, name, self.user)

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
        """An image NAME:TAG of a running kernel (main1 for None), once it is made: that may take minutes.

        `begin_commit` does not wait for that. Raises as `begin_commit`, ImageError and AgentUnreachableError.
        """
        from muster.service.images.commits import committed  # noqa: PLC0415 - the Docker SDK loads slowly

        planned = self._planned_commit(reference, kernel, name, message=message, public=public)
        return committed(self.service, planned, progressed or (lambda _done, _total: None))

    def begin_commit(
        self, reference: str, kernel: str | None, name: str, *, message: str = "", public: bool = False
    ) -> CommitState:
        """The same, made beside: `commit_state` says how far it has come.

        Raises ScopeError, NotFoundError, BadInputError and NameTakenError for the name, and NotPossibleInStateError for
        a session that does not run.
        """
        from muster.service.images.commits import made_of_claim  # noqa: PLC0415 - the Docker SDK loads slowly

        planned = self._planned_commit(reference, kernel, name, message=message, public=public)
        self.service.commits.check_room(self.user)
        self.service.store.images.claim(planned.image)
        return self.service.commits.begin(
            planned.image, lambda progressed: made_of_claim(self.service, planned, progressed)
        )

    def commit_state(self, name: str) -> CommitState:
        """Of NAME:TAG. Raises NotFoundError for what he does not make, did not, or has removed since."""
        known = self.service.commits.find(name)
        repository, _, tag = name.rpartition(":")
        image = self.service.store.images.find(repository, tag)
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
        """What was given and used, a line for each value of the keys `by`; the last 30 days where no time is given.

        Times are seconds since the epoch. Others' use is told to administrators only. Raises BadInputError.
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
        runs = self.service.store.uses.runs(begins, ends, now, users, projects)
        return Report(begins, ends, keys, use_report(runs, begins, ends, keys))

    def looks(self, references: Sequence[str], interval_s: float, *, once: bool) -> Iterator[Sequence["KernelNow"]]:
        """What running sessions use: the named ones, or all that he sees. Raises as `looks.looks`."""
        from muster.service.usage.looks import looks  # noqa: PLC0415 - the Docker SDK loads slowly

        return looks(self.service, references, self._token.owner_filter, interval_s, once=once)

    def drain(self, agent_id: str, reason: str) -> bool:
        """Whether it changed. Raises ScopeError and NotFoundError."""
        check_admin(self._token)
        return drain(self.service, [agent_id], reason or f"drained by {self.user}")[agent_id]

    def resume(self, agent_id: str) -> bool:
        """Whether it changed. Raises ScopeError and NotFoundError."""
        check_admin(self._token)
        return resume(self.service, [agent_id])[agent_id]

    @contextmanager
    def log(self, reference: str, kernel: str | None, wanted: LogWanted) -> Iterator[Iterable[bytes]]:
        session = self.find(reference)
        with opened_log(self.service, session, kernel_named(session, kernel), wanted) as chunks:
            yield chunks

    def open_terminal(self, reference: str, kernel: str | None) -> Terminal:
        """Raises ScopeError, and as `find` and `terminal.open_terminal`."""
        self.check_may_change()
        return open_terminal(self.service, self.find(reference), kernel)

    def wait_for(
        self, sessions: Sequence[Session], reached: Callable[[Session], bool], timeout_s: float | None = None
    ) -> Iterator[list[Session]]:
        return self.service.wait_for(sessions, reached, timeout_s)

    def check_may_change(self) -> None:
        """Raises ScopeError."""
        check_may_change(self._token)

    def _planned_commit(self, reference: str, kernel: str | None, name: str, *, message: str, public: bool) -> "Commit":
        from muster.service.images.commits import CommitWanted, planned_commit  # noqa: PLC0415 - the Docker SDK loads slowly

        self.check_may_change()
        wanted = CommitWanted(kernel, name, message, public)
        return planned_commit(self.service, self.find(reference), wanted, self.user, of_anybody=self._token.sees_all)

    def _submission(self, key: str, spec: Mapping[str, Any], owner: str, count: int) -> Submission:
        request = json.dumps([spec, owner, count], sort_keys=True)
        return Submission(self.user, key, hashlib.sha256(request.encode()).hexdigest(), time.time())

    def _told(self, sessions: Sequence[Session]) -> list[Session]:
        return list(sessions) if self._token.sees_all else seen_sessions(self.service, sessions, self.sees)

    def sees(self, session: Session) -> bool:
        return self._token.owner_filter in {None, session.owner}

    def _visible(self, sessions: Mapping[str, Session]) -> dict[str, Session]:
        return {key: session for key, session in sessions.items() if self.sees(session)}

    def _uses(self, labels: Mapping[str, str]) -> list[AgentUse]:
        uses = agents_in_use(self.service.snapshot())
        return [use for use in uses if labels.items() <= use.agent.choosable_labels.items()]

    def _agent_json(self, use: AgentUse) -> dict[str, Any]:
        seen = {session.id for session in use.sessions if self.sees(session)}
        told = agent_use_json(use)
        return {**told, "sessions": [session for session in told["sessions"] if session["id"] in seen]}
