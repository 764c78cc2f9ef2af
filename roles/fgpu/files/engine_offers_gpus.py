#!/usr/bin/env python3
"""Try to create a container with a GPU, which is the only way to find out whether the Docker engine can.

Exit status: 0 if it can, 3 if it lacks the device driver, 1 if its answer says neither. The image is empty, so that
nothing runs in either case. Written for Python 3.9.
"""

from __future__ import annotations

import subprocess
import sys

EMPTY_ARCHIVE = b"\0" * 1024


def docker(*arguments: str, stdin: bytes = b"") -> str:
    done = subprocess.run(
        ["docker", *arguments], input=stdin, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    return done.stdout.decode(errors="replace").strip()


def main() -> int:
    image = docker("import", "-", stdin=EMPTY_ARCHIVE)
    try:
        said = docker("run", "--rm", "--network", "none", "--gpus", "all", image, "/nothing")
    finally:
        docker("image", "rm", image)
    if "could not select device driver" in said:
        return 3
    return 0 if "/nothing" in said or "nvidia" in said else 1


sys.exit(main())
