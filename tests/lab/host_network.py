"""Test hosts on a private network of this machine, with an sshd that a key of this checkout opens.

Host keys are pinned: they are read through the engine, not over the network that they are to protect.
"""

import ipaddress
import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.lab.host import (
    ADMINISTRATOR,
    HostError,
    docker,
    remove_host,
    root_with_engine,
    root_with_sshd,
    run_host,
    wait_until_booted,
)

# The first addresses of each network are left to its gateway and routers.
FIRST_HOST = 11


@dataclass(frozen=True)
class Host:
    name: str
    address: str


@dataclass(frozen=True)
class HostNetwork:
    """A network of hosts. `name` is also the label of all that belongs to it; `directory` holds key and known_hosts.

    `volumes` are what each host's container gets beside its own: SOURCE:TARGET. `engine`: whether hosts come with a
    Docker engine. `rootless_logins` are names of hosts to which root does not log in: an administrator does.
    """

    name: str
    subnet: str
    directory: Path
    volumes: tuple[str, ...] = ()
    engine: bool = False
    rootless_logins: frozenset[str] = frozenset()

    @property
    def key(self) -> Path:
        return self.directory / "id_ed25519"

    @property
    def known_hosts(self) -> Path:
        return self.directory / "known_hosts"

    @property
    def gateway(self) -> str:
        """Return the address that this machine has on the network."""
        return str(ipaddress.ip_network(self.subnet)[1])

    def bring_up(self, names: Sequence[str]) -> list[Host]:
        """Have exactly these hosts, booted: what runs is kept, what was stopped is started, the rest is made."""
        image = root_with_engine() if self.engine else root_with_sshd()
        self.directory.mkdir(parents=True, exist_ok=True)
        hosts = self._addressed(names)
        self._make_network()
        present = self._containers()
        for name in present.keys() - set(names):
            remove_host(name)
        for host in hosts:
            self._have(host, image, present.get(host.name))
        if not self.key.exists():
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", self.name, "-f", self.key], check=True)
        for host in hosts:
            wait_until_booted(host.name)
            self._authorize(host)
        pins = "".join(f"{host.address} {self._host_key(host)}\n" for host in hosts)
        self.known_hosts.write_text(pins, encoding="utf-8")
        return hosts

    def take_down(self) -> None:
        """Remove hosts, their volumes, the network and the directory."""
        for name in self._containers():
            remove_host(name)
        docker("network", "rm", self.name, check=False)
        shutil.rmtree(self.directory, ignore_errors=True)

    def hosts(self) -> list[Host]:
        """Return the hosts that run, in the order of their addresses."""
        running = [name for name, container in self._containers().items() if container["State"] == "running"]
        if not running:
            return []
        found = []
        for container in json.loads(docker("inspect", *running)):
            address = container["NetworkSettings"]["Networks"][self.name]["IPAddress"]
            found.append(Host(container["Name"].removeprefix("/"), address))
        return sorted(found, key=lambda host: ipaddress.ip_address(host.address))

    def container_ids(self) -> list[str]:
        return sorted(container["ID"] for container in self._containers().values())

    def inventory_of(self, host: Host) -> dict[str, Any]:
        """Return the variables with which Ansible reaches the host."""
        return {
            "ansible_host": host.address,
            "ansible_user": self.user_of(host),
            "ansible_ssh_private_key_file": str(self.key),
            "ansible_ssh_common_args": " ".join(self.ssh_options),
        }

    def user_of(self, host: Host) -> str:
        """Return the only user whom the host lets log in."""
        return ADMINISTRATOR if host.name in self.rootless_logins else "root"

    @property
    def ssh_options(self) -> list[str]:
        return [
            *("-o", "IdentitiesOnly=yes", "-o", "StrictHostKeyChecking=yes"),
            *("-o", f"UserKnownHostsFile={self.known_hosts}"),
        ]

    def _addressed(self, names: Sequence[str]) -> list[Host]:
        addresses = ipaddress.ip_network(self.subnet)
        return [Host(name, str(addresses[FIRST_HOST + index])) for index, name in enumerate(names)]

    def _make_network(self) -> None:
        if docker("network", "ls", "--quiet", "--filter", f"name=^{self.name}$"):
            return
        label = ("--label", f"{self.name}=1")
        docker("network", "create", "--subnet", self.subnet, *label, self.name)

    def _containers(self) -> dict[str, dict[str, str]]:
        listing = docker("ps", "--all", "--no-trunc", "--filter", f"label={self.name}", "--format", "{{json .}}")
        return {container["Names"]: container for container in map(json.loads, listing.splitlines())}

    def _have(self, host: Host, image: str, present: dict[str, str] | None) -> None:
        label = f"{self.name}={'+'.join(self.volumes) or 1}"
        outdated = present is not None and (present["Image"] != image or label not in present["Labels"].split(","))
        if present is not None and (outdated or not self._starts(host, present["State"])):
            remove_host(host.name)
            present = None
        if present is None:
            run_host(
                host.name,
                image,
                *("--network", self.name, "--ip", host.address, "--label", label),
                *(option for volume in self.volumes for option in ("--volume", volume)),
            )

    @staticmethod
    def _starts(host: Host, state: str) -> bool:
        """Return whether an old container still serves. One that is paused or does not start is made anew."""
        if state == "running":
            return True
        if state != "exited":
            return False
        try:
            docker("start", host.name)
            wait_until_booted(host.name)
        except HostError:
            return False
        return True

    def _authorize(self, host: Host) -> None:
        docker(
            "exec", "--interactive", "--user", self.user_of(host), host.name, "sh", "-c",
            "umask 077 && mkdir -p ~/.ssh && cat >~/.ssh/authorized_keys",
            stdin=self.key.with_suffix(".pub").read_bytes(),
        )  # fmt: skip

    @staticmethod
    def _host_key(host: Host) -> str:
        kind, key = docker("exec", host.name, "cat", "/etc/ssh/ssh_host_ed25519_key.pub").split()[:2]
        return f"{kind} {key}"
