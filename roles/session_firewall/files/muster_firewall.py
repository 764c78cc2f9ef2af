#!/usr/bin/env python3
"""muster-firewall apply | check [-] | remove | learn AGENT ADDRESS …: what sessions and strangers reach on this host.

Reads /etc/muster-firewall.json, which roles/session_firewall writes. `check` prints how the host's rules differ from
that file, or from the one on standard input, as a diff, and changes nothing: exit status 0 if they do not, 1 if they
do. `learn` adds addresses of an agent to the file, applies it, and prints a line if that changed anything. Other exit
statuses are errors. Written for Python 3.9.

Sessions are what comes from their bridges (`mus-*`) and from the bridge by which overlays reach the outside. Rules are
chains of iptables and ip6tables, called from INPUT and DOCKER-USER, or a table of nftables, which needs no engine
that calls it.
"""

from __future__ import annotations

import difflib
import fcntl
import ipaddress
import json
import os
import shutil
import subprocess
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union

Network = Union[ipaddress.IPv4Network, ipaddress.IPv6Network]

CONFIGURATION = Path("/etc/muster-firewall.json")
LOCK = Path("/run/muster-firewall.lock")
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SESSION_BRIDGE = "mus-"
GATEWAY_BRIDGE = "docker_gwbridge"
IPTABLES = "iptables"
NFTABLES = "nftables"
GOSSIP_PORT = 7946
DNS_PORT = 53
# Link-local networks, with most clouds' metadata; the addresses of AWS and Google by IPv6, of Alibaba, Azure, Oracle.
METADATA = (
    *("169.254.0.0/16", "fe80::/10", "fd00:ec2::254", "fd20:ce::254"),
    *("100.100.100.200", "168.63.129.16", "192.0.0.192"),
)
INPUT = "MUSTER-INPUT"
FORWARD = "MUSTER-FORWARD"
SESSION = "MUSTER-SESSION"
HOST = "MUSTER-HOST"
PEERS = "MUSTER-PEERS"
CHAINS = (INPUT, FORWARD, SESSION, HOST, PEERS)
NFT_TABLE = "muster"


class FirewallError(Exception):
    """The rules cannot be read or set; the message is one line."""


@dataclass(frozen=True)
class Opening:
    """A network that sessions may reach although it is closed; None for any port."""

    network: Network
    protocol: str
    port: int | None


@dataclass(frozen=True)
class Site:
    """What the rules are made of. `members` are the agents; None where they are in no swarm."""

    closed: tuple[Network, ...]
    openings: tuple[Opening, ...]
    members: tuple[Network, ...] | None
    manager_port: int
    data_port: int

    def of(self, version: int) -> Site:
        """Return the part that one version of the Internet protocol needs."""
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
    """Return the site that the file describes. Raises ValueError or KeyError where it cannot be read.

    Name servers are open at their own port, wherever they are: the engine's resolver asks them from inside a kernel.
    """
    hosts = [address for entry in ("agents", "control") for own in configuration[entry].values() for address in own]
    members = [address for own in configuration["agents"].values() for address in own] + configuration["peers"]
    asked = [Opening(network, protocol, DNS_PORT) for network in _networks(nameservers) for protocol in ("tcp", "udp")]
    return Site(
        closed=_networks([*METADATA, *hosts, *configuration["closed"]]),
        openings=(
            *(
                Opening(network, entry.get("protocol") or "tcp", entry.get("port"))
                for entry in configuration["open"]
                for network in _networks([entry["to"]])
            ),
            *asked,
        ),
        members=_networks(members) if configuration["swarm"] else None,
        manager_port=configuration["manager_port"],
        data_port=configuration["data_port"],
    )


def _networks(texts: list[str]) -> tuple[Network, ...]:
    """Return the networks, without what others of them contain, in one order."""
    networks = [ipaddress.ip_network(text) for text in texts]
    four = [network for network in networks if isinstance(network, ipaddress.IPv4Network)]
    six = [network for network in networks if isinstance(network, ipaddress.IPv6Network)]
    return (*ipaddress.collapse_addresses(four), *ipaddress.collapse_addresses(six))


def nameservers(resolv_conf: str, stub_conf: str, engine_options: dict[str, Any]) -> list[str]:
    """Return the name servers that the engine's resolver asks from inside kernels: none on a loopback address.

    Where systemd-resolved answers for the host, the engine reads that one's own servers instead (`stub_conf`).
    """
    if engine_options.get("dns"):
        found = list(engine_options["dns"])
    else:
        found = _servers(resolv_conf)
        if found == ["127.0.0.53"]:
            found = _servers(stub_conf)
    return [address for address in found if not ipaddress.ip_address(address).is_loopback]


def _servers(resolv_conf: str) -> list[str]:
    lines = (line.split() for line in resolv_conf.splitlines())
    # An address of a link may name its interface: fe80::1%eth0.
    return [words[1].partition("%")[0] for words in lines if len(words) > 1 and words[0] == "nameserver"]


def iptables_rules(site: Site, version: int) -> str:
    """Return the chains as iptables-restore reads them."""
    own = site.of(version)
    refuse = "-j REJECT --reject-with " + ("icmp-admin-prohibited" if version == 4 else "icmp6-adm-prohibited")
    known = "-m conntrack --ctstate RELATED,ESTABLISHED -j RETURN"
    bridges = (f"{SESSION_BRIDGE}+", GATEWAY_BRIDGE)
    tcp, udp = f"{own.manager_port},{GOSSIP_PORT}", f"{own.data_port},{GOSSIP_PORT}"
    opened = [f"-d {opening.network} {_iptables_port(opening)}-j RETURN" for opening in own.openings]
    rules = [
        *(f"{INPUT} -i {bridge} -j {HOST}" for bridge in bridges),
        f"{FORWARD} {known}",
        # The engine keeps the bridges of sessions apart; here they may be one and the same.
        f"{FORWARD} -i {SESSION_BRIDGE}+ -o {SESSION_BRIDGE}+ -m conntrack ! --ctstate DNAT -j RETURN",
        *(f"{FORWARD} -i {bridge} -j {SESSION}" for bridge in bridges),
        # Publishing a port is DNAT: strangers reach kernels by nothing else.
        *(f"{FORWARD} -o {bridge} -m conntrack ! --ctstate DNAT -j DROP" for bridge in bridges),
        # Another session's published port on this very host.
        *(f"{SESSION} -o {bridge} {refuse}" for bridge in bridges),
        *(f"{SESSION} {rule}" for rule in opened),
        # To any address at all: a host may have more of them than the inventory knows.
        f"{SESSION} -p tcp -m multiport --dports {tcp} {refuse}",
        f"{SESSION} -p udp -m multiport --dports {udp} {refuse}",
        *(f"{SESSION} -d {network} {refuse}" for network in own.closed),
        f"{HOST} {known}",
        *(f"{HOST} {rule}" for rule in opened),
        *(f"{HOST} -p ipv6-icmp -m icmp6 --icmpv6-type {kind} -j RETURN" for kind in (135, 136) if version == 6),
        f"{HOST} {refuse}",
    ]
    if own.members is not None:
        rules += [
            f"{INPUT} -p tcp -m multiport --dports {tcp} -j {PEERS}",
            f"{INPUT} -p udp -m multiport --dports {udp} -j {PEERS}",
            f"{PEERS} -i lo -j RETURN",
            *(f"{PEERS} -s {network} -j RETURN" for network in own.members),
            f"{PEERS} -j DROP",
        ]
    return "".join(
        f"{line}\n"
        for line in ("*filter", *(f":{chain} - [0:0]" for chain in CHAINS), *(f"-A {rule}" for rule in rules), "COMMIT")
    )


def _iptables_port(opening: Opening) -> str:
    return "" if opening.port is None else f"-p {opening.protocol} --dport {opening.port} "


def nft_rules(site: Site) -> str:
    """Return the table as `nft --file` reads it: one that is there is replaced in the same transaction."""
    refuse = "reject with icmpx type admin-prohibited"
    bridges = (f'"{SESSION_BRIDGE}*"', f'"{GATEWAY_BRIDGE}"')
    tcp, udp = f"{{ {site.manager_port}, {GOSSIP_PORT} }}", f"{{ {site.data_port}, {GOSSIP_PORT} }}"
    sets = [
        _nft_set(
            f"{name}{version}", f"ipv{version}_addr", [network for network in networks if network.version == version]
        )
        for name, networks in (("closed", site.closed), ("members", site.members or ()))
        for version in (4, 6)
    ]
    opened = [_nft_opening(opening) for opening in site.openings]
    chains = {
        "input": [
            "type filter hook input priority filter - 1; policy accept;",
            *(f"iifname {bridge} jump host" for bridge in bridges),
            *([] if site.members is None else [f"tcp dport {tcp} jump peers", f"udp dport {udp} jump peers"]),
        ],
        "forward": [
            "type filter hook forward priority filter - 1; policy accept;",
            "ct state established,related accept",
            f"iifname {bridges[0]} oifname {bridges[0]} ct status dnat jump session",
            f"iifname {bridges[0]} oifname {bridges[0]} accept",
            *(f"iifname {bridge} jump session" for bridge in bridges),
            "ct status dnat accept",
            *(f"oifname {bridge} drop" for bridge in bridges),
        ],
        "session": [
            *(f"oifname {bridge} {refuse}" for bridge in bridges),
            *opened,
            f"tcp dport {tcp} {refuse}",
            f"udp dport {udp} {refuse}",
            f"ip daddr @closed4 {refuse}",
            f"ip6 daddr @closed6 {refuse}",
        ],
        "host": [
            "ct state established,related return",
            *opened,
            "icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } return",
            refuse,
        ],
        "peers": ['iifname "lo" return', "ip saddr @members4 return", "ip6 saddr @members6 return", "drop"],
    }
    # A chain is there before others jump to it.
    order = ("peers", "host", "session", "input", "forward")
    body = "".join(f"  chain {name} {{\n{_indented(chains[name])}  }}\n" for name in order)
    return (
        f"table inet {NFT_TABLE}\ndelete table inet {NFT_TABLE}\ntable inet {NFT_TABLE} {{\n{''.join(sets)}{body}}}\n"
    )


def _indented(lines: list[str]) -> str:
    return "".join(f"    {line}\n" for line in lines)


def _nft_set(name: str, kind: str, networks: list[Network]) -> str:
    elements = f"    elements = {{ {', '.join(map(str, networks))} }}\n" if networks else ""
    return f"  set {name} {{\n    type {kind}\n    flags interval\n{elements}  }}\n"


def _nft_opening(opening: Opening) -> str:
    family = "ip" if opening.network.version == 4 else "ip6"
    port = "" if opening.port is None else f"{opening.protocol} dport {opening.port} "
    return f"{family} daddr {opening.network} {port}return"


class Backend(ABC):
    """A means by which a host has the rules. `actual` is what it has of them, as text; `expected`, what it should."""

    program: str

    @abstractmethod
    def actual(self) -> str: ...

    @abstractmethod
    def expected(self, site: Site) -> str: ...

    @abstractmethod
    def apply(self, site: Site) -> None: ...

    @abstractmethod
    def remove(self) -> None: ...


class Iptables(Backend):
    """The rules as chains of iptables and, where the Linux kernel has IPv6, of ip6tables."""

    program = "iptables"
    # Who calls our chains. An engine that leaves IPv6 alone calls no DOCKER-USER there.
    HOOKS = (
        *((version, chain, ours) for version in (4, 6) for chain, ours in (("INPUT", INPUT), ("DOCKER-USER", FORWARD))),
        (6, "FORWARD", FORWARD),
    )

    def __init__(self) -> None:
        self._versions = [4, 6] if Path("/proc/net/if_inet6").exists() and _found("ip6tables") else [4]

    def actual(self) -> str:
        return "".join(self._listing(version) + self._calls(version) for version in self._versions)

    def expected(self, site: Site) -> str:
        return "".join(
            self._listing(version, iptables_rules(site, version))
            + "".join(_call(version, chain, ours) for of, chain, ours in self.HOOKS if of == version)
            for version in self._versions
        )

    def apply(self, site: Site) -> None:
        for version in self._versions:
            _run(self._command(version, "-restore", "--noflush"), stdin=iptables_rules(site, version))
        for version, chain, ours in self._hooks():
            # An engine that starts takes the chain that is there for its own.
            if chain == "DOCKER-USER":
                _succeeds(self._command(version, "", "--new-chain", chain))
            if not self._comes_first(version, chain, ours):
                _run(self._command(version, "", "--insert", chain, "--jump", ours))
                for number in reversed(self._places(version, chain, ours)[1:]):
                    _run(self._command(version, "", "--delete", chain, str(number)))

    def remove(self) -> None:
        for version, chain, ours in self._hooks():
            for number in reversed(self._places(version, chain, ours)):
                _run(self._command(version, "", "--delete", chain, str(number)))
        for version in self._versions:
            # One that is empty and that nobody calls is from here.
            _succeeds(self._command(version, "", "--delete-chain", "DOCKER-USER"))
            for action in ("--flush", "--delete-chain"):
                for chain in CHAINS:
                    _succeeds(self._command(version, "", action, chain))

    def _hooks(self) -> list[tuple[int, str, str]]:
        return [hook for hook in self.HOOKS if hook[0] in self._versions]

    def _calls(self, version: int) -> str:
        ours = [hook for hook in self._hooks() if hook[0] == version and self._comes_first(*hook)]
        return "".join(_call(*hook) for hook in ours)

    def _comes_first(self, version: int, chain: str, ours: str) -> bool:
        """Return whether a chain calls ours before it lets any packet pass.

        In FORWARD an engine puts its own rules first when it starts; where they matter, it calls DOCKER-USER before.
        """
        places = self._places(version, chain, ours)
        if chain == "FORWARD":
            return bool(places)
        passing = [number for number, rule in self._rules(version, chain) if rule.endswith(("-j ACCEPT", "-j RETURN"))]
        return bool(places) and places[0] < min(passing, default=places[0] + 1)

    def _places(self, version: int, chain: str, ours: str) -> list[int]:
        return [number for number, rule in self._rules(version, chain) if rule == f"-A {chain} -j {ours}"]

    def _rules(self, version: int, chain: str) -> list[tuple[int, str]]:
        """Return a chain's rules by their numbers; none of a chain that is not there."""
        listing = self._command(version, "", "--list-rules", chain)
        lines = _run(listing).splitlines() if _succeeds(listing) else []
        return list(enumerate((line for line in lines if line.startswith("-A ")), 1))

    def _listing(self, version: int, elsewhere: str = "") -> str:
        """Return our chains as the host lists them, or as it would list these rules."""
        save = " ".join(self._command(version, "-save", "-t", "filter"))
        restore = " ".join(self._command(version, "-restore", "--noflush"))
        command = [*_ELSEWHERE, "sh", "-c", f"{restore} && {save}"] if elsewhere else save.split()
        lines = _run(command, stdin=elsewhere).splitlines()
        ours = [line for line in lines if line.startswith(tuple(f"-A {chain} " for chain in CHAINS))]
        return "".join(f"ipv{version} {line}\n" for line in sorted(ours, key=lambda line: line.split()[1]))

    @staticmethod
    def _command(version: int, suffix: str, *arguments: str) -> list[str]:
        program = ("iptables" if version == 4 else "ip6tables") + suffix
        return [program, *(("--wait",) if not suffix else ()), *arguments]


class Nftables(Backend):
    """The rules as a table of their own."""

    program = "nft"

    def actual(self) -> str:
        listing = ("nft", "--stateless", "list", "table", "inet", NFT_TABLE)
        return _run([*listing]) if _succeeds([*listing]) else ""

    def expected(self, site: Site) -> str:
        script = f"nft --file - && nft --stateless list table inet {NFT_TABLE}"
        return _run([*_ELSEWHERE, "sh", "-c", script], stdin=nft_rules(site))

    def apply(self, site: Site) -> None:
        _run(["nft", "--file", "-"], stdin=nft_rules(site))

    def remove(self) -> None:
        _succeeds(["nft", "delete", "table", "inet", NFT_TABLE])


# A network namespace that ends with the command: what the rules look like once they are set, without setting them.
_ELSEWHERE = ("unshare", "--net")
_ENVIRONMENT = {**os.environ, "PATH": SYSTEM_PATH, "LC_ALL": "C"}
BACKENDS: dict[str, type[Backend]] = {IPTABLES: Iptables, NFTABLES: Nftables}


def _call(version: int, chain: str, ours: str) -> str:
    return f"ipv{version} -A {chain} -j {ours}\n"


def _found(program: str) -> bool:
    return shutil.which(program, path=SYSTEM_PATH) is not None


def _run(command: list[str], stdin: str = "") -> str:
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, env=_ENVIRONMENT, check=False)
    if done.returncode != 0:
        raise FirewallError(f"{' '.join(command[:3])}: {' '.join(done.stderr.split()) or done.returncode}")
    return done.stdout


def _succeeds(command: list[str]) -> bool:
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=_ENVIRONMENT, check=False)
    return done.returncode == 0


class Firewall:
    """What a configuration says, and the means by which this host has it."""

    def __init__(self, text: str) -> None:
        try:
            self.configuration: dict[str, Any] = json.loads(text)
            self.site = site_of(self.configuration, _nameservers_here())
            chosen = self.configuration["backend"]
        except (ValueError, KeyError) as error:
            raise FirewallError(f"{CONFIGURATION}: {error}; run playbooks/site.yml") from None
        there = [name for name, backend in BACKENDS.items() if _found(backend.program)]
        if not there or (chosen != "auto" and chosen not in there):
            raise FirewallError("install iptables or nftables" if chosen == "auto" else f"{chosen} is not installed")
        self._chosen = there[0] if chosen == "auto" else chosen
        self._others = [name for name in there if name != self._chosen]

    def difference(self) -> str:
        """Return what `apply` would change, as a diff."""
        backend = BACKENDS[self._chosen]()
        pairs = [
            (backend.actual(), backend.expected(self.site)),
            *((BACKENDS[name]().actual(), "") for name in self._others),
        ]
        return "".join(
            line
            for before, after in pairs
            for line in difflib.unified_diff(before.splitlines(True), after.splitlines(True), "is", "shall be", n=0)
        )

    def apply(self) -> None:
        """Have the rules, by one means alone."""
        BACKENDS[self._chosen]().apply(self.site)
        for name in self._others:
            BACKENDS[name]().remove()


def learn(agent: str, addresses: list[str]) -> bool:
    """Add an agent's addresses to the file and to the rules; return whether there were any new ones."""
    configuration = json.loads(_configuration())
    known = configuration["agents"].get(agent, [])
    learned = sorted({*known, *(str(ipaddress.ip_address(address)) for address in addresses)})
    if learned == known:
        return False
    configuration["agents"][agent] = learned
    # As the role writes it.
    text = json.dumps(configuration, indent=4, sort_keys=True) + "\n"
    Firewall(text).apply()
    unfinished = CONFIGURATION.with_suffix(".new")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(CONFIGURATION)
    return True


def _configuration() -> str:
    try:
        return CONFIGURATION.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise FirewallError(f"{CONFIGURATION} is missing: run playbooks/site.yml") from None


def _nameservers_here() -> list[str]:
    daemon = _text("/etc/docker/daemon.json")
    return nameservers(
        _text("/etc/resolv.conf"),
        _text("/run/systemd/resolve/resolv.conf"),
        json.loads(daemon) if daemon.strip() else {},
    )


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def main(arguments: list[str]) -> int:
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if arguments == ["apply"]:
            Firewall(_configuration()).apply()
        elif arguments in (["check"], ["check", "-"]):
            difference = Firewall(sys.stdin.read() if arguments[1:] else _configuration()).difference()
            sys.stdout.write(difference)
            return 1 if difference else 0
        elif arguments == ["remove"]:
            for backend in BACKENDS.values():
                if _found(backend.program):
                    backend().remove()
        elif arguments[:1] == ["learn"] and len(arguments) > 2:
            if learn(arguments[1], arguments[2:]):
                sys.stdout.write(f"{arguments[1]} is known now\n")
        else:
            sys.stderr.write(f"{__doc__}\n")
            return 2
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (FirewallError, ValueError) as problem:
        sys.stderr.write(f"muster-firewall: {problem}\n")
        sys.exit(2)
