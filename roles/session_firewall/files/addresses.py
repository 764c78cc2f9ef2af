#!/usr/bin/env python3
"""addresses.py [NAME …]: print as JSON this host's own addresses, or those of hosts by their names.

Its own addresses are those by which others may reach it. Addresses that are loopback, link-local, temporary, or on the
engine's short-lived bridges are left out. A name that cannot be resolved has no addresses. Written for Python 3.9.
"""

from __future__ import annotations

import ipaddress
import json
import re
import socket
import subprocess
import sys

BRIDGES = re.compile(r"docker0|docker_gwbridge|mus-.*|br-[0-9a-f]{12}|veth.*")


def own_addresses() -> list[str]:
    listing = subprocess.run(["ip", "-json", "address"], stdout=subprocess.PIPE, check=True).stdout
    return sorted(
        {
            address["local"]
            for link in json.loads(listing)
            for address in link.get("addr_info", [])
            if not BRIDGES.fullmatch(link["ifname"])
            and address["scope"] == "global"
            and not address.get("temporary")
            and not ipaddress.ip_address(address["local"]).is_link_local
        }
    )


def addresses_of(name: str) -> list[str]:
    try:
        found = {str(entry[4][0]).partition("%")[0] for entry in socket.getaddrinfo(name, None)}
    except (OSError, UnicodeError):
        return []
    # On its own host, a name may resolve to a loopback address.
    return sorted(address for address in found if not ipaddress.ip_address(address).is_loopback)


def main(names: list[str]) -> None:
    json.dump({name: addresses_of(name) for name in names} if names else own_addresses(), sys.stdout)


main(sys.argv[1:])
