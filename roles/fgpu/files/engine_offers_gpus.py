#!/usr/bin/env python3
"""Ask the Docker engine for a container with a GPU: it says on no other occasion whether it can give one.

Ends with 0 when it can, 3 when it lacks the device driver, 1 when it says neither. The image is empty, so that nothing
runs either way. Written for Python 3.9.
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
