"""A user's callback reaches what only the control node reaches, or holds the delivery worker up for ever."""

import socket
import threading
from collections.abc import Iterator
from ipaddress import ip_address

import pytest

from muster.core.notify.callback_hosts import CallbackHosts
from muster.service.notify import callbacks
from muster.service.notify.callbacks import DeliveryError, post
from tests.strategies.sessions import make_session
from tests.unit.notify.test_delivery_worker import Site, hook, work_until

INSIDE = (
    *("127.0.0.1", "10.0.0.5", "172.16.3.4", "192.168.1.1", "100.64.0.1", "169.254.169.254", "0.0.0.0"),
    *("::1", "fe80::1", "fd00::1", "::ffff:10.0.0.5", "fd00:ec2::254", "198.18.0.1", "224.0.0.1", "255.255.255.255"),
    # Ways to write 169.254.169.254 and 10.0.0.1 that a network's gateway understands, and a site's own networks.
    *("::ffff:169.254.169.254", "::ffff:a9fe:a9fe", "64:ff9b::a9fe:a9fe", "64:ff9b::10.0.0.1", "::169.254.169.254"),
    *("2002:a9fe:a9fe::1", "2002:a00:1::", "::ffff:0:169.254.169.254", "64:ff9b:1::a00:1", "fec0::1", "fe80::1%eth0"),
)


@pytest.fixture
def inside(sites: list[Site]) -> Site:
    """Return a server of the control node's own."""
    return sites[-1]


@pytest.fixture
def sites() -> Iterator[list[Site]]:
    running = [Site() for _ in range(10)]
    yield running
    for site in running:
        site.let_go.set()
        site.server.shutdown()
        site.server.server_close()


@pytest.mark.parametrize("address", INSIDE)
def test_a_site_that_says_nothing_posts_to_public_addresses_alone(address):
    assert not CallbackHosts().allow("hooks.example.org", ip_address(address))
    assert CallbackHosts().refuse(address)


def test_public_addresses_and_what_the_site_names_are_open():
    assert CallbackHosts().allow("hooks.example.org", ip_address("93.184.215.14"))
    assert CallbackHosts().allow("hooks.example.org", ip_address("2606:2800:220:1::1"))
    assert CallbackHosts().allow("hooks.example.org", ip_address("64:ff9b::93.184.215.14"))
    assert CallbackHosts.of(["10.0.0.0/8"]).allow("intranet", ip_address("10.0.0.5"))
    assert CallbackHosts.of(["10.0.0.0/8"]).allow("intranet", ip_address("::ffff:10.0.0.5"))
    assert CallbackHosts.of(["::1/128"]).allow("localhost", ip_address("::1"))
    assert CallbackHosts.of(["hooks.lab.example"]).allow("hooks.lab.example", ip_address("10.0.0.5"))


@pytest.mark.parametrize(
    "host",
    ["127.1", "2130706433", "0x7f000001", "0177.0.0.1", "127.0.0.1.", "[::1]", "[::ffff:127.0.0.1]", "localhost"],
)
def test_a_spelling_of_the_control_node_is_not_posted_to(inside, host):
    with pytest.raises(DeliveryError):
        post(inside.url("/").replace("127.0.0.1", f"user@{host}"), "{}", CallbackHosts())
    assert inside.received == []


def test_a_name_that_resolves_anew_to_another_address_is_posted_to_the_first(inside, monkeypatch):
    """DNS rebinding: the first answer is for the check, the second one for the connection."""
    answers, resolved = ["127.0.0.2", "127.0.0.1", "127.0.0.1"], socket.getaddrinfo

    def resolve(host, *arguments, **options):
        return resolved(answers.pop(0) if host == "hooks.example.org" else host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(DeliveryError, match="cannot be reached"):
        post(inside.url("/").replace("127.0.0.1", "hooks.example.org"), "{}", CallbackHosts.of(["127.0.0.2/32"]))
    assert (inside.received, len(answers)) == ([], 2)


def test_a_redirect_leads_nowhere(inside, sites):
    sites[0].location = inside.url("/")
    with pytest.raises(DeliveryError, match="answered with status 30"):
        post(sites[0].url("/away"), "{}", CallbackHosts.of(["127.0.0.1/32"]))
    assert inside.received == []


@pytest.mark.parametrize("beginning", [b"HTTP/1.1 200 OK\r\nX-Long: ", b""])
def test_an_answer_that_comes_byte_by_byte_is_ended_in_time(monkeypatch, beginning):
    """Each byte came within the library's timeout, so that it waited for ever."""
    monkeypatch.setattr(callbacks, "_TOTAL_TIMEOUT_S", 0.3)
    server = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def drip() -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(1 << 16)
            connection.sendall(beginning)
            try:
                while not over.wait(0.02):
                    connection.sendall(b"x")
            except OSError:
                pass

    thread = threading.Thread(target=drip)
    thread.start()
    with pytest.raises(DeliveryError, match="did not answer in time"):
        post(f"http://127.0.0.1:{server.getsockname()[1]}/", "{}", CallbackHosts.of(["127.0.0.0/8"]))
    assert not over.is_set()
    over.set()
    thread.join()
    server.close()


def test_an_owners_callbacks_that_never_end_hold_up_no_hook_and_no_other_owner(store, worker, sites, tmp_path):
    hook(tmp_path, "note", f"cat >> {tmp_path}/noted; echo >> {tmp_path}/noted")
    eves = [make_session(n, owner="eve", callback=sites[n % 10].url("/slow")) for n in range(1, 41)]
    store.add([*eves, make_session(41, owner="bob", callback=sites[0].url("/ok"))])
    work_until(worker, lambda: (tmp_path / "noted").exists() and (tmp_path / "noted").read_text().count("\n") == 41)
    work_until(worker, lambda: "/ok" in sites[0].paths())
    work_until(worker, lambda: sum(site.paths().count("/slow") for site in sites) == 4)
    worker.send_out()
    assert sum(site.paths().count("/slow") for site in sites) == 4
