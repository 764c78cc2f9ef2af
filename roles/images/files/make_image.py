#!/usr/bin/env python3
"""make_image.py REFERENCE RECIPE RECIPE_HASH: make a container image from the host's own distribution with mmdebstrap.

RECIPE is JSON: {"suite": "bookworm", "packages": ["python3"]}. The packages come from the sources and through the
proxy that the host's apt uses. The image is labelled with RECIPE_HASH and with a random name of this build, which
is printed. Written for Python 3.9.
"""

import json
import re
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path

KEYRINGS = {
    "Debian": "/usr/share/keyrings/debian-archive-keyring.gpg",
    "Ubuntu": "/usr/share/keyrings/ubuntu-archive-keyring.gpg",
}
# With less, images that are larger than usual might not fit.
ENOUGH_MEMORY_BYTES = 8 << 30
# A release's own packages, and what is published beside them. A rolling one has nothing beside it.
PARTS = ("", "-updates", "-security")
ROLLING = ("sid", "unstable")
# What nobody reads in a container; licences stay.
LEFT_OUT = [
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
]
# Without it bookworm's base system takes the package usrmerge, and with it all of perl, to do the same more slowly.
MERGED_USR = "/usr/share/mmdebstrap/hooks/maybe-merged-usr"


def output_of(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL).stdout.decode()


def host_release() -> str:
    """Return the codename of the host's own release; empty if it has none."""
    named = re.search(r"^VERSION_CODENAME=(\w+)", Path("/etc/os-release").read_text(), re.MULTILINE)
    return named[1] if named else ""


def sources(suite: str, release: str) -> list[str]:
    """Return lines for sources.list: of the host's sources those of its distribution, for `suite`.

    `release` is the host's own. For another one the same mirrors are asked, for its security updates too.
    """
    own = []
    for target in output_of(
        "apt-get", "indextargets", "--format", "$(ORIGIN)|$(REPO_URI)|$(CODENAME)|$(COMPONENT)", "Created-By: Packages"
    ).splitlines():
        origin, uri, codename, component = target.split("|")
        if origin in KEYRINGS and re.match(r"(https?|file):", uri):
            own.append((origin, uri, codename, component))
    desired = [suite + part for part in PARTS]
    chosen = [entry for entry in own if entry[2] in desired]
    if not chosen:
        others = {release + part: suite + part for part in (PARTS[:1] if suite in ROLLING else PARTS)}
        # Other components may be named otherwise there.
        chosen = [
            (origin, uri, others[codename], "main") for origin, uri, codename, _ in own if codename in others
        ] or [(origin, uri, suite, "main") for origin, uri, _, _ in own[:1]]
    if not chosen:
        sys.exit("image: apt on this host knows no Debian or Ubuntu source; run `apt-get update` and check its sources")
    return [
        f"deb [signed-by={KEYRINGS[origin]}] {uri} {codename} {component}"
        for origin, uri, codename, component in dict.fromkeys(chosen)
    ]


def proxy_options() -> list[str]:
    shell = output_of("apt-config", "shell", "http", "Acquire::http::Proxy", "https", "Acquire::https::Proxy")
    return [
        f'--aptopt=Acquire::{scheme}::Proxy "{url}"'
        for scheme, url in re.findall(r"^(http|https)='([^']*)'$", shell, re.MULTILINE)
        if url
    ]


def in_memory(directory: str) -> list[str]:
    """Return words to put before a command so that it finds memory at the directory; none where memory is short.

    dpkg waits for the disk after each file, which is half of the time, and in vain: what breaks here is made again.
    """
    available = re.search(r"^MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    if available is None or int(available[1]) << 10 < ENOUGH_MEMORY_BYTES:
        return []
    # The mount is the command's own, and gone with it.
    return ["unshare", "--mount", "sh", "-ec", 'mount -t tmpfs -o size=75% tmpfs "$0"; exec "$@"', directory]


def main() -> None:
    reference, recipe, recipe_hash = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
    build = uuid.uuid4().hex
    # Whole before the engine sees it: it would take a broken stream for a small image. Not /tmp, which may be memory.
    with tempfile.TemporaryDirectory(prefix="muster-image-", dir="/var/tmp") as directory:
        archive, work = directory + "/root.tar", directory + "/work"
        Path(work).mkdir(mode=0o755)
        run(
            "mmdebstrap", "--quiet", "--variant=minbase",
            *(["--include=" + ",".join(recipe["packages"])] if recipe["packages"] else []),
            *("--dpkgopt=" + option for option in LEFT_OUT),
            *(["--hook-dir=" + MERGED_USR] if Path(MERGED_USR).is_dir() else []),
            *proxy_options(),
            # The host's proxy and name must not travel in the image.
            '--customize-hook=rm -f "$1/etc/apt/apt.conf.d/99mmdebstrap" "$1/etc/hostname"',
            recipe["suite"], archive, *sources(recipe["suite"], host_release()),
            within=[*in_memory(work), "env", "TMPDIR=" + work],
        )  # fmt: skip
        run(
            "docker", "import",
            "--change", "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "--change", "ENV LANG=C.UTF-8",
            "--change", 'CMD ["bash"]',
            "--change", f"LABEL muster.image.recipe={recipe_hash} muster.image.build={build}",
            archive, reference,
        )  # fmt: skip
    sys.stdout.write(build)


def run(*command: str, within: Sequence[str] = ()) -> None:
    done = subprocess.run(
        [*within, *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    if done.returncode != 0:
        sys.exit("image: {} failed: {}".format(command[0], done.stdout.decode(errors="replace").strip()[-2000:]))


if __name__ == "__main__":
    main()
