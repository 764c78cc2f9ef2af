"""The size of a container's own layer, limited by the engine where its storage driver can."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Any

from .image_store import is_containerds

if TYPE_CHECKING:
    from .api import EngineApi, EngineError

_REFUSED = re.compile(r"storage[- ]opt|storage size|quota", re.IGNORECASE)
_BTRFS = "btrfs"


class LayerLimits:
    """The limits that one run requests. Once the engine has refused one, there are no further requests."""

    def __init__(self, engine: EngineApi) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._driver: str | None = None

    def options(self, limit_bytes: int | None, image_bytes: int) -> dict[str, str]:
        """Return a container's `StorageOpt`; empty without a limit, and where the storage driver knows none."""
        if limit_bytes is None:
            return {}
        with self._lock:
            if self._driver is None:
                self._driver = limiting_driver(self._engine.facts())
            driver = self._driver
        if not driver:
            return {}
        # Btrfs also counts the blocks that a layer shares with its image.
        return {"size": str(limit_bytes + (image_bytes if driver == _BTRFS else 0))}

    def are_refused_by(self, error: EngineError) -> bool:
        """Return whether the engine says that it limits no layers. Later layers are then not limited either."""
        if not _REFUSED.search(str(error)):
            return False
        with self._lock:
            self._driver = ""
        return True


def limiting_driver(info: dict[str, Any]) -> str:
    """Return the storage driver if it may limit layers, by what the engine says of itself; otherwise an empty text.

    Whether XFS is mounted with `pquota`, and whether Btrfs can count, shows only when a container is made.
    """
    # Containerd's snapshots cannot be limited, which the engine does not say.
    if is_containerds(info):
        return ""
    driver, status = info["Driver"], dict(entry[:2] for entry in info.get("DriverStatus") or ())
    on_xfs = driver == "overlay2" and status.get("Backing Filesystem") == "xfs"
    return driver if on_xfs or driver in {_BTRFS, "zfs"} else ""
