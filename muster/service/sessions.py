"""What every face of Muster calls: submit, find, wait, end."""

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from muster.core import lifecycle
from muster.core.errors import BadInputError, NotFoundError, NotPossibleInStateError
from muster.core.placement import Policy
from muster.core.plan import Wait, WaitCode
from muster.core.schedule import schedule
from muster.core.session import FINAL, Kernel, Session, SessionState, kernel_count, kernels_of
from muster.core.snapshot import Snapshot
from muster.core.spec import NAME_PATTERN, SessionSpec
from muster.core.spec_errors import validated
from muster.service.access import control_public_key
from muster.service.catalog import load_catalog
from muster.service.wake import wake
from muster.settings import Settings
from muster.store.store import Store

MAX_COUNT = 10_000
MAX_KERNELS_AT_ONCE = 100_000
_IMPOSSIBLE = {WaitCode.NEVER_FITS, WaitCode.NO_AGENTS}


class Sessions:
    """The queue, as its users see it."""

    def __init__(self, store: Store, settings: Settings, clock: Callable[[], float] = time.time) -> None:
        self.store = store
        self.settings = settings
        self._clock = clock

    def submit(self, spec: Mapping[str, Any], owner: str, count: int = 1) -> list[Session]:
        """Queues `count` sessions of one spec: all of them or none.

        Raises SpecError with every error of the spec, NameTakenError, and BadInputError for an impossible count.
        """
        if not 1 <= count <= MAX_COUNT:
            raise BadInputError(f"count: {count} sessions at once are not possible; write 1 to {MAX_COUNT}")
        resolved = self.resolved(spec)
        if count * kernel_count(resolved) > MAX_KERNELS_AT_ONCE:
            raise BadInputError(
                f"count: {count} sessions of {kernel_count(resolved)} kernels are too many at once;"
                f" submit {MAX_KERNELS_AT_ONCE} kernels at the most"
            )
        new = [self._session(resolved, owner, number if count > 1 else None) for number in range(1, count + 1)]
        self.store.add(new)
        wake(self.settings.wake_socket)
        return new

    def resolved(self, spec: Mapping[str, Any]) -> SessionSpec:
        """The spec with image references for catalog names, and the control node's key. Raises SpecError."""
        checked = validated(SessionSpec, spec)
        catalog = load_catalog(self.settings.catalog)
        return checked.model_copy(
            update={
                "ssh_keys": (*checked.ssh_keys, control_public_key(self.settings)),
                "image": catalog.reference_of(checked.image or self.settings.default_image),
                "roles": tuple(
                    role.model_copy(update={"image": catalog.reference_of(role.image)}) if role.image else role
                    for role in checked.roles
                ),
            }
        )

    def snapshot(self) -> Snapshot:
        return self.store.snapshot(self._clock())

    def impossible(self, sessions: Sequence[Session]) -> dict[str, Wait]:
        """By session id, why a session could never start on the agents as they are known."""
        snapshot = self.snapshot()
        if not snapshot.agents:
            return {}
        waits = schedule(snapshot, Policy()).waits
        return {s.id: wait for s in sessions if (wait := waits.get(s.id)) and wait.code in _IMPOSSIBLE}

    def terminate(self, references: Iterable[str], by: str, *, only_pending: bool = False) -> list[Session]:
        """Ends sessions, or cancels them while they are pending.

        A session that has ended, or is about to, is left as it is. All references are looked up before the first is
        ended. Raises NotFoundError, AmbiguousNameError and, with `only_pending`, NotPossibleInStateError.
        """
        found = [self.store.find(reference) for reference in references]
        if only_pending:
            for session in found:
                if session.state not in FINAL | {SessionState.PENDING}:
                    raise NotPossibleInStateError(
                        f"session {session.name} is {session.state}, no longer pending;"
                        f" use `muster terminate {session.name}`"
                    )
        for session in found:
            self._end(session.id, by)
        wake(self.settings.wake_socket)
        return found

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

    def _end(self, session_id: str, by: str) -> None:
        # A pass may change the state between reading and ending: then what it is now is ended.
        for _ in range(20):
            session = self.store.get([session_id])[session_id]
            if session.state in FINAL | {SessionState.TERMINATING}:
                return
            if self.store.apply([lifecycle.end_by_user(session, by, self._clock())]):
                return
        raise NotPossibleInStateError(f"session {session_id} keeps changing; try again")

    def _session(self, spec: SessionSpec, owner: str, number: int | None) -> Session:
        kernel_ids = tuple(str(uuid.uuid4()) for _ in range(kernel_count(spec)))
        name = spec.name or f"session-{kernel_ids[0][:8]}"
        if spec.name and number is not None:
            name = f"{spec.name}-{number}"
        if not NAME_PATTERN.fullmatch(name):
            raise BadInputError(f"name: {name} is longer than 63 characters; choose a shorter one")
        kernels = kernels_of(spec, kernel_ids, spec.image)
        return Session(kernel_ids[0], name, owner, spec.model_copy(update={"name": name}), kernels, self._clock())


def kernel_named(session: Session, name: str | None) -> Kernel:
    """The kernel of that name, main1 by default. Raises NotFoundError."""
    if name is None:
        return session.main
    for kernel in session.kernels:
        if kernel.name == name:
            return kernel
    names = ", ".join(kernel.name for kernel in session.kernels[:10])
    raise NotFoundError(f"session {session.name} has no kernel {name!r}; it has {names}")
