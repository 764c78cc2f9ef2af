"""On the control node: an image's archive of one host, checked and written anew for others."""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from muster.core.values.units import parse_bytes
from muster.engine.image_archive import CheckedArchive, RefusedArchiveError

_CHUNK = 1 << 20
_PARAMETERS = ("src", "dest", "reference", "image_id", "max_size", "host")


class ActionModule(ActionBase):  # type: ignore[misc]
    """An action that writes to `dest` an archive of `image_id` under `reference`, from `src`, an archive of `host`.

    Both are compressed by gzip. Fails where the archive is not that image, or has more than `max_size` bytes.
    """

    _VALID_ARGS = frozenset(_PARAMETERS)

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        src, dest, reference, image_id, max_size, host = (str(self._task.args[name]) for name in _PARAMETERS)
        try:
            with gzip.open(src) as packed, gzip.open(dest, "wb", compresslevel=1) as checked:
                for chunk in CheckedArchive(_chunks(packed), image_id, reference, parse_bytes(max_size)):
                    checked.write(chunk)
        except (RefusedArchiveError, OSError, EOFError, zlib.error) as error:
            Path(dest).unlink(missing_ok=True)
            raise AnsibleActionFail(f"image {reference} of {host} cannot be copied: {error}") from None
        return {"changed": True, "dest": dest}


def _chunks(packed: gzip.GzipFile) -> Iterator[bytes]:
    while chunk := packed.read(_CHUNK):
        yield chunk
