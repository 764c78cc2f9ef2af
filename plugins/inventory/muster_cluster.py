"""A cluster's agents and running kernels as an Ansible inventory."""

from __future__ import annotations

DOCUMENTATION = r"""
name: muster_cluster
short_description: Agents and running kernels of a Muster cluster
description:
  - Reads the cluster's database. Agents become hosts with the connection that Muster's own inventory gives them.
  - Each kernel of a session that is RUNNING becomes the host V(<session>-<kernel>), reached by SSH through main1 and
    its agent, with the control node's key.
  - Works on the control node, as the user that may read Muster's state directory, with the Python that has Muster
    installed.
  - >-
    Groups: C(agents), C(resource_group_<name>), C(kernels), C(session_<name>), C(role_<role>) and
    C(session_<name>_<role>). What a group's name may not hold becomes an underscore. Where two sessions would share a
    group, the start of the session's id is put behind their names.
  - The name of the inventory file ends in C(muster.yml), C(muster.yaml), C(muster_cluster.yml) or
    C(muster_cluster.yaml).
version_added: "0.2.0"
author: Muster's founders
extends_documentation_fragment:
  - constructed
options:
  plugin:
    description: Tells this plugin's files from others.
    required: true
    choices: [muster_cluster]
  config:
    description: Muster's settings file.
    type: path
    default: /etc/muster/muster.yml
    env:
      - name: MUSTER_CONFIG
  agents:
    description: Whether agents are hosts.
    type: bool
    default: true
  kernels:
    description: Whether running kernels are hosts.
    type: bool
    default: true
"""

EXAMPLES = r"""
---
# cluster_muster.yml: ansible -i cluster_muster.yml session_train -m ansible.builtin.command -a hostname
plugin: muster_cluster
---
# Agents that do not answer as the group state_unreachable, and nothing of the sessions
plugin: muster_cluster
kernels: false
keyed_groups:
  - key: muster_state | lower
    prefix: state
"""

import shlex
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.errors import AnsibleParserError
from ansible.inventory.group import to_safe_group_name
from ansible.plugins.inventory import BaseInventoryPlugin, Constructable

try:
    from muster.core.values.errors import MusterError
    from muster.service.reach.ssh_access import has_way_in, ssh_config, ssh_host_alias
    from muster.service.service import Service
    from muster.settings import load_settings

    HAS_MUSTER = True
except ImportError:
    HAS_MUSTER = False

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ansible.inventory.data import InventoryData
    from ansible.parsing.dataloader import DataLoader

    from muster.core.model.free_capacity import FreeCapacity
    from muster.core.model.session import Kernel, Session
    from muster.core.model.snapshot import Snapshot
    from muster.settings import Settings

_CONNECTION_VARIABLES = {
    "connection": "ansible_connection",
    "address": "ansible_host",
    "port": "ansible_port",
    "user": "ansible_user",
    "ssh_args": "ansible_ssh_common_args",
    "private_key_file": "ansible_ssh_private_key_file",
}


class InventoryModule(BaseInventoryPlugin, Constructable):
    """The name is Ansible's."""

    NAME = "muster_cluster"

    def verify_file(self, path: str) -> bool:
        suffixes = ("muster.yml", "muster.yaml", "muster_cluster.yml", "muster_cluster.yaml")
        return bool(super().verify_file(path)) and path.endswith(suffixes)

    def parse(self, inventory: InventoryData, loader: DataLoader, path: str, cache: bool = True) -> None:
        super().parse(inventory, loader, path, cache)
        self._read_config_data(path)
        if not HAS_MUSTER:
            raise AnsibleParserError(
                "Ansible's Python has no Muster, whose database this inventory reads;"
                " run the ansible that Muster brought, on the control node"
            )
        try:
            settings = load_settings(Path(self.get_option("config")))
            with Service.opened(settings) as service:
                snapshot = service.snapshot()
            if self.get_option("agents"):
                for free in snapshot.free_capacities:
                    self._add_agent(free)
            if self.get_option("kernels"):
                self._add_kernels(settings, snapshot)
        except MusterError as error:
            raise AnsibleParserError(str(error)) from None

    def _add_agent(self, free: FreeCapacity) -> None:
        agent = free.agent
        variables = {
            **{name: value for key, name in _CONNECTION_VARIABLES.items() if (value := getattr(agent.connection, key))},
            "muster_state": agent.state.value,
            "muster_problem": agent.problem,
            "muster_drain_reason": agent.drain_reason,
            "muster_resource_group": agent.resource_group,
            "muster_capacity": asdict(agent.capacity),
            "muster_free": asdict(free.free),
        }
        self._add_host(agent.id, variables, ["agents", f"resource_group_{agent.resource_group}"])

    def _add_kernels(self, settings: Settings, snapshot: Snapshot) -> None:
        agents = {agent.id: agent for agent in snapshot.agents}
        running = [session for session in snapshot.sessions if has_way_in(session) and session.agents[0] in agents]
        labels = _labels(running)
        for session in running:
            config = ssh_config(settings, session, agents[session.agents[0]])
            for kernel in session.kernels:
                if not kernel.exited:
                    self._add_kernel(session, kernel, labels[session.id], config)

    def _add_kernel(self, session: Session, kernel: Kernel, label: str, config: Path) -> None:
        name = f"{session.name}-{kernel.name}"
        if name in self.inventory.hosts:
            # The name of another session's kernel, such as `a-b` with `c1` beside `a` with `b-c1`, or of an agent.
            name = f"{name}-{session.id[:8]}"
        variables = {
            "ansible_connection": "ssh",
            "ansible_host": ssh_host_alias(session, kernel),
            "ansible_user": "work",
            "ansible_ssh_common_args": shlex.join(["-F", str(config)]),
            # Whichever the image has first in its PATH; /usr/bin/python3 need not be it.
            "ansible_python_interpreter": "python3",
            "ansible_become": False,
            "muster_session": session.name,
            "muster_session_id": session.id,
            "muster_owner": session.owner,
            "muster_kernel": kernel.name,
            "muster_kernel_id": kernel.id,
            "muster_role": kernel.role,
            "muster_rank": kernel.rank,
            "muster_image": kernel.image,
            "muster_agent": kernel.allocation.agent_id if kernel.allocation else None,
        }
        groups = ["kernels", f"role_{kernel.role}", f"session_{label}", f"session_{label}_{kernel.role}"]
        self._add_host(name, variables, groups)

    def _add_host(self, name: str, variables: Mapping[str, Any], groups: Iterable[str]) -> None:
        self.inventory.add_host(name)
        for variable, value in variables.items():
            self.inventory.set_variable(name, variable, value)
        for group in groups:
            self.inventory.add_child(self.inventory.add_group(_safe(group)), name)
        strict = self.get_option("strict")
        self._set_composite_vars(self.get_option("compose"), variables, name, strict=strict)
        self._add_host_to_composed_groups(self.get_option("groups"), variables, name, strict=strict)
        self._add_host_to_keyed_groups(self.get_option("keyed_groups"), variables, name, strict=strict)


def _safe(group: str) -> str:
    return str(to_safe_group_name(group, force=True, silent=True))


def _labels(sessions: Sequence[Session]) -> dict[str, str]:
    """Return by session id the name in its groups.

    With the start of the id where a group of it would be another session's too: `a.b` and `a-b` are both `a_b`, and
    the session `a_main` is what `a` calls its role.
    """
    groups = {
        session.id: {_safe(session.name), *(_safe(f"{session.name}_{kernel.role}") for kernel in session.kernels)}
        for session in sessions
    }
    sessions_in = Counter(group for names in groups.values() for group in names)
    return {
        session.id: f"{session.name}_{session.id[:8]}"
        if any(sessions_in[group] > 1 for group in groups[session.id])
        else session.name
        for session in sessions
    }
