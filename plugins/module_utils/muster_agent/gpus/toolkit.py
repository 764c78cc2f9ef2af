"""The NVIDIA Container Toolkit of the host, which gives devices to containers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Older packages lack the first.
_PROGRAMS = ("nvidia-ctk", "nvidia-container-runtime-hook")
_VERSION = re.compile(r"\bversion:? v?(\d{1,6}(?:\.\d{1,6}){1,3})\b")
_PATIENCE_S = 5


def version(path: str = _PATH) -> str | None:
    """Return the toolkit's version, or None where there is none or it does not tell."""
    for name in _PROGRAMS:
        program = shutil.which(name, path=path)
        found = _VERSION.search(_output(program)) if program else None
        if found:
            return found.group(1)
    return None


def _output(program: str) -> str:
    try:
        done = subprocess.run(
            [program, "--version"],
            env={**os.environ, "PATH": _PATH},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stdout + done.stderr).decode(errors="replace")
