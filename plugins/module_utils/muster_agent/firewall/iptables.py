"""The rules for sessions as chains of iptables and ip6tables, called from INPUT, DOCKER-USER and FORWARD."""

from __future__ import annotations

import shlex
from pathlib import Path

from .backend import ELSEWHERE, Backend, is_installed, run, succeeds
from .site import GATEWAY_BRIDGE, GOSSIP_PORT, SESSION_BRIDGE, Opening, Site

INPUT = "MUSTER-INPUT"
FORWARD = "MUSTER-FORWARD"
SESSION = "MUSTER-SESSION"
HOST = "MUSTER-HOST"
PEERS = "MUSTER-PEERS"
CHAINS = (INPUT, FORWARD, SESSION, HOST, PEERS)


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
        # Within one bridge. The engine keeps those of different sessions apart, but for the moment in which it makes
        # another network: then it takes its own rule away and puts it first again.
        f"{FORWARD} -i {SESSION_BRIDGE}+ -o {SESSION_BRIDGE}+ -m physdev --physdev-is-bridged -j RETURN",
        *(f"{FORWARD} -i {bridge} -j {SESSION}" for bridge in bridges),
        # Published ports work by DNAT. Other hosts reach kernels in no other way.
        *(f"{FORWARD} -o {bridge} -m conntrack ! --ctstate DNAT -j DROP" for bridge in bridges),
        # Another session on this host, its published ports too.
        *(f"{SESSION} -o {bridge} {refuse}" for bridge in bridges),
        *(f"{SESSION} {rule}" for rule in opened),
        # To any address, since a host may have more addresses than the inventory knows.
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


class Iptables(Backend):
    """The rules as chains of iptables and, where the Linux kernel has IPv6, of ip6tables."""

    program = "iptables"
    # The chains that call ours. Nothing calls DOCKER-USER where the engine makes no rules of iptables: for IPv6 by
    # default, for IPv4 too if its daemon.json says `iptables: false` or `firewall-backend: nftables`.
    HOOKS = tuple(
        (version, chain, ours)
        for version in (4, 6)
        for chain, ours in (("INPUT", INPUT), ("DOCKER-USER", FORWARD), ("FORWARD", FORWARD))
    )

    def __init__(self) -> None:
        self._versions = [4, 6] if Path("/proc/net/if_inet6").exists() and is_installed("ip6tables") else [4]

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
            run(self._command(version, "-restore", "--noflush"), stdin=iptables_rules(site, version))
        for version, chain, ours in self._hooks():
            # An engine that starts later uses this chain as its own.
            if chain == "DOCKER-USER":
                succeeds(self._command(version, "", "--new-chain", chain))
            if not self._comes_first(version, chain, ours):
                run(self._command(version, "", "--insert", chain, "--jump", ours))
                for number in reversed(self._places(version, chain, ours)[1:]):
                    run(self._command(version, "", "--delete", chain, str(number)))

    def remove(self) -> None:
        for version, chain, ours in self._hooks():
            for number in reversed(self._places(version, chain, ours)):
                run(self._command(version, "", "--delete", chain, str(number)))
        for version in self._versions:
            # Succeeds only for a chain that is empty and not called: then this program has created it.
            succeeds(self._command(version, "", "--delete-chain", "DOCKER-USER"))
            for action in ("--flush", "--delete-chain"):
                for chain in CHAINS:
                    succeeds(self._command(version, "", action, chain))

    def _hooks(self) -> list[tuple[int, str, str]]:
        return [hook for hook in self.HOOKS if hook[0] in self._versions]

    def _calls(self, version: int) -> str:
        ours = [hook for hook in self._hooks() if hook[0] == version and self._comes_first(*hook)]
        return "".join(_call(*hook) for hook in ours)

    def _comes_first(self, version: int, chain: str, ours: str) -> bool:
        """Return whether a chain calls ours before it accepts any packet, by a rule of its own or of a chain it calls.

        An engine that starts puts its rules before ours in FORWARD: first of all the call of DOCKER-USER, which calls
        ours, and after it those that accept packets.
        """
        rules = self._rules(version)
        calls = {f"-A {chain} -j {called}" for called in (ours, *(("DOCKER-USER",) if chain == "FORWARD" else ()))}
        for rule in rules.get(chain, []):
            if rule in calls:
                return bool(self._places(version, chain, ours))
            if _target(rule) == "RETURN" or _accepts(rule, rules):
                return False
        return False

    def _places(self, version: int, chain: str, ours: str) -> list[int]:
        rules = self._rules(version).get(chain, [])
        return [number for number, rule in enumerate(rules, 1) if rule == f"-A {chain} -j {ours}"]

    def _rules(self, version: int) -> dict[str, list[str]]:
        """Return the host's rules by their chains."""
        rules: dict[str, list[str]] = {}
        for line in run(self._command(version, "", "--list-rules")).splitlines():
            if line.startswith("-A "):
                rules.setdefault(line.split()[1], []).append(line)
        return rules

    def _listing(self, version: int, elsewhere: str = "") -> str:
        """Return our chains as the host lists them, or as it would list the rules of `elsewhere`."""
        save = " ".join(self._command(version, "-save", "-t", "filter"))
        restore = " ".join(self._command(version, "-restore", "--noflush"))
        command = [*ELSEWHERE, "sh", "-c", f"{restore} && {save}"] if elsewhere else save.split()
        lines = run(command, stdin=elsewhere).splitlines()
        ours = [line for line in lines if line.startswith(tuple(f"-A {chain} " for chain in CHAINS))]
        return "".join(f"ipv{version} {line}\n" for line in sorted(ours, key=lambda line: line.split()[1]))

    @staticmethod
    def _command(version: int, suffix: str, *arguments: str) -> list[str]:
        program = ("iptables" if version == 4 else "ip6tables") + suffix
        return [program, *(("--wait",) if not suffix else ()), *arguments]


def _call(version: int, chain: str, ours: str) -> str:
    return f"ipv{version} -A {chain} -j {ours}\n"


def _accepts(rule: str, rules: dict[str, list[str]]) -> bool:
    """Return whether a rule accepts packets, or calls a chain with such a rule."""
    target = _target(rule)
    return target == "ACCEPT" or any(_accepts(called, rules) for called in rules.get(target, []))


def _target(rule: str) -> str:
    """Return what a rule does with a packet: the name of a target or of a chain."""
    words = shlex.split(rule)
    return next((words[place + 1] for place, word in enumerate(words[:-1]) if word in ("-j", "-g")), "")
