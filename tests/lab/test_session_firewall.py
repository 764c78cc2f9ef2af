"""From inside a session neither hosts nor control node nor metadata can be reached, nor another session's overlay.

Each probe also runs without the rules, where it must arrive: otherwise it would show nothing.
"""

import json
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from tests.lab.bring_up import NETWORK, changes, provision_again
from tests.lab.control_node import LabControlNode
from tests.lab.lab import Lab

pytestmark = pytest.mark.timeout(900)
METADATA = "169.254.169.254"
# An address of nobody, which stands for all that is not the site's.
ELSEWHERE = "198.51.100.7"
ROLE = "session_firewall"
CONFIGURATION = "/etc/muster-firewall.json"
# A program that any tenant can run. A refusal by the address itself is an answer too: it was reached.
PROBE = """
import json, socket, struct, sys
from concurrent.futures import ThreadPoolExecutor
def connects(address, port):
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(3)
        try:
            probe.connect((address, port))
        except ConnectionRefusedError:
            pass
        except OSError:
            return False
        return True
def echoes(address):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP) as probe:
        probe.settimeout(3)
        words = [0x0800, 0, 0, 1]
        words[1] = 0xFFFF - sum(words)
        try:
            probe.sendto(struct.pack("!4H", *words), (address, 0))
            return probe.recv(64)[0] == 0
        except OSError:
            return False
targets = json.loads(sys.argv[1])
with ThreadPoolExecutor(len(targets)) as pool:
    print(json.dumps([*pool.map(lambda target: connects(*target) if target[1] else echoes(target[0]), targets)]))
"""
SEND = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
    sender.sendto(bytes.fromhex(sys.argv[3]), (sys.argv[1], int(sys.argv[2])))
"""
# It ends at a datagram that says so, which arrives over the overlay like the session's own.
LISTEN = """
import socket
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
    listener.settimeout(60)
    listener.bind(("0.0.0.0", 9000))
    print("ready", flush=True)
    while (word := listener.recv(64)) != b"end":
        print(word.decode(), flush=True)
"""
SWARM_PORTS = (2377, 7946)
DATA_PORT = 4789

Target = tuple[str, int]


@pytest.fixture(scope="module")
def node(lab: Lab, new_lab_node: Callable[..., LabControlNode]) -> LabControlNode:
    """Return a control node with the last host in a resource group of its own."""
    node = new_lab_node()
    node.set_host_variables(lab.hosts[-1].name, resource_group="apart")
    node.start_daemon()
    return node


@pytest.fixture(scope="module")
def gangs(node: LabControlNode) -> Iterator[tuple[dict, dict]]:
    """Yield two sessions on overlays: two kernels on one host and one on the other, for want of memory."""
    spread = ("--cluster-mode", "multi-node", "--cluster-size", "3", "--mem")
    names = [node.start(*spread, "9G"), node.start(*spread, "5G")]
    first, second = (node.show(name) for name in names)
    assert set(first["agents"]) == set(second["agents"])
    yield first, second
    node.run("terminate", *names, "--wait")


@pytest.fixture(scope="module")
def alone(node: LabControlNode) -> Iterator[dict]:
    """Yield a session of one kernel, on a bridge of the last host."""
    name = node.start("--resource-group", "apart")
    yield node.show(name)
    node.run("terminate", name, "--wait")


@contextmanager
def without_rules(lab: Lab) -> Iterator[None]:
    for host in lab.hosts:
        lab.run(host.name, "muster-firewall", "remove")
    try:
        yield
    finally:
        for host in lab.hosts:
            lab.run(host.name, "muster-firewall", "apply")


@pytest.fixture(scope="module", params=["iptables", "nftables"])
def rules(lab: Lab, request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield the means by which the hosts have the rules."""
    if request.param == "iptables":
        yield request.param
        return
    for host in lab.hosts:
        lab.run(host.name, "apt-get", "install", "-y", "-qq", "--no-install-recommends", "nftables")
    found = {host.name: lab.run(host.name, "cat", CONFIGURATION).out for host in lab.hosts}
    chosen = provision_again(ROLE, "-e", f"session_firewall_backend={request.param}")
    assert chosen.returncode == 0, chosen.stdout
    assert all("MUSTER" not in lab.run(host.name, "iptables-save").out for host in lab.hosts)
    yield request.param
    configure(lab, found)
    assert all("MUSTER" in lab.run(host.name, "iptables-save").out for host in lab.hosts)


def configure(lab: Lab, configurations: dict[str, str]) -> None:
    """Give hosts these configurations of the firewall, as the role would."""
    for host, configuration in configurations.items():
        lab.run(host, "tee", CONFIGURATION, stdin=configuration)
        lab.run(host, "muster-firewall", "apply")


@pytest.fixture(scope="module")
def metadata(lab: Lab) -> Iterator[None]:
    """Yield a cloud's metadata, beyond the uplinks of all hosts but the first."""
    first, *others = lab.hosts
    lab.run(first.name, "ip", "address", "add", f"{METADATA}/32", "dev", "lo")
    for host in others:
        lab.run(host.name, "ip", "route", "add", METADATA, "via", first.address)
    yield
    for host in others:
        lab.run(host.name, "ip", "route", "del", METADATA)
    lab.run(first.name, "ip", "address", "del", f"{METADATA}/32", "dev", "lo")


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[None]:
    """Add an address to an engine's bridge, which does not count as the control node's own."""
    subprocess.run(["ip", "address", "add", f"{ELSEWHERE}/32", "dev", "docker0"], check=True)
    yield
    subprocess.run(["ip", "address", "del", f"{ELSEWHERE}/32", "dev", "docker0"], check=True)


def run_in(lab: Lab, kernel: dict, *command: str) -> str:
    """Return the output of a program of the kernel's own user."""
    return lab.run(kernel["agent"], "docker", "exec", kernel["container_id"], *command).out


def reached(lab: Lab, kernel: dict, targets: list[Target]) -> list[Target]:
    """Return the targets that a program of the kernel reaches: by connecting, or by ping if the port is 0."""
    answers = json.loads(run_in(lab, kernel, "python3", "-c", PROBE, json.dumps(targets)))
    return [target for target, answer in zip(targets, answers, strict=True) if answer]


def forbidden(lab: Lab, kernel: dict, bridge: str) -> list[Target]:
    """Return every agent, its own by each of two addresses, the control node, and the metadata beyond its uplink."""
    gateway = lab.run(kernel["agent"], "sh", "-c", f"ip -4 -o address show dev {bridge} | grep -o 'inet [0-9.]*'").out
    agents = [*(host.address for host in lab.hosts), gateway.split()[1]]
    knocks = [(address, port) for address in agents for port in (0, 22, *SWARM_PORTS)]
    return [*knocks, (NETWORK.gateway, 0), (NETWORK.gateway, 22), (METADATA, 0), (METADATA, 22)]


def bridge_of(lab: Lab, kernel: dict) -> str:
    """Return the interface of its host by which the kernel reaches the outside."""
    network, _ = only_network(lab, kernel)
    options = ("--format", '{{index .Options "com.docker.network.bridge.name"}}', network)
    own = lab.run(kernel["agent"], "docker", "network", "inspect", *options).out.strip()
    return own or "docker_gwbridge"


@contextmanager
def without_the_engines_rules(lab: Lab, host: str) -> Iterator[None]:
    """Leave none but ours in FORWARD, as where the engine leaves iptables alone or uses nftables itself."""
    before = lab.run(host, "iptables-save", "--table", "filter").out
    others = "iptables -S FORWARD | grep -v MUSTER-FORWARD | sed -n 's/^-A/-D/p' | xargs -L 1 iptables --wait"
    lab.run(host, "sh", "-c", f"iptables --wait --policy FORWARD ACCEPT; {others}")
    try:
        yield
    finally:
        lab.run(host, "iptables-restore", stdin=before)


@contextmanager
def while_the_engine_makes_a_network(lab: Lab, host: str) -> Iterator[None]:
    """Accept everything first, as the engine does for a moment with what comes from networks that it has made."""
    accept = ("FORWARD", "--jump", "ACCEPT")
    lab.run(host, "iptables", "--wait", "--insert", *accept)
    try:
        yield
    finally:
        lab.run(host, "iptables", "--wait", "--delete", *accept)


@pytest.mark.usefixtures("metadata", "elsewhere")
def test_no_kernel_reaches_a_host_the_control_node_or_metadata(
    lab: Lab, gangs: tuple[dict, dict], alone: dict, rules: str
) -> None:
    second = lab.hosts[1].name
    on_overlay = next(kernel for kernel in gangs[0]["kernels"] if kernel["agent"] == second)
    for session, kernel in ((gangs[0], on_overlay), (alone, alone["kernels"][0])):
        closed = forbidden(lab, kernel, bridge_of(lab, kernel))
        # Addresses that belong to no host stay open, and so do the session's own names.
        free = [(ELSEWHERE, 0), (ELSEWHERE, 22)]
        names = [(peer["name"], port) for peer in session["kernels"] for port in (0, 2200)]
        everything = [*closed, *free, *names]
        assert reached(lab, kernel, everything) == [*free, *names], rules
        for change in (without_the_engines_rules, while_the_engine_makes_a_network):
            with change(lab, kernel["agent"]):
                assert reached(lab, kernel, everything) == [*free, *names], rules
        with without_rules(lab):
            assert reached(lab, kernel, everything) == everything


@contextmanager
def without_the_engines_wall(lab: Lab, host: str) -> Iterator[None]:
    """Take away what keeps networks apart before anything is forwarded: Docker 28 and newer have rules for that."""
    raw = ("iptables", "--wait", "--table", "raw")
    drops = [rule.split()[1:] for rule in lab.run(host, *raw, "--list-rules", "PREROUTING").out.splitlines()[1:]]
    for drop in drops:
        lab.run(host, *raw, "--delete", *drop)
    try:
        with while_the_engine_makes_a_network(lab, host):
            yield
    finally:
        for drop in drops:
            lab.run(host, *raw, "--append", *drop)


def test_sessions_of_one_host_are_kept_apart_without_the_engine(
    lab: Lab, node: LabControlNode, alone: dict, rules: str
) -> None:
    pair = node.start("--resource-group", "apart", "--cluster-size", "2")
    kernels = [alone["kernels"][0], *node.show(pair)["kernels"]]
    one, main, sub = ((only_network(lab, kernel)[1]["IPAddress"], 2200) for kernel in kernels)
    host = lab.hosts[-1].name
    with without_the_engines_wall(lab, host):
        assert reached(lab, kernels[0], [main, sub, (main[0], 0)]) == [], rules
        assert reached(lab, kernels[1], [one, sub, (sub[0], 0)]) == [sub, (sub[0], 0)], rules
        with without_rules(lab):
            assert reached(lab, kernels[0], [main, sub]) == [main, sub]
    node.run("terminate", pair, "--wait")


@dataclass(frozen=True)
class Victim:
    """A kernel on an overlay, and what an attacker needs to know of that."""

    network_id: int
    mac: str
    address: str

    def forged(self, payload: bytes) -> bytes:
        """Return a datagram to the kernel's port 9000 inside of VXLAN, from an address that is not in use."""
        data = struct.pack("!4H", 9000, 9000, 8 + len(payload), 0) + payload
        sender, receiver = socket.inet_aton("10.204.99.99"), socket.inet_aton(self.address)
        head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(data), 1, 0, 64, socket.IPPROTO_UDP, 0) + sender + receiver
        total = sum(struct.unpack("!10H", head))
        checksum = 0xFFFF - (total + (total >> 16) & 0xFFFF)
        frame = bytes.fromhex(self.mac.replace(":", "")) + bytes.fromhex("0242deadbeef") + b"\x08\x00"
        header = struct.pack("!BBHI", 8, 0, 0, self.network_id << 8)
        return header + frame + head[:10] + struct.pack("!H", checksum) + head[12:] + data


def options_of(lab: Lab, overlay: str) -> dict[str, str]:
    """Return the options of a network as the swarm's first manager, the lab's first host, has them."""
    return json.loads(
        lab.run(lab.hosts[0].name, "docker", "network", "inspect", "--format", "{{json .Options}}", overlay).out
    )


def only_network(lab: Lab, kernel: dict) -> tuple[str, dict]:
    """Return the name of the kernel's only network, and what the engine says of the kernel there."""
    networks = ("--format", "{{json .NetworkSettings.Networks}}", kernel["container_id"])
    ((name, own),) = json.loads(lab.run(kernel["agent"], "docker", "inspect", *networks).out).items()
    return name, own


def victim_of(lab: Lab, kernel: dict) -> Victim:
    network, own = only_network(lab, kernel)
    (number,) = options_of(lab, network)["com.docker.network.driver.overlay.vxlanid_list"].split(",")
    return Victim(int(number), own["MacAddress"], own["IPAddress"])


def arrived(lab: Lab, gangs: tuple[dict, dict]) -> list[str]:
    """Return which forged datagrams arrive in a kernel: from another session's kernels on other hosts and on its own,
    and by a machine of the hosts' network that is no agent.
    """
    attacker, (main, target, *_) = gangs[0], gangs[1]["kernels"]
    victim = victim_of(lab, target)
    host = next(host for host in lab.hosts if host.name == target["agent"])
    listening = ["docker", "exec", host.name, "docker", "exec", target["container_id"], "python3", "-c", LISTEN]
    with subprocess.Popen(listening, stdout=subprocess.PIPE, text=True) as listener:
        assert listener.stdout is not None
        assert listener.stdout.readline() == "ready\n"
        for kernel in attacker["kernels"]:
            origin = b"from its own host" if kernel["agent"] == host.name else b"from another host"
            run_in(lab, kernel, "python3", "-c", SEND, host.address, str(DATA_PORT), victim.forged(origin).hex())
        forged = victim.forged(b"from a bystander").hex()
        subprocess.run([sys.executable, "-c", SEND, host.address, str(DATA_PORT), forged], check=True)
        run_in(lab, main, "python3", "-c", SEND, target["name"], "9000", b"end".hex())
        return sorted({line.strip() for line in listener.stdout})


def test_no_forged_datagram_arrives_in_another_sessions_overlay(lab: Lab, gangs: tuple[dict, dict], rules: str) -> None:
    assert arrived(lab, gangs) == [], rules
    with without_rules(lab):
        assert arrived(lab, gangs) == ["from a bystander", "from another host", "from its own host"]


def test_the_doctor_says_of_each_agent_whether_its_overlays_are_encrypted(
    lab: Lab, node: LabControlNode, gangs: tuple[dict, dict]
) -> None:
    findings = {finding["check"]: finding for finding in node.run("doctor", "--json", check=False).json()}
    said = {host.name: findings[f"agent {host.name}: overlay encryption"]["ok"] for host in lab.hosts}
    for gang in gangs:
        options = options_of(lab, only_network(lab, gang["kernels"][0])[0])
        assert ("encrypted" in options) == all(said[agent] for agent in gang["agents"])


@pytest.mark.usefixtures("elsewhere")
def test_a_site_closes_and_opens_more_as_foretold_and_takes_it_back(lab: Lab, alone: dict) -> None:
    (kernel,) = alone["kernels"]
    host = kernel["agent"]
    own = next(known.address for known in lab.hosts if known.name == host)
    wishes = {
        "session_firewall_closed": ["198.51.100.0/24"],
        "session_firewall_open": [{"to": ELSEWHERE, "port": 80}, {"to": own, "port": 22}],
    }
    tried = [(ELSEWHERE, 0), (ELSEWHERE, 22), (ELSEWHERE, 80), (own, 22), (own, 7946)]
    assert reached(lab, kernel, tried) == tried[:3]
    only_there = (ROLE, "--limit", host)
    arguments = (*only_there, "-e", json.dumps(wishes))
    foretold = provision_again(*arguments, "--check", "--diff")
    assert reached(lab, kernel, tried) == tried[:3]
    done = provision_again(*arguments)
    assert done.returncode == 0, done.stdout
    assert changes(done) == changes(foretold) == {host: 2}
    assert "+ipv4 -A MUSTER-SESSION -d 198.51.100.0/24 -j REJECT" in foretold.stdout
    assert reached(lab, kernel, tried) == [(ELSEWHERE, 80), (own, 22)]
    assert changes(provision_again(*only_there)) == {host: 2}
    assert reached(lab, kernel, tried) == tried[:3]


def test_an_agent_that_others_do_not_know_is_made_known_to_them(lab: Lab) -> None:
    *others, last = lab.hosts
    for host in lab.hosts:
        lab.run(host.name, "sed", "-i", rf"s/{last.address}/192.0.2.77/", CONFIGURATION)
        lab.run(host.name, "muster-firewall", "apply")
    done = provision_again(ROLE, "--limit", last.name)
    assert done.returncode == 0, done.stdout
    for host in others:
        known = json.loads(lab.run(host.name, "cat", CONFIGURATION).out)["agents"]
        assert last.address in known[last.name]
        assert lab.run(host.name, "muster-firewall", "check").out == ""
    assert changes(provision_again(ROLE))[others[0].name] == 2


def test_bad_networks_are_answered_with_all_errors_and_nothing_is_done(lab: Lab) -> None:
    wishes = {
        "session_firewall_closed": ["10.0.0.1/8"],
        "session_firewall_open": [{"to": "10.1.0.20", "port": 99999}, {"to": "10.1.0.20", "protocol": "udp"}],
        "session_firewall_peers": ["lab"],
    }
    host = lab.hosts[0].name
    before = lab.run(host, "cat", CONFIGURATION).out
    done = provision_again(ROLE, "--limit", host, "-e", json.dumps(wishes))
    assert done.returncode != 0
    complaint = " ".join(done.stdout.split())
    assert "session_firewall_closed: '10.0.0.1/8' is no network" in complaint
    assert "session_firewall_peers: 'lab' is no network" in complaint
    assert "session_firewall_open: 99999 is no port" in complaint
    assert "session_firewall_open: 10.1.0.20 has a protocol without a port" in complaint
    assert lab.run(host, "cat", CONFIGURATION).out == before
    assert lab.run(host, "muster-firewall", "check").out == ""


def test_rules_that_a_host_cannot_apply_are_refused_before_anything_is_written(lab: Lab) -> None:
    host = lab.hosts[0].name
    before = lab.run(host, "cat", CONFIGURATION).out
    lab.run(host, "sh", "-c", "[ ! -e /usr/sbin/nft ] || mv /usr/sbin/nft /usr/sbin/nft.away")
    try:
        for mode in (["--check"], []):
            done = provision_again(ROLE, "--limit", host, "-e", "session_firewall_backend=nftables", *mode)
            assert (done.returncode, changes(done)) == (2, {}), done.stdout
            complaint = f"{host}: session_firewall_backend is nftables, and the rules cannot be applied: nftables"
            assert complaint in " ".join(done.stdout.split())
            assert lab.run(host, "cat", CONFIGURATION).out == before
    finally:
        lab.run(host, "sh", "-c", "[ ! -e /usr/sbin/nft.away ] || mv /usr/sbin/nft.away /usr/sbin/nft")
