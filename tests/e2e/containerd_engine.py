"""A Docker engine with containerd's image store, as engines are by default since Docker 29.

This machine's own engine may be too old for that store. So the programs of a later release's packages are unpacked into
a directory, and run from there beside it.
"""

import fcntl
import hashlib
import os
import runpy
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.distant_agent import second_engine
from tests.lab.host import ROOT

SUITE = "trixie"
PACKAGES = ("docker.io", "containerd")


def programs() -> Path:
    """Return the directory of the engine's programs, fetched once on this machine."""
    maker = runpy.run_path(str(ROOT / "roles/images/files/make_image.py"))
    sources = "".join(f"{line}\n" for line in maker["sources"](SUITE, maker["host_release"]()))
    name = hashlib.sha256(" ".join([sources, *PACKAGES]).encode()).hexdigest()[:12]
    directory = Path(tempfile.gettempdir(), f"muster-containerd-engine-{name}")
    with Path(f"{directory}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not directory.exists():
            with tempfile.TemporaryDirectory(dir=directory.parent) as scratch:
                _fetch(Path(scratch), sources)
                Path(scratch, "root").rename(directory)
    return directory


def _fetch(scratch: Path, sources: str) -> None:
    """Unpack the packages below `scratch`/root. What apt knows of this machine stays as it is."""
    for folder in ("lists/partial", "cache/archives/partial", "root"):
        (scratch / folder).mkdir(parents=True)
    (scratch / "sources.list").write_text(sources, encoding="utf-8")
    options = {
        "Dir::Etc::sourcelist": scratch / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "Dir::State::lists": scratch / "lists",
        "Dir::Cache": scratch / "cache",
        "APT::Sandbox::User": "root",
    }
    apt = ["apt-get", "-qq", *(f"--option={name}={value}" for name, value in options.items())]
    subprocess.run([*apt, "update"], check=True)
    subprocess.run([*apt, "download", *PACKAGES], cwd=scratch, check=True)
    for package in scratch.glob("*.deb"):
        subprocess.run(["dpkg-deb", "--extract", package, scratch / "root"], check=True)


@contextmanager
def containerd_engine(directory: Path) -> Iterator[Path]:
    """Yield the socket of an engine that keeps its images in containerd's store; it has none, and no network."""
    root = programs()
    path = f"{root}/usr/bin:{root}/usr/sbin:{os.environ['PATH']}"
    with second_engine(directory, {"features": {"containerd-snapshotter": True}}, path) as socket:
        yield socket
