"""The spec of a session as its user would write it: to submit another one like it, or to change what it asks for."""

from collections.abc import Mapping
from typing import Any

from muster.core.model.apps import AppDefinition, with_kinds
from muster.core.model.session import FINAL, Session
from muster.core.spec.apps import AppSpec
from muster.core.spec.mounts import MountSpec
from muster.core.spec.session_spec import SessionSpec
from muster.core.spec.written import written
from muster.core.values.errors import SpecError
from muster.service.reach.ssh_access import control_public_key
from muster.settings import Settings


def spec_again(settings: Settings, session: Session) -> dict[str, Any]:
    """Return what to submit for another session like this one.

    It lacks what the queue added, and what held at its time only.
    """
    values = as_submitted(settings, session.spec)
    values.pop("begin", None)
    if session.state not in FINAL:
        values.pop("name", None)
    return values


def as_submitted(settings: Settings, spec: SessionSpec) -> dict[str, Any]:
    """Return what to submit for the same spec: as `written`, without what the queue added."""
    own_key = control_public_key(settings)
    kinds = settings.app_kinds()
    sshd_port = settings.launch_policy().sshd_port
    changes: dict[str, Any] = {
        "ssh_keys": tuple(key for key in spec.ssh_keys if key != own_key),
        "apps": tuple(_short_app(app, kinds, sshd_port) for app in spec.apps),
        "mounts": tuple(_as_allowed(mount) for mount in spec.mounts),
    }
    return written(spec.model_copy(update=changes))


def _short_app(app: AppSpec, kinds: Mapping[str, AppDefinition], sshd_port: int) -> AppSpec:
    """Return the app with only its name and port, if that means the same on this site."""
    for short in (AppSpec(name=app.name), AppSpec(name=app.name, port=app.port)):
        try:
            complete = with_kinds(SessionSpec(apps=(short,)), kinds, sshd_port)
        except SpecError:
            continue
        if complete.apps == (app,):
            return short
    return app


def _as_allowed(mount: MountSpec) -> MountSpec:
    """Leave out the mode of a mount that may be written to: the folder's owner decides that anyway."""
    if mount.read_only:
        return mount
    return MountSpec(folder=mount.folder, target=mount.target)
