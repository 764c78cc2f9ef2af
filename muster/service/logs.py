"""Logs of ended kernels, on the control node: one file a kernel, mode 0600."""

import base64
import gzip
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class KeptLogs:
    """Log files below a directory, by session and kernel name."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def keep(self, last_words: Mapping[str, Any]) -> None:
        """Whole or not at all: a crash leaves the old file or the new one."""
        path = self._path(last_words["session_id"], last_words["name"])
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.touch(mode=0o600)
        partial.write_bytes(gzip.decompress(base64.b64decode(last_words["log_gz_b64"])))
        partial.replace(path)

    def read(self, session_id: str, kernel_name: str) -> bytes | None:
        path = self._path(session_id, kernel_name)
        return path.read_bytes() if path.exists() else None

    def _path(self, session_id: str, kernel_name: str) -> Path:
        return self._directory / session_id / f"{kernel_name}.log"
