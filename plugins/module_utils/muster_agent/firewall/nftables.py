"""The rules for sessions as a table of nftables, which hooks into the Linux kernel itself."""

from __future__ import annotations

from .backend import ELSEWHERE, Backend, run, succeeds
from .site import GATEWAY_BRIDGE, GOSSIP_PORT, SESSION_BRIDGE, Network, Opening, Site

NFT_TABLE = "muster"


def nft_rules(site: Site) -> str:
    """Return the table as `nft --file` reads it. It replaces an existing table in the same transaction."""
    refuse = "reject with icmpx type admin-prohibited"
    bridges = (f'"{SESSION_BRIDGE}*"', f'"{GATEWAY_BRIDGE}"')
    between_sessions = f"iifname {bridges[0]} oifname {bridges[0]}"
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
            f"{between_sessions} ct status dnat jump session",
            # To another bridge: another session's. iptables.py says why the engine's own rules are not enough.
            f"{between_sessions} fib daddr type unicast fib daddr . iif oif missing jump session",
            f"{between_sessions} accept",
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
    # Chains come before those that jump to them.
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


class Nftables(Backend):
    """The rules as a table of their own."""

    program = "nft"

    def actual(self) -> str:
        listing = ("nft", "--stateless", "list", "table", "inet", NFT_TABLE)
        return run([*listing]) if succeeds([*listing]) else ""

    def expected(self, site: Site) -> str:
        script = f"nft --file - && nft --stateless list table inet {NFT_TABLE}"
        return run([*ELSEWHERE, "sh", "-c", script], stdin=nft_rules(site))

    def apply(self, site: Site) -> None:
        run(["nft", "--file", "-"], stdin=nft_rules(site))

    def remove(self) -> None:
        succeeds(["nft", "delete", "table", "inet", NFT_TABLE])
