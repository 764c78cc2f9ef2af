"""Networks in the inventory, and the addresses of its hosts, for roles/session_firewall."""

import ipaddress
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

_MOST_PORT = 65535
# The engine makes no smaller subnets.
_LONGEST_PREFIX = 29


def _network_errors(networks: object, field: str) -> list[str]:
    # Ansible takes a text for a list of its characters.
    if isinstance(networks, str | Mapping) or not isinstance(networks, Iterable):
        return [f"{field}: {networks!r} is not a list; write a list, even of one"]
    errors = []
    for text in networks:
        try:
            ipaddress.ip_network(str(text))
        except ValueError:
            errors.append(f"{field}: {text!r} is no network; write an address such as 10.0.0.5, or 10.0.0.0/24")
    return errors


def _exception_errors(exceptions: Iterable[Mapping[str, object]], field: str) -> list[str]:
    errors = _network_errors([exception["to"] for exception in exceptions], field)
    for exception in exceptions:
        if "port" in exception:
            errors += _port_errors(exception["port"], field)
        elif "protocol" in exception:
            errors.append(f"{field}: {exception['to']} has a protocol without a port, and would open all; give a port")
    return errors


def _port_errors(port: object, field: str) -> list[str]:
    number = int(str(port)) if str(port).isdecimal() else 0
    return [] if 1 <= number <= _MOST_PORT else [f"{field}: {port} is no port; write a number from 1 to {_MOST_PORT}"]


def _pool_errors(pool: object, prefix: object, fields: Sequence[str]) -> list[str]:
    try:
        least = ipaddress.ip_network(str(pool)).prefixlen
    except ValueError:
        return [f"{fields[0]}: {pool!r} is no network; write one such as 10.204.0.0/14"]
    if least > _LONGEST_PREFIX:
        return [f"{fields[0]}: {pool} has no room for subnets; write a larger one such as 10.204.0.0/14"]
    length = int(str(prefix)) if str(prefix).isdecimal() else 0
    if least <= length <= _LONGEST_PREFIX:
        return []
    problem = f"{prefix} is no prefix length of subnets in {pool}"
    return [f"{fields[1]}: {problem}; write a number from {least} to {_LONGEST_PREFIX}"]


def _manager_errors(managers: object, agents: Iterable[str], field: str) -> list[str]:
    if isinstance(managers, str) or not isinstance(managers, Iterable):
        return [f"{field}: {managers!r} is not a list; write a list, even of one"]
    known = set(agents)
    strangers = [str(manager) for manager in managers if manager not in known]
    if strangers:
        return [f"{field}: {', '.join(strangers)} is no host of the group `agents`; a manager must be an agent too"]
    return [] if list(managers) else [f"{field}: it is empty; name an agent, or three"]


def _host_addresses(
    hosts: Sequence[str],
    names: Mapping[str, str],
    reported: Mapping[str, Sequence[str]],
    resolved: Mapping[str, Sequence[str]],
    known: Mapping[str, Sequence[str]],
) -> dict[str, list[str]]:
    return {
        host: sorted({*reported.get(host, known.get(host, ())), *resolved.get(names.get(host) or host, ())})
        for host in hosts
    }


class FilterModule:
    """`networks | muster_network_errors(field)`: a line for each entry that is no network.

    `exceptions | muster_exception_errors(field)`: the same of mappings with `to`, `port` and `protocol`.

    `port | muster_port_errors(field)`: a line if it is no port.

    `pool | muster_pool_errors(prefix, fields)`: a line if a swarm takes no such pool, or no such subnets of it.

    `managers | muster_manager_errors(agents, field)`: a line if they cannot manage a swarm of these agents.

    `hosts | muster_host_addresses(names, reported, resolved, known)`: the addresses of each host. They are those that
    the host reported in this run (`reported`), else in an earlier one (`known`), and those of its name in the
    inventory.
    """

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {
            "muster_network_errors": _network_errors,
            "muster_exception_errors": _exception_errors,
            "muster_port_errors": _port_errors,
            "muster_pool_errors": _pool_errors,
            "muster_manager_errors": _manager_errors,
            "muster_host_addresses": _host_addresses,
        }
