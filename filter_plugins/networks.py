"""Networks in the inventory, and the addresses of its hosts, for roles/session_firewall."""

import ipaddress
from collections.abc import Callable, Iterable, Mapping, Sequence


def _network_errors(networks: Iterable[object], field: str) -> list[str]:
    errors = []
    for text in networks:
        try:
            ipaddress.ip_network(str(text))
        except ValueError:
            errors.append(f"{field}: {text!r} is no network; write an address such as 10.0.0.5, or 10.0.0.0/24")
    return errors


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

    `hosts | muster_host_addresses(names, reported, resolved, known)`: the addresses of each host. They are those that
    the host reported in this run (`reported`), else in an earlier one (`known`), and those of its name in the
    inventory.
    """

    def filters(self) -> dict[str, Callable[..., object]]:
        return {"muster_network_errors": _network_errors, "muster_host_addresses": _host_addresses}
