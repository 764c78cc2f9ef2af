"""A person's browser without its window: signed in to `muster web`, and in the apps that it opens there."""

import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from tests.servers.web_server import Server
from tests.waiting import PATIENCE_S, eventually


class SignedIn(httpx.Client):
    """A browser's client; `token` is what its user signed in with, `trust` how it checks the server's certificate."""

    token = ""
    trust: ssl.SSLContext


def signed_in(server: Server, user: str) -> SignedIn:
    client = SignedIn(base_url=server.url, timeout=PATIENCE_S, verify=server.trust)
    client.token, client.trust = server.token(user), server.trust
    client.post("/sign-in", data={"token": client.token})
    found = re.search(r'X-CSRF-Token": "([0-9a-f]{64})"', client.get("/sessions").text)
    assert found
    client.headers["X-CSRF-Token"] = found[1]
    return client


class AppBrowser(httpx.Client):
    """A browser's client that went into an opened app. It names its page's origin where it changes things.

    `start` is the address of the app's first page.
    """

    def __init__(self, entrance: str, trust: ssl.SSLContext, cookies: httpx.Cookies) -> None:
        url = httpx.URL(entrance)
        self.origin = f"{url.scheme}://{url.netloc.decode()}"
        self._trust = trust
        # Cookies of a host go to all of its ports.
        super().__init__(base_url=self.origin, cookies=cookies, timeout=PATIENCE_S, follow_redirects=True, verify=trust)
        answer = self.get(url, follow_redirects=False)
        assert answer.status_code == 303, answer.text
        self.start = answer.headers["location"]

    def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        request.headers.setdefault("Sec-Fetch-Site", "same-origin")
        if request.method not in {"GET", "HEAD"}:
            request.headers.setdefault("Origin", self.origin)
        return super().send(request, **options)

    def first_page(self) -> httpx.Response:
        """Return the app's first page, once the app answers."""
        answer = eventually(lambda: self.get(self.start), lambda answer: answer.status_code != 502)
        assert answer.status_code == 200, answer.text
        return answer

    @property
    def cookie(self) -> str:
        return "; ".join(f"{cookie.name}={cookie.value}" for cookie in self.cookies.jar)

    @contextmanager
    def websocket(self, path: str, *subprotocols: str) -> Iterator[ClientConnection]:
        """Yield a WebSocket with the browser's cookies."""
        with connect(
            f"ws{self.origin.removeprefix('http')}{path}",
            ssl=self._trust if self.origin.startswith("https:") else None,
            additional_headers={"Cookie": self.cookie, "Origin": self.origin},
            subprotocols=[Subprotocol(name) for name in subprotocols] or None,
            max_size=None,
            open_timeout=PATIENCE_S,
            close_timeout=1,
            proxy=None,
        ) as websocket:
            yield websocket


def entered(client: SignedIn, session: str, app: str) -> AppBrowser:
    """Open an app from its session's page and go in."""
    opened = client.post(f"/sessions/{session}/apps/{app}/open")
    assert opened.status_code == 200, opened.text
    return AppBrowser(opened.headers["refresh"].removeprefix("0; url="), client.trust, client.cookies)
