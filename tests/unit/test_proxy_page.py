"""`docs/proxy.md`: apt and pip fetch through a proxy that inspects TLS, with the files that the page shows."""

import hashlib
import io
import os
import re
import socket
import ssl
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "proxy.md").read_text()
HOST = "packages.example.org"


def block(language: str, having: str) -> str:
    """Return the page's block in that language with that text."""
    blocks = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    (found,) = [text for text in blocks if having in text]
    return found


def wheel() -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as files:
        files.writestr("thing.py", "")
        files.writestr("thing-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: thing\nVersion: 1\n")
        files.writestr("thing-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        files.writestr("thing-1.dist-info/RECORD", "")
    return archive.getvalue()


def release(packages: bytes) -> bytes:
    digest = hashlib.sha256(packages).hexdigest()
    date = f"{datetime.now(UTC):%a, %d %b %Y %H:%M:%S} UTC"
    return f"Suite: site\nDate: {date}\nSHA256:\n {digest} {len(packages)} Packages\n".encode()


PACKAGES = b"Package: thing\nVersion: 1\nArchitecture: all\nMaintainer: Us\nFilename: ./thing.deb\nSize: 1\n\n"
FILES = {
    "/simple/thing/": b'<a href="/thing-1-py3-none-any.whl">thing-1-py3-none-any.whl</a>',
    "/thing-1-py3-none-any.whl": wheel(),
    "/debian/./Packages": PACKAGES,
    "/debian/Packages": PACKAGES,
    "/debian/./Release": release(PACKAGES),
    "/debian/Release": release(PACKAGES),
}


def certificate(directory: Path) -> tuple[Path, Path]:
    """Return the files of the site's authority, and of what it says is the host: certificate and key."""
    now = datetime.now(UTC)
    made = []
    issuer_key = key = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Site")])
    for name, is_authority in (("Site", True), (HOST, False)):
        key = issuer_key if is_authority else ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = (
            x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name.lower())]), critical=False)
        )
        made.append(builder.sign(issuer_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    authority, host = directory / "authority.pem", directory / "host.pem"
    authority.write_bytes(made[0])
    host.write_bytes(made[1] + secret)
    return authority, host


class Proxy:
    """A proxy that answers in the place of the one host that it knows, with a certificate of the site's authority."""

    def __init__(self, host_certificate: Path) -> None:
        self.tunnels: list[str] = []
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(host_certificate)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(client,), daemon=True).start()

    def _answer(self, client: socket.socket) -> None:
        with client:
            self.tunnels.append(_head(client).split()[1])
            client.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
            try:
                with self._context.wrap_socket(client, server_side=True) as inner:
                    while request := _head(inner):
                        content = FILES.get(request.split()[1])
                        status = "200 OK" if content is not None else "404 Not Found"
                        head = f"HTTP/1.1 {status}\r\nContent-Type: text/html\r\nContent-Length: {len(content or b'')}"
                        inner.sendall(f"{head}\r\n\r\n".encode() + (content or b""))
            except OSError:  # the client trusts it not, or has left
                return


def _head(connection: socket.socket) -> str:
    """Return a request's lines; empty where the client has left."""
    received = b""
    while not received.endswith(b"\r\n\r\n"):
        piece = connection.recv(1)
        if not piece:
            return ""
        received += piece
    return received.decode()


@pytest.fixture
def authority(tmp_path) -> tuple[Path, Path]:
    return certificate(tmp_path)


@pytest.fixture
def proxy(authority) -> Iterator[Proxy]:
    made = Proxy(authority[1])
    yield made
    made.close()


def environment(**values: object) -> dict[str, str]:
    others = ("PIP_", "SSL_", "REQUESTS_", "CURL_")
    kept = {k: v for k, v in os.environ.items() if "proxy" not in k.lower() and not k.startswith(others)}
    return {**kept, **{name: str(value) for name, value in values.items()}}


@pytest.mark.parametrize("trusts", [True, False])
def test_pip_fetches_with_the_pages_configuration(authority, proxy, tmp_path, trusts):
    text = block("ini", "[global]").replace("http://proxy.example.org:3128", proxy.url)
    store = str(authority[0]) if trusts else "/etc/ssl/certs/ca-certificates.crt"
    config = tmp_path / "pip.conf"
    config.write_text(text.replace("/etc/ssl/certs/ca-certificates.crt", store))
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--no-cache-dir", "--retries", "0", "-d", tmp_path / "wheels",
         "--index-url", f"https://{HOST}/simple", "thing"],
        env=environment(PIP_CONFIG_FILE=config), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode == 0) is trusts, done.stderr
    assert proxy.tunnels[0] == f"{HOST}:443"
    assert [path.name for path in (tmp_path / "wheels").glob("*")] == ["thing-1-py3-none-any.whl"] * trusts


@pytest.mark.parametrize("trusts", [True, False])
def test_apt_fetches_with_the_pages_configuration(authority, proxy, tmp_path, trusts):
    text = block("apt", "Acquire").replace("http://proxy.example.org:3128", proxy.url)
    config = tmp_path / "80proxy"
    # The host's own trust store is left alone: the role site_ca puts the authority there.
    config.write_text(text + (f'Acquire::https::CaInfo "{authority[0]}";\n' if trusts else ""))
    lists, sources = tmp_path / "lists", tmp_path / "sources.list"
    (lists / "partial").mkdir(parents=True)
    sources.write_text(f"deb [trusted=yes] https://{HOST}/debian ./\n")
    done = subprocess.run(
        ["apt-get", "-o", f"Dir::State::lists={lists}", "-o", f"Dir::Etc::sourcelist={sources}",
         "-o", "Dir::Etc::sourceparts=-", "-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=0",
         "-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache=", "update"],
        env=environment(APT_CONFIG=config), capture_output=True, text=True, check=False,
    )  # fmt: skip
    fetched = list(lists.glob(f"{HOST}_*_Packages*"))
    assert bool(fetched) is trusts, done.stdout + done.stderr
    assert proxy.tunnels[0] == f"{HOST}:443"
