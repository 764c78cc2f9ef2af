"""A certificate for servers of tests."""

import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

from muster.remote.tls_socket import orderly


@dataclass(frozen=True)
class Certificate:
    """A certificate of 127.0.0.1 that signs itself, and its key, as files."""

    certificate: Path
    key: Path

    @property
    def options(self) -> tuple[str, ...]:
        """The arguments of `muster web`."""
        return "--tls-cert", str(self.certificate), "--tls-key", str(self.key)

    def trust(self) -> ssl.SSLContext:
        """Return the context of a client that trusts this certificate alone."""
        return orderly(ssl.create_default_context(cafile=str(self.certificate)))


def make_certificate(directory: Path) -> Certificate:
    made = Certificate(directory / "cert.pem", directory / "key.pem")
    # Browsers know no certificates of Ed25519.
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command = ["openssl", "req", "-x509", *key, "-subj", "/CN=localhost", "-days", "1"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", made.key, "-out", made.certificate]
    subprocess.run([*command, *names], check=True, capture_output=True)
    return made
