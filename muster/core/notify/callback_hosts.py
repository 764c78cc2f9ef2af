"""Which hosts callbacks may be posted to: a user names the URL, and the control node posts to it."""

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from re import compile as pattern
from urllib.parse import urlsplit

from muster.core.spec.session_spec import SessionSpec
from muster.core.values.errors import FieldError, SpecError

Address = IPv4Address | IPv6Address
_NAME = pattern(r"[a-z0-9*?_.-]+")
# Where clouds serve a machine its own secrets, beside 169.254.169.254, which is link-local.
_METADATA = (ip_address("fd00:ec2::254"), ip_address("100.100.100.200"))


@dataclass(frozen=True, slots=True)
class CallbackHosts:
    """A site's allowed hosts, by patterns of names and networks of addresses; without either, all public addresses.

    Addresses of the control node (loopback), of its link and of a cloud's metadata are allowed by a network only.
    Others that are not public (the site's own networks) are allowed by a network or by the host's name. A name may come
    to mean any address.
    """

    names: tuple[str, ...] = ()
    networks: tuple[IPv4Network | IPv6Network, ...] = ()

    @classmethod
    def of(cls, entries: Iterable[str]) -> "CallbackHosts":
        """Return the allowed hosts of these texts. Raises ValueError for one that is no pattern and no network."""
        names: list[str] = []
        networks: list[IPv4Network | IPv6Network] = []
        for entry in entries:
            try:
                networks.append(ip_network(entry))
            except ValueError:
                if not _NAME.fullmatch(entry.lower()):
                    raise ValueError(f"{entry!r} is no host and no network") from None
                names.append(entry.lower())
        return cls(tuple(names), tuple(networks))

    def allow(self, host: str, address: Address) -> bool:
        """Return whether callbacks to a URL's host may be posted to this address."""
        address = _unmapped(address)
        if any(address in network for network in self.networks):
            return True
        if _is_own(address):
            return False
        return self._name(host) if self.names or self.networks else address.is_global

    def refuse(self, host: str) -> bool:
        """Return whether a URL's host is certainly refused, before its addresses are resolved."""
        try:
            return not self.allow(host, ip_address(host))
        except ValueError:
            host = host.lower().rstrip(".")
        if host == "localhost" or host.endswith(".localhost"):
            return not any(network.is_loopback for network in self.networks)
        return bool(self.names) and not self.networks and not self._name(host)

    def _name(self, host: str) -> bool:
        return any(fnmatchcase(host.lower().rstrip("."), name) for name in self.names)


def check_callback(spec: SessionSpec, allowed: CallbackHosts) -> None:
    """Check a callback's URL. Raises SpecError where it could never be posted.

    Its host's name is resolved only when it is posted.
    """
    host = None if spec.callback is None else urlsplit(spec.callback).hostname
    if host is not None and allowed.refuse(host):
        remedy = "name another host, or ask for it to be added to callback_hosts in muster.yml"
        raise SpecError([FieldError("callback", f"this site posts no callbacks to {host}", remedy)])


def _unmapped(address: Address) -> Address:
    return getattr(address, "ipv4_mapped", None) or address


def _is_own(address: Address) -> bool:
    return (
        address.is_loopback
        or address.is_link_local
        or address.is_unspecified
        or address.is_multicast
        or address in _METADATA
    )
