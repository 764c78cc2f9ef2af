"""An app for a browser that runs in a session: a page behind a token, which speaks to it by a WebSocket."""

import shlex
import socket
from contextlib import ExitStack

_APP = """
import base64, hashlib, http.server, os

PAGE = '''<!doctype html><html lang="en"><title>An app</title><h1>An app</h1><p id="message"></p><script>
const socket = new WebSocket(`${location.protocol.replace("http", "ws")}//${location.host}/ws`);
socket.onopen = () => socket.send("hello");
socket.onmessage = (event) => { document.getElementById("message").textContent = event.data; };
</script></html>'''


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.path == "/ws":
            return self.echo()
        known = "app=in" in self.headers.get("Cookie", "")
        if self.path == "/lab?token=" + os.environ["MUSTER_APP_TOKEN"]:
            return self.answer(302, "", ("Set-Cookie", "app=in; HttpOnly"), ("Location", "/page"))
        if self.path == "/headers":
            return self.answer(200, str(self.headers))
        self.answer(200 if known else 403, PAGE if known else "no")

    def do_POST(self):
        size = int(self.headers["Content-Length"])
        self.answer(200, str(len(self.rfile.read(size))))

    def answer(self, status, text, *headers):
        self.send_response(status)
        for name, value in (*headers, ("Content-Type", "text/html"), ("Content-Length", str(len(text)))):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text.encode())

    def echo(self):
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
        self.end_headers()
        size = self.rfile.read(2)[1] & 127
        mask = self.rfile.read(4)
        received = bytes(byte ^ mask[place % 4] for place, byte in enumerate(self.rfile.read(size)))
        text = received + b" from " + os.uname().nodename.encode()
        self.wfile.write(bytes([0x81, len(text)]) + text)
        self.wfile.flush()
        self.rfile.read(1)
        self.close_connection = True


address = ("127.0.0.1", int(os.environ["MUSTER_APP_PORT"]))
http.server.ThreadingHTTPServer(address, Handler).serve_forever()
"""
BROWSER_APP = {
    "name": "page",
    "port": 18090,
    "command": f"exec python3 -c {shlex.quote(_APP)}",
    "health": "",
    "url": "/lab?token={token}",
    "token": True,
}
SPEC = {"cpu": 0.1, "mem": "64M", "shm": "16M", "apps": [BROWSER_APP], "publish": ["nothing=18091"]}


def app_ports() -> str:
    """Return twenty neighbouring ports that nothing listens at."""
    for first in range(23000, 30000, 20):
        with ExitStack() as stack:
            try:
                for port in range(first, first + 20):
                    stack.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
            return f"{first}-{first + 19}"
    raise AssertionError("no free ports")
