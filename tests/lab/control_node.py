"""A control node on this machine whose agents are test hosts."""

from dataclasses import dataclass, field
from typing import Any

import yaml

from tests.control_node import ControlNode
from tests.lab.bring_up import NETWORK, inventory
from tests.waiting import eventually


@dataclass
class LabControlNode(ControlNode):
    """A control node. `hosts` is an inventory with agents in resource groups; by default the lab's."""

    hosts: dict[str, Any] = field(default_factory=lambda: inventory(NETWORK.hosts()))

    def __post_init__(self) -> None:
        self.settings = {"folders_root": "/srv/muster/folders", **self.settings}
        super().__post_init__()
        # Room for many small sessions on few cores.
        self._agents["vars"]["cpu_overcommit"] = 4
        (self.directory / "inventory.yml").write_text(yaml.safe_dump(self.hosts, sort_keys=False), encoding="utf-8")

    @property
    def _agents(self) -> dict[str, Any]:
        agents: dict[str, Any] = self.hosts["all"]["children"]["agents"]
        return agents

    def set_host_variables(self, host: str, **variables: Any) -> None:
        """Replace the host's variables in this control node's inventory, above all its `resource_group`."""
        path = self.directory / "host_vars" / f"{host}.yml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(yaml.safe_dump(variables), encoding="utf-8")

    def notice_cuts_soon(self) -> None:
        """Let ssh notice cuts within seconds. Users wait longer, because networks may be bad."""
        alive = "-o ServerAliveInterval=1 -o ServerAliveCountMax=3"
        self.variables = {
            "ANSIBLE_SSH_ARGS": f"-o ControlMaster=auto -o ControlPersist=60s {alive}",
            "ANSIBLE_TIMEOUT": "4",
        }

    def start_daemon(self) -> None:
        """Returns when all hosts are agents."""
        super().start_daemon()
        expected = {host for group in self._agents["children"].values() for host in group["hosts"]}
        eventually(
            lambda: {agent["id"] for agent in self.run("agents", "--json").json()},
            lambda known: known == expected,
            complaint=(self.directory / "daemon.log").read_text,
        )
