"""Letting the commands of a gang's kernels on this host begin, unless it is too late for that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import names
from ..uptime import uptime_s
from . import key_directory
from .launch_error import LaunchError, as_launch_error

if TYPE_CHECKING:
    from collections.abc import Collection

    from ..manifest import Manifest, Session

_TOO_LATE = (
    "this agent would begin it too late: it hung, or was cut off, for so long that the session may run elsewhere by now"
)


def let_begin(manifest: Manifest, session: Session, kernel_names: Collection[str]) -> BaseException | None:
    """Let these kernels' commands begin. Return why none of them does, or only some; None where all do.

    A host that hung meanwhile goes on with a manifest that the control node has long given up.
    """
    if not kernel_names:
        return None
    if manifest.begin_by_s is not None and uptime_s() > manifest.begin_by_s:
        return LaunchError(_TOO_LATE, permanent=False)
    try:
        key_directory.release(names.ClusterPaths(manifest.cluster), session.id, kernel_names, session.generation)
    except (OSError, key_directory.HalfReleasedError) as error:
        return as_launch_error(error)
    return None
