"""The rules that roles/session_firewall makes of what the inventory says."""

import ipaddress
from typing import Any

import pytest

from tests.modules.agent_code import firewall_site, iptables, nftables

REFUSED = "-j REJECT --reject-with icmp-admin-prohibited"


def site(*nameservers: str, **changes: Any) -> Any:
    configuration = {
        "agents": {"a1": ["192.0.2.11", "2001:db8::11"], "a2": ["192.0.2.12"]},
        "control": {"c1": ["192.0.2.1"]},
        "closed": [],
        "open": [],
        "peers": [],
        "swarm": True,
        "manager_port": 2377,
        "data_port": 4789,
    }
    return firewall_site.site_of({**configuration, **changes}, list(nameservers))


def rules_of(chain: str, version: int, given: Any, table: str = "filter") -> list[str]:
    of_table = iptables.iptables_rules(given, version).partition(f"*{table}\n")[2].partition("COMMIT\n")[0]
    lines = of_table.splitlines()
    return [line.removeprefix(f"-A {chain} ") for line in lines if line.startswith(f"-A {chain} ")]


def test_agents_the_control_node_and_metadata_are_closed_by_default():
    closed = {rule.split()[1] for rule in rules_of("MUSTER-SESSION", 4, site()) if rule.startswith("-d ")}
    assert {"192.0.2.11/32", "192.0.2.12/32", "192.0.2.1/32", "169.254.0.0/16"} <= closed
    closed = {rule.split()[1] for rule in rules_of("MUSTER-SESSION", 6, site()) if rule.startswith("-d ")}
    assert {"2001:db8::11/128", "fe80::/10", "fd00:ec2::254/128"} <= closed


def test_rules_that_open_come_before_those_that_close_on_hosts_too():
    opened = site(
        closed=["10.0.0.0/8"], open=[{"to": "10.0.0.5", "port": 443, "protocol": "tcp"}, {"to": "192.0.2.11"}]
    )
    for chain in ("MUSTER-SESSION", "MUSTER-HOST"):
        rules = rules_of(chain, 4, opened)
        returns = ["-d 10.0.0.5/32 -p tcp --dport 443 -j RETURN", "-d 192.0.2.11/32 -j RETURN"]
        assert [rule for rule in rules if rule.endswith("RETURN") and rule.startswith("-d")] == returns
        last = max(rules.index(rule) for rule in returns)
        assert last < min(number for number, rule in enumerate(rules) if REFUSED in rule and "-o " not in rule)
    assert f"-d 10.0.0.0/8 {REFUSED}" in rules_of("MUSTER-SESSION", 4, opened)


def test_what_is_refused_is_dropped_where_the_engines_rules_let_it_through():
    given = site("192.0.2.53", closed=["10.0.0.0/8"], open=[{"to": "10.0.0.5", "port": 443, "protocol": "tcp"}])
    for version, refused in ((4, REFUSED), (6, "-j REJECT --reject-with icmp6-adm-prohibited")):
        for chain in ("MUSTER-FORWARD", "MUSTER-SESSION"):
            dropped = rules_of(chain, version, given, "security")
            assert dropped == [rule.replace(refused, "-j DROP") for rule in rules_of(chain, version, given)]
            assert "REJECT" not in "".join(dropped)
    assert len(rules_of("MUSTER-SESSION", 4, given, "security")) > 5


def test_only_members_reach_the_swarms_ports_and_without_a_swarm_they_stay_open():
    members = site(peers=["198.51.100.0/24"])
    assert rules_of("MUSTER-PEERS", 4, members) == [
        "-i lo -j RETURN",
        *(f"-s {network} -j RETURN" for network in ("192.0.2.11/32", "192.0.2.12/32", "198.51.100.0/24")),
        "-j DROP",
    ]
    assert rules_of("MUSTER-PEERS", 4, site(swarm=False)) == []
    # Sessions do not even then.
    assert f"-p udp -m multiport --dports 4789,7946 {REFUSED}" in rules_of("MUSTER-SESSION", 4, site(swarm=False))


def test_a_name_server_in_a_closed_network_answers_at_its_port_alone():
    rules = rules_of("MUSTER-SESSION", 4, site("169.254.169.253"))
    dns = [f"-d 169.254.169.253/32 -p {protocol} --dport 53 -j RETURN" for protocol in ("tcp", "udp")]
    assert [rule for rule in rules if rule.startswith("-d 169.254.169.253")] == dns


@pytest.mark.parametrize(
    ("resolv_conf", "stub_conf", "options", "expected"),
    [
        ("nameserver 192.0.2.53\nsearch lab\n", "", {}, ["192.0.2.53"]),
        ("nameserver 127.0.0.53\n", "nameserver 192.0.2.53\nnameserver fe80::1%eth0\n", {}, ["192.0.2.53", "fe80::1"]),
        ("nameserver 192.0.2.53\n", "", {"dns": ["192.0.2.54"]}, ["192.0.2.54"]),
        ("nameserver 127.0.0.1\nnameserver ::1\n", "nameserver 192.0.2.53\n", {}, []),
        ("nameserver 192.0.2.53;\nnameserver gateway\nnameserver 192.0.2.54\n", "", {}, ["192.0.2.54"]),
        ("", "", {}, []),
    ],
)
def test_name_servers_are_those_that_the_engine_asks(resolv_conf, stub_conf, options, expected):
    assert firewall_site.nameservers(resolv_conf, stub_conf, options) == expected


def test_a_table_of_nftables_names_what_the_chains_name():
    given = site("192.0.2.53", closed=["10.0.0.0/8"], open=[{"to": "10.0.0.5", "port": 443, "protocol": "tcp"}])
    table = nftables.nft_rules(given)
    for network in (*given.closed, *given.members):
        assert str(network) in table
    assert table.count("ip daddr 10.0.0.5/32 tcp dport 443 return") == 2
    assert "udp dport { 4789, 7946 } jump peers" in table
    assert "jump peers" not in nftables.nft_rules(site(swarm=False))


def test_networks_are_merged_so_that_rules_stay_few():
    agents = {f"a{number}": [str(address)] for number, address in enumerate(ipaddress.ip_network("192.0.2.0/24"))}
    assert len(rules_of("MUSTER-PEERS", 4, site(agents=agents))) == 3
