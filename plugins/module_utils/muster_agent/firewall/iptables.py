"""The rules for sessions as chains of iptables and ip6tables.

In the table filter, packets are refused. But the engine changes the order of FORWARD there: whenever it makes a
network, it accepts packets of that network first, and takes the call of DOCKER-USER away and puts it back. What is
forwarded in such a moment is dropped in the table security, which packets pass after filter, and which the engine does
not use.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from .backend import ELSEWHERE, Backend, FirewallError, is_installed, run, succeeds
from .site import GATEWAY_BRIDGE, GOSSIP_PORT, SESSION_BRIDGE, Opening, Site

INPUT = "MUSTER-INPUT"
FORWARD = "MUSTER-FORWARD"
SESSION = "MUSTER-SESSION"
HOST = "MUSTER-HOST"
PEERS = "MUSTER-PEERS"
CHAINS = {"filter": (INPUT, FORWARD, SESSION, HOST, PEERS), "security": (FORWARD, SESSION)}
_BRIDGES = (f"{SESSION_BRIDGE}+", GATEWAY_BRIDGE)
_KNOWN = "-m conntrack --ctstate RELATED,ESTABLISHED -j RETURN"


def iptables_rules(site: Site, version: int) -> str:
    """Return the chains as iptables-restore reads them."""
    own = site.of(version)
    refuse = "-j REJECT --reject-with " + ("icmp-admin-prohibited" if version == 4 else "icmp6-adm-prohibited")
    tcp, udp = f"{own.manager_port},{GOSSIP_PORT}", f"{own.data_port},{GOSSIP_PORT}"
    rules = [
        *(f"{INPUT} -i {bridge} -j {HOST}" for bridge in _BRIDGES),
        *_forwarding(own, refuse),
        f"{HOST} {_KNOWN}",
        *(f"{HOST} {rule}" for rule in _opened(own)),
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
    return _table("filter", rules) + _table("security", _forwarding(own, "-j DROP"))


def _forwarding(own: Site, refuse: str) -> list[str]:
    """Return the rules for what is forwarded from and to sessions; `refuse` says what becomes of what is closed."""
    tcp, udp = f"{own.manager_port},{GOSSIP_PORT}", f"{own.data_port},{GOSSIP_PORT}"
    return [
        f"{FORWARD} {_KNOWN}",
        # Within one bridge. The engine keeps those of different sessions apart, but for the moment in which it makes
        # another network: then it takes its own rule away and puts it first again.
        f"{FORWARD} -i {SESSION_BRIDGE}+ -o {SESSION_BRIDGE}+ -m physdev --physdev-is-bridged -j RETURN",
        *(f"{FORWARD} -i {bridge} -j {SESSION}" for bridge in _BRIDGES),
        # Published ports work by DNAT. Other hosts reach kernels in no other way.
        *(f"{FORWARD} -o {bridge} -m conntrack ! --ctstate DNAT -j DROP" for bridge in _BRIDGES),
        # Another session on this host, its published ports too.
        *(f"{SESSION} -o {bridge} {refuse}" for bridge in _BRIDGES),
        *(f"{SESSION} {rule}" for rule in _opened(own)),
        # To any address, since a host may have more addresses than the inventory knows.
        f"{SESSION} -p tcp -m multiport --dports {tcp} {refuse}",
        f"{SESSION} -p udp -m multiport --dports {udp} {refuse}",
        *(f"{SESSION} -d {network} {refuse}" for network in own.closed),
    ]


def _opened(own: Site) -> list[str]:
    return [f"-d {opening.network} {_iptables_port(opening)}-j RETURN" for opening in own.openings]


def _table(table: str, rules: list[str]) -> str:
    lines = f"*{table}", *(f":{chain} - [0:0]" for chain in CHAINS[table]), *(f"-A {rule}" for rule in rules), "COMMIT"
    return "".join(f"{line}\n" for line in lines)


def _iptables_port(opening: Opening) -> str:
    return "" if opening.port is None else f"-p {opening.protocol} --dport {opening.port} "


@dataclass(frozen=True)
class _Hook:
    """A chain of the host that calls one of ours."""

    version: int
    table: str
    chain: str
    ours: str

    @property
    def call(self) -> str:
        return f"-A {self.chain} -j {self.ours}"

    def __str__(self) -> str:
        return f"{_shown(self.version, self.table)} {self.call}\n"


class Iptables(Backend):
    """The rules as chains of iptables and, where the Linux kernel has IPv6, of ip6tables."""

    program = "iptables"
    # Nothing calls DOCKER-USER where the engine makes no rules of iptables: for IPv6 by default, for IPv4 too if its
    # daemon.json says `iptables: false` or `firewall-backend: nftables`.
    HOOKS = tuple(
        _Hook(version, table, chain, ours)
        for version in (4, 6)
        for table, chain, ours in (
            ("filter", "INPUT", INPUT),
            ("filter", "DOCKER-USER", FORWARD),
            ("filter", "FORWARD", FORWARD),
            ("security", "FORWARD", FORWARD),
        )
    )

    def __init__(self) -> None:
        self._versions = [4, 6] if Path("/proc/net/if_inet6").exists() and is_installed("ip6tables") else [4]

    def actual(self) -> str:
        return "".join(self._listing(version) + self._calls(version) for version in self._versions)

    def expected(self, site: Site) -> str:
        self._check_tables()
        return "".join(
            self._listing(version, iptables_rules(site, version))
            + "".join(str(hook) for hook in self.HOOKS if hook.version == version)
            for version in self._versions
        )

    def apply(self, site: Site) -> None:
        self._check_tables()
        for version in self._versions:
            run([_program(version, "-restore"), "--noflush"], stdin=iptables_rules(site, version))
        for hook in self._hooks():
            # An engine that starts later uses this chain as its own.
            if hook.chain == "DOCKER-USER":
                succeeds(_command(hook, "--new-chain", hook.chain))
            if not self._is_called(hook):
                run(_command(hook, "--insert", hook.chain, "--jump", hook.ours))
                for number in reversed(_places(hook)[1:]):
                    run(_command(hook, "--delete", hook.chain, str(number)))

    def remove(self) -> None:
        for hook in self._hooks():
            for number in reversed(_places(hook)):
                run(_command(hook, "--delete", hook.chain, str(number)))
        for version in self._versions:
            # Succeeds only for a chain that is empty and not called: then this program has created it.
            succeeds([_program(version), "--wait", "--delete-chain", "DOCKER-USER"])
            for table, chains in CHAINS.items():
                for action in ("--flush", "--delete-chain"):
                    for chain in chains:
                        succeeds([_program(version), "--wait", "--table", table, action, chain])

    def _check_tables(self) -> None:
        """Raises FirewallError where the Linux kernel lacks a table."""
        for version in self._versions:
            for table in CHAINS:
                program = _program(version)
                if not succeeds([program, "--wait", "--table", table, "--list-rules"]):
                    module = f"{program.removesuffix('s')}_{table}"
                    raise FirewallError(
                        f"{program} has no table {table} here: load the Linux module {module}, or set"
                        " session_firewall_backend to nftables"
                    )

    def _hooks(self) -> list[_Hook]:
        return [hook for hook in self.HOOKS if hook.version in self._versions]

    def _calls(self, version: int) -> str:
        return "".join(str(hook) for hook in self._hooks() if hook.version == version and self._is_called(hook))

    @staticmethod
    def _is_called(hook: _Hook) -> bool:
        """Return whether a chain calls ours before it accepts any packet, by a rule of its own or of a chain it calls.

        In the filter's FORWARD any place will do: the engine puts its own rules first there, at any time.
        """
        rules = _rules(hook)
        for rule in rules.get(hook.chain, []):
            if rule == hook.call:
                return True
            is_passed = _target(rule) == "RETURN" or _accepts(rule, rules)
            if is_passed and (hook.table, hook.chain) != ("filter", "FORWARD"):
                return False
        return False

    def _listing(self, version: int, elsewhere: str = "") -> str:
        """Return our chains as the host lists them, or as it would list the rules of `elsewhere`."""
        return "".join(self._listing_of(version, table, elsewhere) for table in CHAINS)

    @staticmethod
    def _listing_of(version: int, table: str, elsewhere: str) -> str:
        save = [_program(version, "-save"), "-t", table]
        if elsewhere:
            restore = f"{_program(version, '-restore')} --noflush && {' '.join(save)}"
            lines = run([*ELSEWHERE, "sh", "-c", restore], stdin=elsewhere).splitlines()
        else:
            # Where there is no such table, nothing of ours is in it.
            lines = run(save).splitlines() if succeeds(save) else []
        ours = [line for line in lines if line.startswith(tuple(f"-A {chain} " for chain in CHAINS[table]))]
        return "".join(f"{_shown(version, table)} {line}\n" for line in sorted(ours, key=lambda line: line.split()[1]))


def _places(hook: _Hook) -> list[int]:
    return [number for number, rule in enumerate(_rules(hook).get(hook.chain, []), 1) if rule == hook.call]


def _rules(hook: _Hook) -> dict[str, list[str]]:
    """Return the rules of the hook's table by their chains; none if there is no such table."""
    listing = _command(hook, "--list-rules")
    rules: dict[str, list[str]] = {}
    for line in run(listing).splitlines() if succeeds(listing) else []:
        if line.startswith("-A "):
            rules.setdefault(line.split()[1], []).append(line)
    return rules


def _command(hook: _Hook, *arguments: str) -> list[str]:
    return [_program(hook.version), "--wait", "--table", hook.table, *arguments]


def _program(version: int, suffix: str = "") -> str:
    return ("iptables" if version == 4 else "ip6tables") + suffix


def _shown(version: int, table: str) -> str:
    return f"ipv{version}" if table == "filter" else f"ipv{version} {table}"


def _accepts(rule: str, rules: dict[str, list[str]]) -> bool:
    """Return whether a rule accepts packets, or calls a chain with such a rule."""
    target = _target(rule)
    return target == "ACCEPT" or any(_accepts(called, rules) for called in rules.get(target, []))


def _target(rule: str) -> str:
    """Return what a rule does with a packet: the name of a target or of a chain."""
    words = shlex.split(rule)
    return next((words[place + 1] for place, word in enumerate(words[:-1]) if word in ("-j", "-g")), "")
