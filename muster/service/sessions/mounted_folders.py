"""Sessions with the folders that they mount."""

from collections.abc import Sequence
from dataclasses import replace

from muster.core.model.folders import mounted_folders, qualified
from muster.core.model.session import Session
from muster.store.store import Store


def with_folders(store: Store, new: Sequence[Session]) -> list[Session]:
    """New sessions of one owner and spec, with the folders that they mount. Raises SpecError."""
    if not new:
        return []
    spec, owner = new[0].spec, new[0].owner
    named = [pair for mount in spec.mounts if (pair := qualified(mount.folder))]
    mounted = mounted_folders(spec, owner, store.folders.mountable(owner, spec.project, named))
    return [replace(session, folders=mounted) for session in new]
