"""Who is let in to an opened app: whoever has its ticket, once, and then the cookie that he was given for it."""

import hmac
import secrets
import time

from muster.web.opened_apps.headers import Headers, cookies_named

TICKET = "muster-ticket"
TICKET_S = 30.0
_MOST_TICKETS = 20


class Door:
    """`port` is the app's; `secure`: the browser reaches it by TLS."""

    def __init__(self, port: int, *, secure: bool) -> None:
        # Another app's door at this port later has another name: the old cookie is not even compared.
        self._name = f"muster-app-{port}-{secrets.token_hex(6)}"
        self._secret = secrets.token_urlsafe(32)
        self._secure = secure
        self._tickets: dict[str, float] = {}
        self._is_new = True

    def ticket(self) -> str:
        """Good for half a minute, once."""
        now = time.monotonic()
        valid = [(ticket, until) for ticket, until in self._tickets.items() if until > now]
        self._tickets = dict(valid[-_MOST_TICKETS + 1 :])
        ticket = secrets.token_urlsafe(32)
        self._tickets[ticket] = now + TICKET_S
        return ticket

    def redeemed(self, ticket: str) -> Headers | None:
        """The headers that let its bearer in from now on; None where it is not good."""
        if self._tickets.pop(ticket, 0.0) <= time.monotonic():
            return None
        secure = "; Secure" if self._secure else ""
        headers = [
            (b"set-cookie", f"{self._name}={self._secret}; Path=/; HttpOnly; SameSite=Lax{secure}".encode("ascii"))
        ]
        if self._is_new:
            # What this port's last app has left in the browser is none of this one's.
            headers.append((b"clear-site-data", b'"cache", "storage"'))
        self._is_new = False
        return headers

    def lets_in(self, headers: Headers) -> bool:
        secret = self._secret.encode()
        return any(hmac.compare_digest(content, secret) for content in cookies_named(headers, self._name))
