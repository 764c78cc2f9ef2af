"""The addresses and ports of which a host's rules for sessions are built."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Any, Union

Network = Union[ipaddress.IPv4Network, ipaddress.IPv6Network]

SESSION_BRIDGE = "mus-"
GATEWAY_BRIDGE = "docker_gwbridge"
GOSSIP_PORT = 7946
DNS_PORT = 53
# Link-local networks, which hold most clouds' metadata; then the metadata of AWS and Google by IPv6, and of Alibaba,
# Azure and Oracle.
METADATA = (
    *("169.254.0.0/16", "fe80::/10", "fd00:ec2::254", "fd20:ce::254"),
    *("100.100.100.200", "168.63.129.16", "192.0.0.192"),
)


@dataclass(frozen=True)
class Opening:
    """A network that sessions may reach although it is closed; a port of None means all ports."""

    network: Network
    protocol: str
    port: int | None


@dataclass(frozen=True)
class Site:
    """The addresses and ports of which the rules are built. `members` are the agents; None if they are in no swarm."""

    closed: tuple[Network, ...]
    openings: tuple[Opening, ...]
    members: tuple[Network, ...] | None
    manager_port: int
    data_port: int

    def of(self, version: int) -> Site:
        """Return the part of the site for one version of the Internet protocol."""
        return Site(
            closed=tuple(network for network in self.closed if network.version == version),
            openings=tuple(opening for opening in self.openings if opening.network.version == version),
            members=None
            if self.members is None
            else tuple(network for network in self.members if network.version == version),
            manager_port=self.manager_port,
            data_port=self.data_port,
        )


def site_of(configuration: dict[str, Any], nameservers: list[str]) -> Site:
    """Return the site that the file describes. Raises ValueError or KeyError if it is not valid.

    Name servers are open at port 53 even in closed networks, since the engine's resolver queries them from inside a
    kernel's network.
    """
    hosts = [address for entry in ("agents", "control") for own in configuration[entry].values() for address in own]
    members = [address for own in configuration["agents"].values() for address in own] + configuration["peers"]
    dns = [Opening(network, protocol, DNS_PORT) for network in _networks(nameservers) for protocol in ("tcp", "udp")]
    return Site(
        closed=_networks([*METADATA, *hosts, *configuration["closed"]]),
        openings=(
            *(
                Opening(network, entry.get("protocol") or "tcp", entry.get("port"))
                for entry in configuration["open"]
                for network in _networks([entry["to"]])
            ),
            *dns,
        ),
        members=_networks(members) if configuration["swarm"] else None,
        manager_port=configuration["manager_port"],
        data_port=configuration["data_port"],
    )


def _networks(texts: list[str]) -> tuple[Network, ...]:
    """Return the networks sorted, without those that another one contains."""
    networks = [ipaddress.ip_network(text) for text in texts]
    four = [network for network in networks if isinstance(network, ipaddress.IPv4Network)]
    six = [network for network in networks if isinstance(network, ipaddress.IPv6Network)]
    return (*ipaddress.collapse_addresses(four), *ipaddress.collapse_addresses(six))


def nameservers(resolv_conf: str, stub_conf: str, engine_options: dict[str, Any]) -> list[str]:
    """Return the name servers that the engine's resolver queries from inside kernels: none on a loopback address.

    If the host's name server is systemd-resolved, the engine uses its upstream servers instead (`stub_conf`).
    """
    if engine_options.get("dns"):
        found = list(engine_options["dns"])
    else:
        found = _servers(resolv_conf)
        if found == ["127.0.0.53"]:
            found = _servers(stub_conf)
    return [address for address in found if not ipaddress.ip_address(address).is_loopback]


def _servers(resolv_conf: str) -> list[str]:
    """Return the name servers of resolv.conf(5). What is no address is passed over, as the C library does."""
    lines = (line.split() for line in resolv_conf.splitlines())
    # A link-local address may name its interface: fe80::1%eth0.
    found = [words[1].partition("%")[0] for words in lines if len(words) > 1 and words[0] == "nameserver"]
    return [text for text in found if _is_address(text)]


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
