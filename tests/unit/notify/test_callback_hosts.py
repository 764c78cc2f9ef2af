"""The addresses to which the control node posts callbacks, for any host name."""

import datetime as dt
import socket
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path

import pytest
import requests
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from muster.core.notify.callback_hosts import CallbackHosts, check_callback
from muster.core.spec.errors import validated
from muster.core.spec.session_spec import SessionSpec
from muster.core.values.errors import SettingsError, SpecError
from muster.service.notify.callbacks import DeliveryError, post
from muster.settings import load_settings

EVERYWHERE = CallbackHosts()
HERE = CallbackHosts.of(["127.0.0.0/8"])


@pytest.mark.parametrize(
    ("entries", "host", "address", "allowed"),
    [
        ([], "hooks.example.org", "93.184.215.14", True),
        ([], "intranet", "10.1.2.3", False),
        ([], "intranet", "192.168.1.1", False),
        ([], "intranet", "100.64.0.1", False),
        ([], "intranet", "fd12::1", False),
        ([], "rebound.example.org", "127.0.0.1", False),
        ([], "rebound.example.org", "::1", False),
        ([], "rebound.example.org", "::ffff:127.0.0.1", False),
        ([], "rebound.example.org", "0.0.0.0", False),
        ([], "rebound.example.org", "169.254.169.254", False),
        ([], "rebound.example.org", "fe80::1", False),
        ([], "rebound.example.org", "fd00:ec2::254", False),
        (["*.example.org"], "hooks.example.org", "10.1.2.3", True),
        (["*.example.org"], "HOOKS.example.org.", "10.1.2.3", True),
        (["*.example.org"], "example.com", "10.1.2.3", False),
        (["*.example.org"], "hooks.example.org", "127.0.0.1", False),
        (["*"], "hooks.example.org", "169.254.169.254", False),
        (["10.1.0.0/16"], "intranet", "10.1.2.3", True),
        (["10.1.0.0/16"], "intranet", "10.2.2.3", False),
        (["127.0.0.1"], "localhost", "127.0.0.1", True),
        (["127.0.0.1"], "localhost", "::ffff:127.0.0.1", True),
    ],
)
def test_an_address_is_allowed_by_the_list_and_the_control_nodes_own_by_a_network_only(entries, host, address, allowed):
    assert CallbackHosts.of(entries).allow(host, ip_address(address)) is allowed


@pytest.mark.parametrize(
    ("entries", "url", "refused"),
    [
        ([], "https://hooks.example.org/x", False),
        ([], "http://127.0.0.1:8080/x", True),
        ([], "http://[::1]/x", True),
        ([], "http://169.254.169.254/latest/meta-data", True),
        ([], "http://localhost:8080/x", True),
        ([], "http://muster.LOCALHOST./x", True),
        ([], "http://127.0.0.1.:8080/x", True),
        ([], "http://127.1/x", True),
        ([], "http://2130706433/x", True),
        ([], "http://0x7F.0.0.01/x", True),
        ([], "http://169.254.0xa9fe/x", True),
        ([], "http://8.8.2056/x", False),
        ([], "http://1.2.3.4.5/x", False),
        ([], "http://127.256.1/x", False),
        (["127.0.0.0/8"], "http://127.1/x", False),
        (["127.0.0.0/8"], "http://localhost:8080/x", False),
        (["*.example.org"], "https://hooks.example.org/x", False),
        (["*.example.org"], "https://example.com/x", True),
        (["*.example.org", "10.1.0.0/16"], "https://example.com/x", False),
        (["*.example.org", "10.1.0.0/16"], "https://10.2.0.1/x", True),
    ],
)
def test_a_callback_that_can_never_be_posted_is_refused_at_submit(entries, url, refused):
    spec = validated(SessionSpec, {"callback": url})
    if not refused:
        check_callback(spec, CallbackHosts.of(entries))
        return
    with pytest.raises(SpecError, match=r"^callback: this site posts no callbacks to .*callback_hosts in muster\.yml$"):
        check_callback(spec, CallbackHosts.of(entries))


@pytest.mark.parametrize(
    "entry", ["https://hooks.example.org", "10.1.0.0/33", "10.1.2.3/16", "", "hooks.example.org:8"]
)
def test_a_setting_that_is_no_host_is_refused(tmp_path, entry):
    path = tmp_path / "muster.yml"
    path.write_text(f"callback_hosts: ['{entry}']\n")
    with pytest.raises(SettingsError, match=r"callback_hosts: .* is no host and no network; write hosts such as"):
        load_settings(path)


class Site:
    """A web server on this machine that notes what it is sent."""

    def __init__(self, certificate: Path | None = None) -> None:
        received = self.received = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                received.append((self.path, self.headers["Host"], body.decode()))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, args=[0.02], daemon=True).start()


def certificate_of(name: str, path: Path) -> Path:
    """Make a certificate signed by its own authority, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM) + key.private_bytes(*form))
    return path


@pytest.fixture
def site() -> Iterator[Site]:
    running = Site()
    yield running
    running.server.shutdown()
    running.server.server_close()


@pytest.fixture
def named(monkeypatch):
    """Return a function that makes every name resolve to given addresses, and returns the list of resolved names."""
    resolved = socket.getaddrinfo

    def mean(*addresses: str) -> list[str]:
        lookups: list[str] = []

        def getaddrinfo(host, port, *arguments, **options):
            if host.replace(".", "").isdecimal():
                return resolved(host, port, *arguments, **options)
            lookups.append(host)
            if not addresses:
                raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
            return [(2, 1, 6, "", (address, port)) for address in addresses]

        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
        return lookups

    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    return mean


def test_a_name_that_leads_to_the_control_node_is_not_even_connected_to(site, named):
    named("127.0.0.1")
    with pytest.raises(
        DeliveryError, match=r"^this site posts no callbacks to hooks\.example\.org; see callback_hosts"
    ):
        post(f"http://hooks.example.org:{site.port}/x", "{}", EVERYWHERE)
    assert site.received == []


def test_a_callback_goes_to_a_checked_address_under_the_hosts_name(site, named):
    lookups = named("169.254.169.254", "127.0.0.1")
    post(f"http://hooks.example.org:{site.port}/x?y=1", '{"a": 1}', HERE)
    assert site.received == [("/x?y=1", f"hooks.example.org:{site.port}", '{"a": 1}')]
    assert lookups == ["hooks.example.org"]


def test_where_one_address_does_not_answer_the_next_is_tried(site, named):
    named("127.0.0.2", "127.0.0.1")
    post(f"http://hooks.example.org:{site.port}/x", "{}", HERE)
    assert len(site.received) == 1


@pytest.mark.parametrize(("name", "trusted"), [("hooks.example.org", True), ("other.example.org", False)])
def test_the_certificate_must_be_the_names(named, monkeypatch, tmp_path, name, trusted):
    certificate = certificate_of(name, tmp_path / "site.pem")
    monkeypatch.setattr(requests.adapters, "DEFAULT_CA_BUNDLE_PATH", str(certificate))
    site = Site(certificate)
    named("127.0.0.1")
    url = f"https://hooks.example.org:{site.port}/x"
    if trusted:
        post(url, "{}", HERE)
    else:
        with pytest.raises(DeliveryError, match=r"hooks\.example\.org cannot be reached: SSLError"):
            post(url, "{}", HERE)
    assert len(site.received) == int(trusted)
    site.server.shutdown()
    site.server.server_close()


def test_a_name_that_nobody_knows_cannot_be_reached(named):
    named()
    with pytest.raises(DeliveryError, match=r"^hooks\.invalid cannot be reached: gaierror$"):
        post("http://hooks.invalid/x", "{}", EVERYWHERE)


def test_behind_a_proxy_the_name_is_looked_at(site, named, monkeypatch):
    named("127.0.0.1")
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{site.port}")
    monkeypatch.setenv("no_proxy", "")
    post("http://hooks.example.org/x", "{}", EVERYWHERE)
    assert site.received[0][0] == "http://hooks.example.org/x"
    for host in ("169.254.169.254", "127.1", "2130706433", "127.0.0.1."):
        with pytest.raises(DeliveryError, match="posts no callbacks"):
            post(f"http://{host}/x", "{}", EVERYWHERE)
    assert len(site.received) == 1
