#!/usr/bin/env python3
"""host_network.py ADDRESS POOL [TAKEN …]: print this host's address for the other hosts, and what overlaps the pool.

Prints JSON: {"address": "192.0.2.7", "collisions": ["10.205.0.0/16 on eth0"]}. The address is ADDRESS if it is one of
this host's, else that of the default route; empty if there is none. A collision is a route of this host, or one of the
networks TAKEN, that overlaps POOL. Written for Python 3.9.
"""

from __future__ import annotations

import ipaddress
import json
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def own_address(candidate: str) -> str | None:
    try:
        ip = ipaddress.ip_address(candidate)
    except ValueError:
        return None
    family = socket.AF_INET if ip.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((candidate, 0))
        except OSError:
            return None
    return None if ip.is_loopback or ip.is_unspecified else candidate


def default_route_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Connecting UDP sends nothing and only chooses the route. The address is reserved for documentation.
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return ""
        return probe.getsockname()[0]


def routes() -> Iterator[tuple[ipaddress.IPv4Network, str]]:
    """Yield (network, interface) of each IPv4 route but the default one."""
    for line in Path("/proc/net/route").read_text().splitlines()[1:]:
        interface, destination, _, _, _, _, _, mask = line.split()[:8]
        network, netmask = (ipaddress.IPv4Address(int(word, 16).to_bytes(4, "little")) for word in (destination, mask))
        if int(netmask):
            yield ipaddress.IPv4Network(f"{network}/{netmask}"), "on " + interface


def main() -> None:
    candidate, pool_argument, *taken = sys.argv[1:]
    pool = ipaddress.ip_network(pool_argument)
    in_the_way = [*routes(), *((ipaddress.ip_network(network), "the engine's own pool") for network in taken)]
    address = own_address(candidate) or default_route_address()
    collisions = [
        f"{network} {what}" for network, what in in_the_way if network.version == 4 and network.overlaps(pool)
    ]
    sys.stdout.write(json.dumps({"address": address, "collisions": collisions}))


main()
