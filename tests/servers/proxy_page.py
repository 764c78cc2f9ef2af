"""`docs/proxy.md`, and a proxy as it describes it: it inspects TLS with an authority of the site's own."""

import re
import socket
import ssl
import threading
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

PAGE = (Path(__file__).parents[2] / "docs" / "proxy.md").read_text()
PROXY_OF_THE_PAGE = "http://proxy.example.org:3128"
HOST = "packages.example.org"
File = tuple[str, bytes]


def block(language: str, having: str) -> str:
    """Return the page's block in that language with that text."""
    blocks = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    (found,) = [text for text in blocks if having in text]
    return found


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

    def __init__(self, host_certificate: Path, files: Mapping[str, File], port: int = 0) -> None:
        """Listen at any port by default. `files` are those of the host, by path."""
        self._files = files
        self.tunnels: list[str] = []
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(host_certificate)
        self._listener = socket.create_server(("127.0.0.1", port))
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
                        method, path = request.split()[:2]
                        kind, content = self._files.get(path, ("text/plain", b""))
                        status = "200 OK" if path in self._files else "404 Not Found"
                        head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(content)}\r\n\r\n"
                        inner.sendall(head.encode() + (b"" if method == "HEAD" else content))
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
