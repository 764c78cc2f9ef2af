#!/usr/bin/env python3
"""Record this host's state before Muster's roles change it, for playbooks/teardown.yml.

found.json has the installed packages, the accounts (users and groups), and whether there is a Docker engine, and
containerd, which may have come without one. It also has the texts of files that a role may change or replace; null if
there is no such file. Written for Python 3.9.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

FOUND = Path("/var/lib/muster/found.json")
FILES = [
    "/etc/docker/daemon.json",
    "/etc/default/docker",
    "/etc/apt/sources.list.d/docker.sources",
    "/etc/apt/keyrings/docker.asc",
]
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def packages() -> list[str]:
    listing = subprocess.run(
        ["dpkg-query", "--show", "--showformat", "${db:Status-Abbrev} ${Package}\\n"],
        stdout=subprocess.PIPE,
        check=True,
    ).stdout.decode()
    return sorted({line.split()[1] for line in listing.splitlines() if line.startswith(("ii", "hi"))})


def accounts() -> list[str]:
    # Comments on accounts may be older than UTF-8.
    texts = [Path(name).read_text("utf-8", "replace") for name in ("/etc/passwd", "/etc/group")]
    lines = [line for text in texts for line in text.splitlines()]
    return sorted({line.split(":")[0] for line in lines})


def text(path: str) -> str | None:
    try:
        return Path(path).read_text()
    except FileNotFoundError:
        return None


def program(name: str) -> bool:
    return shutil.which(name, path=SYSTEM_PATH) is not None


def engine_socket() -> bool:
    """Return whether there is an engine's socket; Podman puts a link to its own there."""
    path = Path("/var/run/docker.sock")
    return path.exists() and "podman" not in path.resolve().name


def main() -> None:
    found = {
        "packages": packages(),
        "accounts": accounts(),
        "engine": program("dockerd") or engine_socket(),
        "containerd": program("containerd") or Path("/run/containerd/containerd.sock").exists(),
        "files": {path: text(path) for path in FILES},
    }
    FOUND.parent.mkdir(mode=0o755, exist_ok=True)
    unfinished = FOUND.with_suffix(".new")
    # Readable by root alone, since a daemon.json may hold a proxy's password.
    unfinished.touch(mode=0o600)
    unfinished.write_text(json.dumps(found))
    unfinished.replace(FOUND)


main()
