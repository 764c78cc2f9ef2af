"""A test host: a container that looks like a freshly installed Debian with systemd and nothing else.

Its image is made here once per recipe, of this machine's own release or of the one in MUSTER_TEST_SUITE. DEVELOPERS.md
says why each of the options is needed.
"""

import fcntl
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REPOSITORY = "muster-test-host"
# The packages of any installed Debian, and of those that Muster needs only python3.
PACKAGES = ["ca-certificates", "dbus", "iproute2", "python3", "systemd", "systemd-sysv"]
# Systemd inside needs its own view of /sys writable; the host's cgroup tree is never bound in (it would be changed).
# From 256 on it boots with control groups of version 1 only where the command line of the Linux kernel, which it reads
# from this variable, says so.
BOOT = """
[ -e /sys/fs/cgroup/cgroup.controllers ] ||
  export SYSTEMD_PROC_CMDLINE='systemd.unified_cgroup_hierarchy=0 SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE=1'
mount -o remount,rw /sys
mount -o remount,bind,rw /sys/fs/cgroup
for d in /sys/fs/cgroup/*; do mountpoint -q "$d" && mount -o remount,bind,rw "$d"; done
if command -v sshd >/dev/null; then ssh-keygen -q -A; fi
exec /sbin/init
"""
OPTIONS = [
    *("--cap-add", "ALL", "--cap-drop", "SYS_RESOURCE", "--cgroupns", "private"),
    *("--security-opt", "seccomp=unconfined", "--security-opt", "systempaths=unconfined"),
    *("--security-opt", "apparmor=unconfined", "--device-cgroup-rule", "a *:* rwm"),
    *("--tmpfs", "/run", "--tmpfs", "/run/lock", "--env", "container=docker", "--volume", "/var/lib/docker"),
]
# May become root by sudo, without a password.
ADMINISTRATOR = "admin"
_COMPILED_SOURCES = Path(__file__).with_name("compiled_sources.py").read_text(encoding="utf-8")
# The engine's packages lie in apt's cache, so that many hosts fetch them once; none of them is installed. dpkg need not
# wait for the disk on a host that is thrown away, each host makes keys of its own when it boots, and Python keeps what
# it compiles of Ansible's modules. The administrator is as an installer of Debian or Ubuntu makes them.
WITH_SSHD = f"""
export DEBIAN_FRONTEND=noninteractive
echo force-unsafe-io >/etc/dpkg/dpkg.cfg.d/test-host
apt-get update -qq
apt-get install -y -qq --no-install-recommends e2fsprogs openssh-server sudo tcsh
useradd --create-home --shell /bin/tcsh {ADMINISTRATOR}
echo '{ADMINISTRATOR} ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/{ADMINISTRATOR}
client=$(apt-cache pkgnames docker-cli | grep -x docker-cli || true)
apt-get install -y -qq --no-install-recommends --download-only docker.io $client iptables nftables procps
rm -f /etc/ssh/ssh_host_*
mkdir /var/cache/compiled-sources
echo import compiled_sources >/usr/lib/python3/dist-packages/compiled_sources.pth
cat >/usr/lib/python3/dist-packages/compiled_sources.py <<'END'
{_COMPILED_SOURCES}END
"""
# As on a site that runs containers already. Nothing is started while the image is made.
WITH_ENGINE = """
export DEBIAN_FRONTEND=noninteractive
printf '#!/bin/sh\\nexit 101\\n' >/usr/sbin/policy-rc.d
chmod +x /usr/sbin/policy-rc.d
client=$(apt-cache pkgnames docker-cli | grep -x docker-cli || true)
apt-get install -y -qq --no-install-recommends docker.io $client iptables procps
rm /usr/sbin/policy-rc.d
"""


class HostError(Exception):
    """A test host could not be created, or a command on it failed."""


def docker(*arguments: str, stdin: bytes | None = None, check: bool = True) -> str:
    """Run a docker command and return its output, both streams. Raises HostError if it fails and `check` is set."""
    done = subprocess.run(
        ["docker", *arguments], input=stdin, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    output = done.stdout.decode(errors="replace").strip()
    if check and done.returncode != 0:
        raise HostError(f"docker {' '.join(arguments[:2])} ended with {done.returncode}:\n{output[-6000:]}")
    return output


def bare_root() -> str:
    """Return the image of a bare system, without even an sshd."""
    with _one_at_a_time():
        return _bare_root()


def own_suite() -> str:
    """Return the name of this machine's release. Raises HostError if it has none."""
    suite = re.search(r"^VERSION_CODENAME=(\w+)", Path("/etc/os-release").read_text(), re.MULTILINE)
    if suite is None:
        raise HostError("this machine is no Debian or Ubuntu, and test hosts are made from its packages")
    return suite[1]


def hosts_suite() -> str:
    """Return the name of the release that test hosts have."""
    return os.environ.get("MUSTER_TEST_SUITE") or own_suite()


def _bare_root() -> str:
    maker = ROOT / "roles/images/files/make_image.py"
    suite = hosts_suite()
    recipe = json.dumps({"suite": suite, "packages": PACKAGES})
    recipe_hash = hashlib.sha256(recipe.encode() + maker.read_bytes()).hexdigest()[:12]
    reference = f"{REPOSITORY}:{suite}-{recipe_hash}"
    if not docker("image", "ls", "--quiet", reference):
        _remove_images(keep="")
        subprocess.run([sys.executable, maker, reference, recipe, recipe_hash], stdout=subprocess.DEVNULL, check=True)
    return reference


def root_with_sshd() -> str:
    """Return the image of a system that an administrator can log in to. Its name says what is in it."""
    with _one_at_a_time():
        return _with(_bare_root(), "sshd", WITH_SSHD)


def root_with_engine() -> str:
    """Return the image of a system with an sshd and a Docker engine, as the distribution's package leaves it."""
    with _one_at_a_time():
        return _with(_with(_bare_root(), "sshd", WITH_SSHD), "engine", WITH_ENGINE)


def _with(base: str, what: str, script: str) -> str:
    reference = f"{base}-{what}-{hashlib.sha256(script.encode()).hexdigest()[:12]}"
    if not docker("image", "ls", "--quiet", reference):
        _remove_images(keep=base)
        name = f"{REPOSITORY}-making"
        docker("rm", "--force", name, check=False)  # of a run that was killed
        try:
            docker("run", "--network", "host", "--name", name, base, "sh", "-ec", script)
            docker("commit", name, reference)
        finally:
            docker("rm", "--force", name, check=False)
    return reference


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Make images in one process at a time: lab, molecule and fresh machine may need the same ones at once."""
    with Path(tempfile.gettempdir(), f"{REPOSITORY}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _remove_images(keep: str) -> None:
    """Remove what older recipes of this release made, as far as no host runs from it.

    `keep` stays, with what it is made from.
    """
    pattern = f"{REPOSITORY}:{hosts_suite()}-*"
    for reference in docker("image", "ls", "--format", "{{.Repository}}:{{.Tag}}", pattern).split():
        if not keep.startswith(reference):
            docker("image", "rm", reference, check=False)


def run_host(name: str, image: str, *options: str) -> None:
    docker("run", "--detach", "--name", name, "--hostname", name, *OPTIONS, *options, image, "sh", "-c", BOOT)


def wait_until_booted(name: str, within_s: float = 300) -> None:
    deadline = time.monotonic() + within_s
    while (state := docker("exec", name, "systemctl", "is-system-running", check=False)) not in {"running", "degraded"}:
        if time.monotonic() > deadline:
            raise HostError(f"{name} did not come up: {state}")
        time.sleep(0.3)


def remove_host(name: str) -> None:
    docker("rm", "--force", "--volumes", name, check=False)
