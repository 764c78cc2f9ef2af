"""The faults of a schedule, done to the lab's hosts and to the control node of a run."""

import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.lab.chaos.control_node import ChaosControlNode
from tests.lab.chaos.engine_disk import fill_engine_disk, free_engine_disk
from tests.lab.chaos.schedule import Fault, Trouble
from tests.lab.lab import Lab

# The cluster's directory in /run has a small disk of its own, which a loss of power takes away.
_SMALL_RUN = "mkdir --parents {0} && mount -t tmpfs -o size=16m tmpfs {0}"
# Until nothing more goes in: others write there meanwhile, so that no amount would be the right one.
_FILL = "mountpoint -q {0} && cat /dev/zero >{0}/filler"
_REMOVE_NETWORK = """
network=$(docker network ls --quiet --filter label=muster.cluster={cluster} | head -n 1)
[ -n "$network" ] || exit 0
for container in $(docker ps --all --quiet --filter network=$network); do
  docker network disconnect --force $network $container
done
docker network rm $network
"""


@dataclass(frozen=True, slots=True)
class Faults:
    """A way to begin and heal faults. Healing one that has not begun, or has healed itself, does nothing."""

    lab: Lab
    node: ChaosControlNode

    def begin(self, fault: Fault) -> None:
        self._actions(fault)[0](fault.host)

    def heal(self, fault: Fault) -> None:
        self._actions(fault)[1](fault.host)

    def _actions(self, fault: Fault) -> tuple[Callable[[str], None], Callable[[str], None]]:
        """Return what begins this fault, and what heals it."""
        lab = self.lab
        actions: Mapping[Trouble, tuple[Callable[[str], None], Callable[[str], None]]] = {
            Trouble.CUT: (lab.cut, lab.restore),
            Trouble.REBOOT: (lab.power_off, lab.power_on),
            Trouble.ENGINE_KILLED: (lab.kill_engine, lab.start_engine),
            Trouble.ENGINE_FROZEN: (lab.freeze_engine, lab.thaw_engine),
            Trouble.RUN_FULL: (self._fill_run, self._free_run),
            Trouble.NETWORK_REMOVED: (self._remove_network, _nothing),
            Trouble.ALL_CUT: (self._cut_all, self._restore_all),
            Trouble.DAEMON_KILLED: (self._kill_daemon, self._start_daemon),
            Trouble.STATE_FULL: (self._fill_state, self._free_state),
            Trouble.POSTGRESQL_KILLED: (self._kill_postgresql, self._start_postgresql),
            Trouble.ENGINE_DISK_FULL: (partial(fill_engine_disk, lab), partial(free_engine_disk, lab)),
            Trouble.CLOCK_WRONG: (lambda _: self._set_clock(fault.by_s), lambda _: self._set_clock(0)),
        }
        return actions[fault.trouble]

    def _fill_run(self, host: str) -> None:
        # If it is gone or full already, there is nothing to fill.
        self.lab.run(host, "sh", "-c", _FILL.format(_run_of(self.node)), check=False)

    def _free_run(self, host: str) -> None:
        self.lab.run(host, "rm", "--force", f"{_run_of(self.node)}/filler")

    def _remove_network(self, host: str) -> None:
        self.lab.run(host, "sh", "-c", _REMOVE_NETWORK.format(cluster=self.node.cluster), check=False)

    def _cut_all(self, _: str) -> None:
        for host in self.lab.hosts:
            self.lab.cut(host.name)

    def _restore_all(self, _: str) -> None:
        for host in self.lab.hosts:
            self.lab.restore(host.name)

    def _kill_daemon(self, _: str) -> None:
        if self.node.daemon is not None:
            self.node.daemon.kill()
            self.node.daemon.wait()
            self.node.daemon = None

    def _start_daemon(self, _: str) -> None:
        if self.node.daemon is None:
            self.node.launch_daemon()

    def _kill_postgresql(self, _: str) -> None:
        if self.node.server is not None:
            self.node.server.kill()

    def _start_postgresql(self, _: str) -> None:
        if self.node.server is not None and not self.node.server.is_running:
            self.node.server.start_again()

    def _set_clock(self, by_s: int) -> None:
        if self.node.clock is not None:
            self.node.clock.set_wrong(by_s)

    def _fill_state(self, _: str) -> None:
        subprocess.run(["sh", "-c", f"cat /dev/zero >{self._filler}"], stderr=subprocess.DEVNULL, check=False)

    def _free_state(self, _: str) -> None:
        self._filler.unlink(missing_ok=True)

    @property
    def _filler(self) -> Path:
        return self.node.directory / "state" / "filler"


def give_hosts_small_disks(lab: Lab, node: ChaosControlNode) -> None:
    """Put the cluster's directory in each host's /run on a disk of its own, which can be filled."""
    for host in lab.hosts:
        lab.run(host.name, "sh", "-c", _SMALL_RUN.format(_run_of(node)))


def take_small_disks(lab: Lab, node: ChaosControlNode) -> None:
    for host in lab.hosts:
        lab.run(host.name, "umount", "--lazy", _run_of(node), check=False)


def _run_of(node: ChaosControlNode) -> str:
    return f"/run/muster/{node.cluster}"


def mount_small_state(node: ChaosControlNode, megabytes: int = 64) -> None:
    """Put the control node's state on a disk of its own, which can be filled."""
    state = node.directory / "state"
    state.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=0700", "tmpfs", state], check=True)


def unmount_state(node: ChaosControlNode) -> None:
    state = node.directory / "state"
    if os.path.ismount(state):
        subprocess.run(["umount", "--lazy", state], check=True)


def _nothing(_: str) -> None:
    return
