"""New sessions before they are queued: specs resolved and checked, as the queue will keep them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from muster.core.model.apps import with_kinds
from muster.core.model.policy import SchedulingPolicy
from muster.core.model.session import FINAL, Session
from muster.core.model.snapshot import Snapshot
from muster.core.model.wait import Wait
from muster.core.notify.callback_hosts import check_callback
from muster.core.spec.errors import checked, root_field
from muster.core.spec.session_spec import SessionSpec
from muster.core.values.errors import FieldError, SpecError
from muster.core.values.units import local_time
from muster.core.whatif.explain import HOPELESS
from muster.service.images.catalog import with_catalog_images
from muster.service.reach.ssh_access import control_public_key
from muster.service.scheduler.known_groups import check_group
from muster.service.scheduler.overrides import limits_in_force
from muster.service.sessions.dependencies import with_ids_of_dependencies
from muster.service.sessions.disk_bound import with_disk_limit
from muster.service.sessions.folder_check import check_folders, folders_of
from muster.service.sessions.idle_bounds import with_site_bounds
from muster.service.sessions.new_sessions import new_sessions
from muster.service.sessions.scope import SessionScope
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
        store = self._store
        resolved = self._resolved(
            spec,
            owner,
            now,
            lambda spec: check_group(store, self._settings, spec),
            lambda spec: self._secrets.check(spec, owner),
            lambda spec: check_folders(store, self._settings, spec, owner, asks_agents=asks_agents),
        )
        return _with_folders(store, new_sessions(resolved, owner, count, now))

    def resolved(self, spec: Mapping[str, Any], owner: str, now: float) -> SessionSpec:
        """Return the spec as the queue keeps it. Raises SpecError.

        It has points in time for times, ids for dependencies, image references for the catalog's names, and the
        control node's key.
        """
        return self._resolved(spec, owner, now)

    def _resolved(
        self, values: Mapping[str, Any], owner: str, now: float, *checks: Callable[[SessionSpec], None]
    ) -> SessionSpec:
        """Return the spec as the queue keeps it. Raises SpecError with the errors of all steps, and of `checks`."""
        settings = self._settings
        apps = settings.app_kinds(), settings.launch_policy().sshd_port
        steps: list[Callable[[SessionSpec], SessionSpec | None]] = [
            lambda spec: self._check_leave(spec, owner),
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

    def _check_leave(self, spec: SessionSpec, owner: str) -> None:
        """Check what the site grants by owner. Raises SpecError."""
        errors = []
        if refusal := self._settings.members.refusal(owner, spec.project, self._projects):
            errors.append(refusal)
        most = self._settings.most_priority_of(owner)
        if spec.priority > most:
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


def _with_folders(store: Store, new: Sequence[Session]) -> list[Session]:
    """Return new sessions of one owner and spec with the folders that they mount. Raises SpecError."""
    if not new:
        return []
    mounted = folders_of(store, new[0].spec, new[0].owner)
    return [replace(session, folders=mounted) for session in new]
