"""Access to an opened app: by a ticket that is good once, then by the cookie that it is exchanged for."""

import hmac
import secrets
import time

from muster.web.opened_apps.headers import Headers, cookies_named

TICKET = "muster-ticket"
TICKET_S = 30.0
_MAX_TICKETS = 20


class Door:
    """The tickets and the cookie of one opened app.

    `port` is the app's; `secure`: the browser reaches it by TLS.
    """

    def __init__(self, port: int, *, secure: bool) -> None:
        # A later app at this port has a cookie of another name, so that an old one is not even compared.
        self._name = f"muster-app-{port}-{secrets.token_hex(6)}"
        self._secret = secrets.token_urlsafe(32)
        self._secure = secure
        self._tickets: dict[str, float] = {}
        self._is_new = True

    def ticket(self) -> str:
        """Return a new ticket, which is good once and for 30 seconds."""
        now = time.monotonic()
        valid = [(ticket, until) for ticket, until in self._tickets.items() if until > now]
        self._tickets = dict(valid[-_MAX_TICKETS + 1 :])
        ticket = secrets.token_urlsafe(32)
        self._tickets[ticket] = now + TICKET_S
        return ticket

    def redeem(self, ticket: str) -> Headers | None:
        """Return the headers that set the cookie; None for a ticket that is not valid."""
        if self._tickets.pop(ticket, 0.0) <= time.monotonic():
            return None
        secure = "; Secure" if self._secure else ""
        headers = [
            (b"set-cookie", f"{self._name}={self._secret}; Path=/; HttpOnly; SameSite=Lax{secure}".encode("ascii"))
        ]
        if self._is_new:
            # The app that had this port before may have left data in the browser.
            headers.append((b"clear-site-data", b'"cache", "storage"'))
        self._is_new = False
        return headers

    def lets_in(self, headers: Headers) -> bool:
        """Tell whether a request has the cookie."""
        secret = self._secret.encode()
        return any(hmac.compare_digest(content, secret) for content in cookies_named(headers, self._name))
