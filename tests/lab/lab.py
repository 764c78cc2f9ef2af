"""The lab's hosts as tests use them: look at them, cut them off, kill their engines, remove them for good."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.control_node import NOTHING
from tests.done import Done
from tests.lab.bring_up import NETWORK
from tests.lab.host import HostError, docker, remove_host, wait_until_booted
from tests.lab.host_network import Host

# All that comes in, before any other rule sees it, and all that goes out: dropped, so that nobody gets an answer.
CUT = (("raw", "PREROUTING", "-i"), ("mangle", "POSTROUTING", "-o"))
# In one go: starting each program from here would cost as much again. A cluster that never launched anything has no
# directory of keys.
_LEFT = """
set -e
docker ps --all --filter label=muster.cluster={0} --format 'containers/{{{{.Names}}}}'
docker network ls --filter label=muster.cluster={0} --filter label=muster.session --format 'networks/{{{{.Name}}}}'
cd /run/muster/{0} 2>/dev/null || exit 0
find . -mindepth 1 -maxdepth 1 -type d -printf 'key directories/%f\\n'
"""
# Control groups by the engine's own driver and by systemd, in one hierarchy or several.
_GROUPS_AND_MOUNTS = """
for path in /sys/fs/cgroup/muster/{0}/*/ /sys/fs/cgroup/*/muster/{0}/*/ /sys/fs/cgroup/muster.slice/muster-{1}_*/ \\
  /sys/fs/cgroup/*/muster.slice/muster-{1}_*/ /run/muster-mounts/{0}/*/ /run/muster-fgpu/{0}/*/; do
  [ ! -e "$path" ] || echo "$path"
done
"""


class Lab:
    """The hosts that are up. Commands on them go through this machine's engine, also on a host that is cut off."""

    @property
    def hosts(self) -> list[Host]:
        return NETWORK.hosts()

    def run(self, host: str, *command: str, stdin: str = "", check: bool = True) -> Done:
        done = subprocess.run(
            ["docker", "exec", "--interactive", host, *command],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
        )
        if check and done.returncode != 0:
            raise HostError(f"{' '.join(command)} on {host}: {done.returncode}\n{done.stdout}{done.stderr}")
        return Done(done.returncode, done.stdout, done.stderr)

    def cut(self, host: str) -> None:
        """Take the host off the network: neither ssh nor the swarm gets an answer. Its own loopback works on."""
        for rule in CUT:
            self._rule(host, "-I", *rule)

    def restore(self, host: str) -> None:
        for rule in CUT:
            self._rule(host, "-D", *rule)

    @contextmanager
    def cut_off(self, host: str) -> Iterator[None]:
        self.cut(host)
        try:
            yield
        finally:
            self.restore(host)

    def freeze_engine(self, host: str) -> None:
        """Let the engine take connections and answer none: its clients hang."""
        self.run(host, "systemctl", "kill", "--signal", "STOP", "--kill-who", "main", "docker.service")

    def thaw_engine(self, host: str) -> None:
        self.run(host, "systemctl", "kill", "--signal", "CONT", "--kill-who", "main", "docker.service")

    @contextmanager
    def frozen_engine(self, host: str) -> Iterator[None]:
        self.freeze_engine(host)
        try:
            yield
        finally:
            self.thaw_engine(host)

    def kill_engine(self, host: str) -> None:
        """Kill dockerd, and let none start until start_engine. Containers run on, as they do when an engine dies."""
        # Masked first: systemd starts a killed engine again, and its socket starts it for any client.
        self.run(host, "systemctl", "mask", "--runtime", "--quiet", "docker.service", "docker.socket")
        self.run(host, "systemctl", "kill", "--signal", "KILL", "--kill-who", "main", "docker.service")
        self.run(host, "systemctl", "stop", "docker.socket", "docker.service")

    def start_engine(self, host: str, within_s: float = 300) -> None:
        self.run(host, "systemctl", "unmask", "--runtime", "--quiet", "docker.service", "docker.socket")
        self.run(host, "systemctl", "reset-failed", "docker.service", "docker.socket")
        self.run(host, "systemctl", "start", "docker.socket", "docker.service")
        deadline = time.monotonic() + within_s
        while self.run(host, "docker", "version", check=False).code != 0:
            if time.monotonic() > deadline:
                raise HostError(f"the engine of {host} does not answer")
            time.sleep(0.5)

    def power_off(self, host: str) -> None:
        """Power the host off as if its plug were pulled: nothing on it gets a signal first."""
        docker("kill", "--signal", "KILL", host)

    def power_on(self, host: str) -> None:
        docker("start", host)
        wait_until_booted(host)

    def remove(self, host: str) -> None:
        """Remove the host for good. bring_up() makes a new, bare one of the name."""
        remove_host(host)

    def left_on(self, host: str, cluster: str) -> dict[str, list[str]]:
        """Return names of sessions' containers, networks and key directories there; none if the host is gone."""
        done = self.run(host, "sh", "-c", _LEFT.format(cluster), check=False)
        if done.code != 0:
            self._expect_gone(host, done)
            return NOTHING
        things = [line.split("/", 1) for line in done.out.splitlines()]
        return {kind: [name for of_kind, name in things if of_kind == kind] for kind in NOTHING}

    def groups_and_mounts_on(self, host: str, cluster: str) -> list[str]:
        """Return the control groups, mounts and GPU states of sessions there."""
        done = self.run(host, "sh", "-c", _GROUPS_AND_MOUNTS.format(cluster, cluster.replace("-", "")), check=False)
        if done.code != 0:
            self._expect_gone(host, done)
        return done.out.split()

    def _expect_gone(self, host: str, done: Done) -> None:
        """Raise what a command that failed said, unless the host does not run."""
        if host in {present.name for present in self.hosts}:
            raise HostError(f"{host}: {done.code}\n{done.out}{done.err}")

    @staticmethod
    def _rule(host: str, action: str, table: str, chain: str, direction: str) -> None:
        process = docker("inspect", "--format", "{{.State.Pid}}", host)
        command = ["nsenter", "--target", process, "--net", "iptables", "-t", table, action, chain, direction, "eth0"]
        done = subprocess.run([*command, "-j", "DROP"], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise HostError(f"could not change the firewall of {host}: {done.stderr}")
