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
# A part of an address of IPv4, as inet_aton reads it: hexadecimal, octal or decimal.
_NUMBER = pattern(r"0x([0-9a-f]{1,8})|(0[0-7]{0,11})|([1-9][0-9]{0,9})")
# Where clouds serve a machine its own secrets, beside 169.254.169.254, which is link-local.
_METADATA = (ip_address("fd00:ec2::254"), ip_address("100.100.100.200"))
# Whose last 32 bits are an address of IPv4: for NAT64 (RFC 6052), and in two forms that went out of use.
_WITH_IPV4 = (ip_network("64:ff9b::/96"), ip_network("::ffff:0:0:0/96"), ip_network("::/96"))
# Of a site's own, whatever Python says: of its NAT64 (RFC 8215), and the addresses before fc00::/7.
_NOT_PUBLIC = (ip_network("64:ff9b:1::/48"), ip_network("fec0::/10"))


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
        return all(self._allow_one(host, meant) for meant in _meant(address))

    def _allow_one(self, host: str, address: Address) -> bool:
        if any(address in network for network in self.networks):
            return True
        if _is_own(address):
            return False
        return self._name(host) if self.names or self.networks else _is_public(address)

    def refuse(self, host: str) -> bool:
        """Return whether a URL's host is certainly refused, before its addresses are resolved."""
        host = host.lower().rstrip(".")
        address = _address_of(host)
        if address is not None:
            return not self.allow(host, address)
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


def _address_of(host: str) -> Address | None:
    """Return the address that a host is, also in the ways of inet_aton: 127.1, 0x7f.0.0.1, 2130706433."""
    try:
        return ip_address(host)
    except ValueError:
        found = [_NUMBER.fullmatch(part) for part in host.split(".")]
    numbers = [int(one[1] or one[2] or one[3], 16 if one[1] else 8 if one[2] else 10) for one in found if one]
    *first, last = numbers or [0]
    if len(numbers) != len(found) or any(number > 255 for number in first) or last >= 256 ** max(4 - len(first), 0):
        return None
    return IPv4Address(sum(number << 8 * (3 - place) for place, number in enumerate(first)) + last)


def _meant(address: Address) -> tuple[Address, ...]:
    """Return the address, and what a gateway would make of it; of a mapped one only what it stands for."""
    if isinstance(address, IPv4Address):
        return (address,)
    # First: newer Pythons call one a loopback address that stands for one.
    if address.ipv4_mapped:
        return (address.ipv4_mapped,)
    if address.is_loopback or address.is_unspecified:
        return (address,)
    if address.sixtofour:
        return address, address.sixtofour
    if any(address in network for network in _WITH_IPV4):
        return address, IPv4Address(int(address) & 0xFFFFFFFF)
    return (address,)


def _is_public(address: Address) -> bool:
    return address.is_global and not any(address in network for network in _NOT_PUBLIC)


def _is_own(address: Address) -> bool:
    return (
        address.is_loopback
        or address.is_link_local
        or address.is_unspecified
        or address.is_multicast
        or address in _METADATA
    )
