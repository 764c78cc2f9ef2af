"""Stand-ins for agents: names in an inventory that all mean this machine, each with a cluster of its own on it.

So the real playbooks and modules do their whole work on the real engine. The CPU time of the agents' own work, which
the stand-ins do on the control node's cores, is counted by control groups, apart from the control node's.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from muster.ansible_gateway.gateway import AnsibleGateway
from muster.ansible_gateway.playbook import Inventory, ReadResult
from muster.ansible_gateway.plays_ahead import NOTHING_AHEAD
from muster.contract.manifest import Manifest
from muster.core.turn.answer import AnswerHandler

STATE = Path("/var/lib/muster/agent")
_GROUPS = Path("/sys/fs/cgroup")
# Moves itself to the group of the agents' work, so that the module and all that it starts is counted there.
_INTERPRETER = """#!/bin/sh
echo $$ > {group}/cgroup.procs
exec /usr/bin/python3 "$@"
"""


def cluster_of(cluster: str, agent_id: str) -> str:
    """Return the name of a stand-in's own cluster."""
    return f"{cluster}-{agent_id}"


def remove_traces(cluster: str) -> None:
    """Remove what the agents' modules keep of all stand-ins."""
    for path in STATE.glob(f"{cluster}-*"):
        shutil.rmtree(path)


def write_inventory(path: Path, names: Iterable[str], interpreter: Path, cluster: str) -> None:
    """Write an inventory whose agents have these names and run modules by that interpreter."""
    hosts = {
        name: {
            "ansible_connection": "local",
            "ansible_host": "127.0.0.1",
            "ansible_python_interpreter": str(interpreter),
            "muster_cluster": cluster_of(cluster, name),
        }
        for name in names
    }
    path.write_text(yaml.safe_dump({"all": {"children": {"agents": {"hosts": hosts}}}}))


class StandIns(AnsibleGateway):
    """The real gateway, with a cluster of its own for each agent, since all of them share one engine."""

    def __init__(
        self,
        inventory: Inventory,
        cluster: str,
        folders_root: Path | None = None,
        ahead: Mapping[str, int] = NOTHING_AHEAD,
    ) -> None:
        super().__init__(inventory, cluster, folders_root, ahead)
        self._base = cluster

    def _visit(
        self,
        name: str,
        limit: str,
        variables_in: Callable[[Path], Mapping[str, Any]],
        read_result: ReadResult,
        on_answer: AnswerHandler,
    ) -> None:
        def variables(directory: Path) -> Mapping[str, Any]:
            # The inventory says which cluster is an agent's own; what a play is given would come before that.
            return {key: value for key, value in variables_in(directory).items() if key != "muster_cluster"}

        super()._visit(name, limit, variables, read_result, on_answer)

    def converge(self, manifests: Mapping[str, Manifest], on_answer: AnswerHandler) -> None:
        own = {
            key: manifest.model_copy(update={"cluster": cluster_of(self._base, key)})
            for key, manifest in manifests.items()
        }
        super().converge(own, on_answer)


class CpuGroups:
    """The CPU time of this process and all that it starts, and of the stand-ins' modules and observers among it.

    A process that opens observers is to have the `environment`.
    """

    def __init__(self, name: str, directory: Path) -> None:
        """Move this process into groups of that name. Raises OSError where control groups cannot be written."""
        self._is_v1 = (_GROUPS / "cpuacct").is_dir()
        root = (_GROUPS / "cpuacct" if self._is_v1 else _GROUPS) / name
        self._root, self._control, self._agents = root, root / "control", root / "agents"
        for group in (root, self._control, self._agents):
            group.mkdir()
        (self._control / "cgroup.procs").write_text(str(os.getpid()))
        programs = directory / "programs-of-agents"
        programs.mkdir()
        self.interpreter = programs / "python3"
        self.interpreter.write_text(_INTERPRETER.format(group=self._agents))
        self.interpreter.chmod(0o755)
        # A program that stays open on an agent takes the first python3 that it finds.
        self.environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}

    def close(self) -> None:
        """Move this process out again and remove the groups, unless what it started still runs."""
        (self._root.parent / "cgroup.procs").write_text(str(os.getpid()))
        with suppress(OSError):
            for group in (self._agents, self._control, self._root):
                group.rmdir()

    @property
    def control_s(self) -> float:
        """Return the seconds of CPU that the control node's own processes have used."""
        return self._used_s(self._control)

    @property
    def on_agents(self) -> int:
        """Return how many processes of the stand-ins run."""
        return len((self._agents / "cgroup.procs").read_text().split())

    @property
    def agents_s(self) -> float:
        """Return the seconds of CPU that the stand-ins' modules have used."""
        return self._used_s(self._agents)

    def _used_s(self, group: Path) -> float:
        if self._is_v1:
            return int((group / "cpuacct.usage").read_text()) / 1e9
        lines = (line.split() for line in (group / "cpu.stat").read_text().splitlines())
        return next(int(value) for name, value in lines if name == "usage_usec") / 1e6
