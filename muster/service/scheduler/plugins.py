"""Queue orders and placement policies by name: files of `plugins/scheduler` and of the site's own directory.

A file is a plugin: `order(sessions, view)` makes it an order (core/model/policy.py), `POLICY` a placement policy.
An order that looks at `view.usage` says so with `NEEDS_USAGE = True`.
"""

import runpy
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from muster.core.model.policy import GroupPolicy, Order, PlacementPolicy, QueueView, SchedulingPolicy
from muster.core.model.session import Session
from muster.core.values.errors import SettingsError
from muster.scheduling_settings import Scheduling
from muster.settings import Settings
from muster.shipped_files import scheduler_plugin, scheduler_plugin_names

SITE_PLUGINS = Path("/etc/muster/scheduler")
_KEPT = 64


def load_order(name: str, site: Path = SITE_PLUGINS) -> Order:
    """Raises SettingsError that names the file and what to do."""
    path = _path(name, site)
    order = _content(path).get("order")
    if not callable(order):
        raise SettingsError(f"{path} is no queue order: it defines no order(sessions, view); name another plugin")
    return _Guarded(path, order) if path.parent == site else order


def load_placement(name: str, site: Path = SITE_PLUGINS) -> PlacementPolicy:
    """Raises SettingsError that names the file and what to do."""
    path = _path(name, site)
    policy = _content(path).get("POLICY")
    if not isinstance(policy, PlacementPolicy):
        raise SettingsError(
            f"{path} is no placement policy: it defines no POLICY = PlacementPolicy(…); name another plugin"
        )
    return policy


def needs_usage(name: str, site: Path = SITE_PLUGINS) -> bool:
    return bool(_content(_path(name, site)).get("NEEDS_USAGE"))


def scheduling_policy(settings: Settings) -> SchedulingPolicy:
    """Return what the settings say, with the plugins that they name. Raises SettingsError."""
    groups = {name: settings.scheduling.of(group) for name, group in settings.resource_groups.items()}
    return SchedulingPolicy(
        default=_group_policy(settings.scheduling, "scheduling", settings.scheduler_plugins),
        groups={
            name: _group_policy(group, f"resource_groups.{name}", settings.scheduler_plugins)
            for name, group in groups.items()
        },
        limits=settings.limits.limits(),
        shares=settings.shares,
        hold_repaired_s=settings.hold_repaired_s,
    )


def _group_policy(chosen: Scheduling, where: str, site: Path) -> GroupPolicy:
    try:
        return GroupPolicy(
            order=load_order(chosen.order, site),
            placement=load_placement(chosen.placement, site),
            backfill=chosen.backfill,
            reserve_after_passes=chosen.reserve_after_passes,
            preemption=chosen.preemption,
            defragment=chosen.defragment,
        )
    except SettingsError as error:
        raise SettingsError(f"{where}: {error}") from None


class _Guarded:
    """A site's own order. Missing sessions come last, repeated ones count once, and its faults are named."""

    def __init__(self, path: Path, order: Order) -> None:
        self._path = path
        self._order = order

    def __call__(self, sessions: Sequence[Session], view: QueueView) -> Iterable[Session]:
        left = {session.id: session for session in sessions}
        try:
            for session in self._order(sessions, view):
                if left.pop(session.id, None) is not None:
                    yield session
        except Exception as error:
            raise _fault(self._path, error) from error
        yield from left.values()


def _path(name: str, site: Path) -> Path:
    """Return the plugin's path; the site's own wins."""
    path = scheduler_plugin(name, site)
    if path is None:
        names = ", ".join(scheduler_plugin_names(site))
        raise SettingsError(f"there is no scheduler plugin {name!r}; write one of {names}, or {site}/{name}.py")
    return path


def _content(path: Path) -> Mapping[str, Any]:
    try:
        return _content_as_of(path, path.stat().st_mtime_ns)
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from None


@lru_cache(_KEPT)
def _content_as_of(path: Path, mtime_ns: int) -> Mapping[str, Any]:
    del mtime_ns
    try:
        return runpy.run_path(str(path), run_name=f"muster_scheduler_{path.stem}")
    except Exception as error:
        raise _fault(path, error) from error


def _fault(path: Path, error: Exception) -> SettingsError:
    trace, line = error.__traceback__, 0
    while trace is not None:
        line = trace.tb_lineno if trace.tb_frame.f_code.co_filename == str(path) else line
        trace = trace.tb_next
    where = error.lineno if isinstance(error, SyntaxError) else line
    return SettingsError(
        f"{path}, line {where}: {type(error).__name__}: {error}; mend the file, or name another plugin"
    )
