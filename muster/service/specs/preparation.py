"""New sessions before they are queued: specs resolved and checked, as the queue will keep them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from muster.core.lifecycle.update import update_errors
from muster.core.model.apps import with_kinds
from muster.core.model.policy import SchedulingPolicy
from muster.core.model.session import FINAL, Session
from muster.core.model.snapshot import Snapshot
from muster.core.model.wait import Wait
from muster.core.notify.callback_hosts import check_callback
from muster.core.spec.errors import checked, root_field
from muster.core.spec.scheduling import MAX_PRIORITY
from muster.core.spec.session_spec import SessionSpec
from muster.core.values.errors import FieldError, SpecError
from muster.core.values.units import local_time
from muster.core.whatif.explain import HOPELESS
from muster.service.images.catalog import with_catalog_images
from muster.service.reach.ssh_access import control_public_key
from muster.service.scheduler.known_groups import check_group
from muster.service.scheduler.overrides import limits_in_force
from muster.service.specs.dependencies import with_ids_of_dependencies
from muster.service.specs.disk_bound import with_disk_limit
from muster.service.specs.folder_check import check_folders, folders_of
from muster.service.specs.idle_bounds import with_site_bounds
from muster.service.specs.new_sessions import new_sessions
from muster.service.specs.scope import SessionScope
from muster.settings import Settings
from muster.store.store import Store


class SessionPreparation:
    """The preparation of sessions from specs, which may name sessions and projects of a scope."""

    def __init__(self, scope: SessionScope) -> None:
        self._projects = scope.projects
        self._store = scope.store
        self._settings = scope.settings
        self._secrets = scope.secrets
        self._visible_owner = scope.visible_owner

    def sessions(
        self, spec: Mapping[str, Any], owner: str, count: int, now: float, *, asks_agents: bool = False
    ) -> list[Session]:
        """Return `count` sessions of one spec, or one for each index of its array; nothing is queued.

        With `asks_agents`, agents say anew whether they have the folders that seem to be missing.
        Raises SpecError with every error of the spec, and BadInputError for an impossible count.
        """
        resolved = self._resolved(spec, owner, now, *self._checks(owner, asks_agents=asks_agents))
        return self.with_folders(new_sessions(resolved, owner, count, now))

    def updated(
        self, session: Session, values: Mapping[str, Any], since: float, *, whole_array: bool, is_bound: bool
    ) -> SessionSpec:
        """Return the spec of these values for a pending session, as the queue keeps it.

        All of it is checked as if it were submitted at `since`, but that the session keeps the priority that it has.
        With `whole_array` all of its array get the spec; without `is_bound` any priority may be given. Raises
        SpecError.
        """
        owner = session.owner
        return self._resolved(
            values,
            owner,
            since,
            lambda spec: _check(update_errors(session, spec, whole_array=whole_array)),
            *self._checks(owner, asks_agents=True),
            granted=session.spec.priority if is_bound else MAX_PRIORITY,
        )

    def with_folders(self, sessions: Sequence[Session]) -> list[Session]:
        """Return sessions of one owner and spec with the folders that they mount. Raises SpecError."""
        if not sessions:
            return []
        mounted = folders_of(self._store, sessions[0].spec, sessions[0].owner)
        return [replace(session, folders=mounted) for session in sessions]

    def resolved(self, spec: Mapping[str, Any], owner: str, now: float) -> SessionSpec:
        """Return the spec as the queue keeps it. Raises SpecError.

        It has points in time for times, ids for dependencies, image references for the catalog's names, and the
        control node's key.
        """
        return self._resolved(spec, owner, now)

    def _checks(self, owner: str, *, asks_agents: bool) -> Iterator[Callable[[SessionSpec], None]]:
        """Yield the checks of a spec that is to be queued."""
        store, settings = self._store, self._settings
        yield lambda spec: check_group(store, settings, spec)
        yield lambda spec: self._secrets.check(spec, owner)
        yield lambda spec: check_folders(store, settings, spec, owner, asks_agents=asks_agents)

    def _resolved(
        self,
        values: Mapping[str, Any],
        owner: str,
        now: float,
        *checks: Callable[[SessionSpec], None],
        granted: int = 0,
    ) -> SessionSpec:
        """Return the spec as the queue keeps it. Raises SpecError with the errors of all steps, and of `checks`.

        A priority up to `granted` needs no leave.
        """
        settings = self._settings
        apps = settings.app_kinds(), settings.launch_policy().sshd_port
        steps: list[Callable[[SessionSpec], SessionSpec | None]] = [
            lambda spec: self._check_leave(spec, owner, granted),
            lambda spec: with_ids_of_dependencies(spec, self._store, self._visible_owner),
            lambda spec: with_kinds(spec, *apps),
            lambda spec: with_catalog_images(spec, settings, self._store, owner),
            lambda spec: with_site_bounds(spec, settings),
            lambda spec: with_disk_limit(spec, settings.disk_limit),
            lambda spec: check_callback(spec, settings.allowed_callbacks),
            *checks,
        ]
        found = checked(SessionSpec, values, local_time(now))
        errors, spec = list(found.errors), found.part
        if spec is None:
            raise SpecError(errors)
        for step in steps:
            try:
                spec = step(spec) or spec
            except SpecError as error:
                # A field whose own value is wrong has its default here, of which nobody need hear.
                errors += [item for item in error.errors if root_field(item.field) not in found.left_out]
        if errors:
            raise SpecError(errors)
        return spec.model_copy(update={"ssh_keys": (*spec.ssh_keys, control_public_key(settings))})

    def _check_leave(self, spec: SessionSpec, owner: str, granted: int) -> None:
        """Check what the site grants by owner. Raises SpecError."""
        errors = []
        if refusal := self._settings.members.refusal(owner, spec.project, self._projects):
            errors.append(refusal)
        most = self._settings.most_priority_of(owner)
        if spec.priority > max(most, granted):
            errors.append(FieldError("priority", f"{owner} may ask for {most} at the most", f"write {most} or less"))
        if errors:
            raise SpecError(errors)


def impossible_waits(store: Store, settings: Settings, sessions: Sequence[Session], now: float) -> dict[str, Wait]:
    """Return by session id why a session could never start on the agents as they are known."""
    from muster.core.scheduling.schedule import schedule  # noqa: PLC0415 - the scheduler loads slowly

    agents = store.agents.all()
    if not agents:
        return {}
    # Without the rest of the queue: whether a session can never start does not depend on the others.
    before = store.get(sorted({key for session in sessions for key in session.spec.dependencies}))
    ended = {key: session for key, session in before.items() if session.state in FINAL}
    queue = (*sessions, *(session for session in before.values() if session.state not in FINAL))
    policy = SchedulingPolicy(limits=limits_in_force(settings, store))
    waits = schedule(Snapshot(agents, queue, now, policy=policy, ended=ended)).waits
    return {s.id: wait for s in sessions if (wait := waits.get(s.id)) and wait.code in HOPELESS}


def _check(errors: Iterator[FieldError]) -> None:
    """Raises SpecError where there are errors."""
    if found := list(errors):
        raise SpecError(found)
