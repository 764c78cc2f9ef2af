"""Clients that close their WebSockets while the server ends, by TLS, where a connection outlives its last frame."""

import os
import socket
import threading

import uvicorn

from muster.web.connections import LeavableWebSocket
from tests.servers.certificate import make_certificate
from tests.waiting import PATIENCE_S, eventually

OPENING = (
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
CLOSE_1000 = bytes([0x88, 2]) + (1000).to_bytes(2)


async def accept_and_wait(scope, receive, send) -> None:
    assert scope["type"] == "websocket"
    await receive()
    await send({"type": "websocket.accept"})
    while (await receive())["type"] != "websocket.disconnect":
        pass


def test_a_client_that_is_closing_does_not_keep_the_server_from_ending_well(tmp_path):
    certificate = make_certificate(tmp_path)
    config = uvicorn.Config(
        accept_and_wait,
        port=0,
        ws=LeavableWebSocket,
        lifespan="off",
        log_config=None,
        ssl_certfile=certificate.certificate,
        ssl_keyfile=certificate.key,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    ended_well = threading.Event()

    def serve() -> None:
        server.run()
        ended_well.set()

    thread = threading.Thread(target=serve)
    thread.start()
    eventually(lambda: server.started or not thread.is_alive())
    address = server.servers[0].sockets[0].getsockname()
    with (
        socket.create_connection(address, timeout=PATIENCE_S) as connection,
        certificate.trust().wrap_socket(connection, server_hostname="127.0.0.1") as client,
    ):
        client.sendall(OPENING)
        assert client.recv(1000).startswith(b"HTTP/1.1 101 ")
        mask = os.urandom(4)
        masked = bytes(byte ^ mask[at % 4] for at, byte in enumerate(CLOSE_1000[2:]))
        client.sendall(bytes([CLOSE_1000[0], CLOSE_1000[1] | 0x80]) + mask + masked)
        assert client.recv(1000) == CLOSE_1000
        # The server has said goodbye and waits for this end of the connection.
        server.should_exit = True
        thread.join(PATIENCE_S)
    assert ended_well.is_set()
