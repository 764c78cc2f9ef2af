"""What every face of Muster calls: submit, find, wait, hold, end."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from muster.core.lifecycle import transitions
from muster.core.lifecycle.transitions import Event
from muster.core.model.apps import with_kinds
from muster.core.model.plan import Wait
from muster.core.model.policy import SchedulingPolicy
from muster.core.model.session import FINAL, Kernel, LaunchStep, Session, SessionState
from muster.core.model.snapshot import Snapshot
from muster.core.notify.callback_hosts import check_callback
from muster.core.scheduling.limits import pending_refusal
from muster.core.scheduling.schedule import schedule
from muster.core.spec.errors import validated
from muster.core.spec.session_spec import NAME_PATTERN, SessionSpec
from muster.core.values.errors import BadInputError, NotFoundError, NotPossibleInStateError
from muster.core.whatif.explain import HOPELESS
from muster.service.images.catalog import with_catalog_images
from muster.service.images.commits_under_way import CommitsUnderWay
from muster.service.reach.ssh_access import control_public_key
from muster.service.secrets.secrets import Secrets
from muster.service.sessions.dependencies import with_ids_of_dependencies
from muster.service.sessions.idle_bounds import with_site_bounds
from muster.service.sessions.mounted_folders import with_folders
from muster.service.sessions.new_sessions import new_sessions
from muster.service.wake import wake
from muster.settings import Settings
from muster.store.sessions.submissions import Submission
from muster.store.store import Store

_TRIES = 20


class Sessions:
    """The queue, as its users see it."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        clock: Callable[[], float] = time.time,
        owner: str | None = None,
        commits: CommitsUnderWay | None = None,
    ) -> None:
        """With an `owner`, references mean his sessions only."""
        self._owner = owner
        self.store = store
        self.settings = settings
        self.secrets = Secrets(store.secrets, settings.seal_key)
        self.commits = commits or CommitsUnderWay()
        self._clock = clock

    def of(self, owner: str | None) -> "Sessions":
        """The same for somebody who sees this owner's sessions only; None: everybody's."""
        return Sessions(self.store, self.settings, self._clock, owner, self.commits)

    def submit(
        self, spec: Mapping[str, Any], owner: str, count: int = 1, submission: Submission | None = None
    ) -> list[Session]:
        """Queues `count` sessions of one spec, or one for each index of its array: all of them or none.

        Raises as `prepared`, NameTakenError, SubmittedBeforeError where the submission was done already, and
        BadInputError where a limit refuses them.
        """
        new = self.prepared(spec, owner, count)
        refusal = pending_refusal(self.settings.limits.limits(), self._pending(), new)
        if refusal is not None:
            raise BadInputError(refusal)
        self.store.add(new, submission)
        wake(self.settings, self.store)
        return new

    def prepared(self, spec: Mapping[str, Any], owner: str, count: int = 1) -> list[Session]:
        """The sessions that `submit` would queue.

        Raises SpecError with every error of the spec, and BadInputError for an impossible count.
        """
        now = self._clock()
        resolved = self.resolved(spec, now, owner)
        self.secrets.check(resolved, owner)
        return with_folders(self.store, new_sessions(resolved, owner, count, now))

    def resolved(self, spec: Mapping[str, Any], now: float, owner: str) -> SessionSpec:
        """The spec as it is kept: with points in time for times, ids for dependencies, image references for catalog
        names, and the control node's key. Raises SpecError.
        """
        local = datetime.fromtimestamp(now)  # noqa: DTZ006 - how far its zone is from UTC depends on the date
        checked = with_ids_of_dependencies(validated(SessionSpec, spec, local), self.store, self._owner)
        checked = with_kinds(checked, self.settings.app_kinds(), self.settings.launch_policy().sshd_port)
        checked = with_catalog_images(checked, self.settings, self.store, owner)
        checked = with_site_bounds(checked, self.settings.idle)
        check_callback(checked, self.settings.allowed_callbacks)
        return checked.model_copy(update={"ssh_keys": (*checked.ssh_keys, control_public_key(self.settings))})

    def snapshot(self) -> Snapshot:
        return self.store.snapshot(self._clock())

    def impossible(self, sessions: Sequence[Session]) -> dict[str, Wait]:
        """By session id, why a session could never start on the agents as they are known."""
        agents = self.store.agents()
        if not agents:
            return {}
        # Without the rest of the queue: what never starts does not wait for the others.
        before = self.store.get(sorted({key for session in sessions for key in session.spec.dependencies}))
        ended = {key: session for key, session in before.items() if session.state in FINAL}
        queue = (*sessions, *(session for session in before.values() if session.state not in FINAL))
        policy = SchedulingPolicy(limits=self.settings.limits.limits())
        waits = schedule(Snapshot(agents, queue, self._clock(), policy=policy, ended=ended)).waits
        return {s.id: wait for s in sessions if (wait := waits.get(s.id)) and wait.code in HOPELESS}

    def terminate(self, references: Iterable[str], by: str, *, only_pending: bool = False) -> list[Session]:
        """Ends sessions, or cancels them while they are pending; of an array all, or all that are pending.

        A session that has ended, or is about to, is left as it is. All references are looked up before the first is
        ended. Raises NotFoundError, AmbiguousNameError and, with `only_pending`, NotPossibleInStateError.
        """

        def end(session: Session, now: float) -> Event | None:
            if session.state in FINAL or session.ends_for_good:
                return None
            return transitions.end_by_user(session, by, now)

        found = self._found(references)
        if only_pending:
            return self._changed([_pending(same, "cancelled", or_ended=True) for same in found], end)
        return self._changed(found, end)

    def hold(self, references: Iterable[str], by: str) -> list[Session]:
        """Keeps pending sessions from starting; of an array those that are pending. Raises as `terminate`."""

        def hold(session: Session, now: float) -> Event | None:
            if session.state is not SessionState.PENDING or session.held_by is not None:
                return None
            return transitions.hold(session, by, now)

        return self._changed([_pending(same, "held") for same in self._found(references)], hold)

    def release(self, references: Iterable[str], by: str) -> list[Session]:
        """Lets held sessions wait for their turn again; what is not held is left as it is. Raises as `terminate`."""

        def release(session: Session, now: float) -> Event | None:
            if session.state is not SessionState.PENDING or session.held_by is None:
                return None
            return transitions.release(session, by, now)

        return self._changed([_pending(same, "released") for same in self._found(references)], release)

    def restart(self, references: Iterable[str], by: str) -> list[Session]:
        """Stops running sessions and launches them again where they are; of an array those that run.

        One that is being restarted already is left as it is. Raises as `terminate`.
        """

        def restart(session: Session, now: float) -> Event | None:
            if session.step is LaunchStep.RESTARTING or session.state is not SessionState.RUNNING:
                return None
            return transitions.restart(session, by, now)

        return self._changed([_running(same) for same in self._found(references)], restart)

    def rename(self, reference: str, name: str, by: str) -> Session:
        """Gives a session another name. Raises BadInputError, NameTakenError and NotPossibleInStateError."""
        if not NAME_PATTERN.fullmatch(name):
            raise BadInputError(
                f"NEW: {name!r} is not a session name; use letters, digits, dots, dashes and underscores, 63 at most"
            )
        session = self.store.find(reference, self._owner)
        if session.array_id is not None:
            raise NotPossibleInStateError(
                f"session {session.name} is one of an array, which its name tells; submit it anew under another name"
            )
        self.store.rename(session, name, by, self._clock())
        wake(self.settings, self.store)
        return self.store.get([session.id])[session.id]

    def wait_for(
        self, sessions: Sequence[Session], reached: Callable[[Session], bool], timeout_s: float | None = None
    ) -> Iterator[list[Session]]:
        """The sessions as they are, each time one of them changed, until all have `reached` or are final.

        Raises TimeoutError.
        """
        ids = [session.id for session in sessions]
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        last: list[Session] = []
        while True:
            by_id = self.store.get(ids)
            now = [by_id[session_id] for session_id in ids]
            if now != last:
                yield now
                last = now
            if all(reached(session) or session.state in FINAL for session in now):
                return
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError
            time.sleep(0.05)

    def _pending(self) -> Iterator[Session]:
        yield from self.store.search(states=[SessionState.PENDING])

    def _found(self, references: Iterable[str]) -> list[list[Session]]:
        """For each reference its session, or those of its array."""
        return [self.store.find_all(reference, self._owner) for reference in references]

    def _changed(
        self, found: Iterable[Sequence[Session]], change: Callable[[Session, float], Event | None]
    ) -> list[Session]:
        """The sessions after each has changed as it needs."""
        ids = list(dict.fromkeys(session.id for same in found for session in same))
        # A pass may change a session between reading and changing it: then what it is now is changed.
        for _ in range(_TRIES):
            by_id = self.store.get(ids)
            now = self._clock()
            events = [event for key in ids if (event := change(by_id[key], now))]
            if not events:
                wake(self.settings, self.store)
                return [by_id[key] for key in ids]
            self.store.apply(events)
        raise NotPossibleInStateError("the sessions keep changing; try again")


def _pending(same: Sequence[Session], what: str, *, or_ended: bool = False) -> Sequence[Session]:
    """Those that are pending; `or_ended`: if none are and all have ended, all. Raises NotPossibleInStateError."""
    pending = [session for session in same if session.state is SessionState.PENDING]
    others = [session for session in same if session.state not in FINAL]
    if pending:
        return pending
    if or_ended and not others:
        return same
    session = (others or same)[0]
    remedy = f"; use `muster terminate {session.name}`" if others else ""
    raise NotPossibleInStateError(
        f"session {session.name} is {session.state}; only a PENDING session can be {what}{remedy}"
    )


def _running(same: Sequence[Session]) -> Sequence[Session]:
    """Those that run, or are being restarted. Raises NotPossibleInStateError where there is none."""
    running = [s for s in same if s.state is SessionState.RUNNING or s.step is LaunchStep.RESTARTING]
    if not running:
        raise NotPossibleInStateError(
            f"session {same[0].name} is {same[0].state}; only a RUNNING session can be restarted"
        )
    return running


def kernel_named(session: Session, name: str | None) -> Kernel:
    """The kernel of that name, main1 by default. Raises NotFoundError."""
    if name is None:
        return session.main
    for kernel in session.kernels:
        if kernel.name == name:
            return kernel
    names = ", ".join(kernel.name for kernel in session.kernels[:10])
    raise NotFoundError(f"session {session.name} has no kernel {name!r}; it has {names}")
