"""The TLS of the remote client's WebSockets: one thread reads while another writes, but not from the beginning."""

import select
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from muster.remote.tls_socket import orderly
from tests.servers.certificate import Certificate, make_certificate
from tests.waiting import PATIENCE_S, eventually


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture
def client(certificate: Certificate) -> Iterator[ssl.SSLSocket]:
    """Yield a connection to a server that speaks first, as one does with its tickets."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.certificate, certificate.key)
    here, there = socket.socketpair()

    def serve() -> None:
        # The client may give up at any time.
        with suppress(OSError), context.wrap_socket(there, server_side=True) as server:
            server.sendall(b"early")
            server.settimeout(PATIENCE_S)
            server.recv(100)

    thread = threading.Thread(target=serve)
    thread.start()
    trust = orderly(ssl.create_default_context(cafile=str(certificate.certificate)))
    with trust.wrap_socket(here, server_hostname="127.0.0.1") as made:
        yield made
    thread.join()


@pytest.mark.parametrize("write", ["send", "sendall"])
def test_nothing_is_read_before_something_was_written(client, write):
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(client.recv(100)))
    reader.start()
    assert select.select([client], [], [], PATIENCE_S)[0], "the server says nothing"
    reader.join(0.2)
    assert (read, reader.is_alive()) == ([], True)
    getattr(client, write)(b"request")
    reader.join(PATIENCE_S)
    assert read == [b"early"]


@pytest.mark.parametrize("end", ["shutdown", "close"])
def test_a_reader_does_not_wait_for_a_connection_that_was_given_up(client, end):
    def read() -> None:
        with suppress(OSError, ValueError):
            client.recv(100)

    reader = threading.Thread(target=read)
    reader.start()
    eventually(lambda: "_event" in client.__dict__)
    if end == "shutdown":
        client.shutdown(socket.SHUT_RDWR)
    else:
        client.close()
    reader.join(PATIENCE_S)
    assert not reader.is_alive()
