"""The GPUs that the engine can give to containers by CDI, as the specification of roles/fgpu names them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SPECIFICATION = Path("/etc/cdi/muster.json")


def offered_gpus(info: dict[str, Any], specification: Path = SPECIFICATION) -> list[str] | None:
    """Return the UUIDs of GPUs and MIG instances that the engine can give; None where it has no CDI, or no GPU of ours.

    A specification that names a file which is not there any more, as after an upgrade of the driver, offers none.
    """
    if str(specification.parent) not in (info.get("CDISpecDirs") or ()) or not specification.exists():
        return None
    try:
        spec = json.loads(specification.read_text("utf-8"))
        edits = [spec["containerEdits"], *(device["containerEdits"] for device in spec["devices"])]
        mounts = [mount["hostPath"] for edit in edits for mount in edit.get("mounts") or []]
        names = [device["name"] for device in spec["devices"]]
    except (OSError, ValueError, TypeError, KeyError):
        return []
    return sorted(names) if all(Path(mount).exists() for mount in mounts) else []
