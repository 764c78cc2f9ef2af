"""Who looks at a page, and how he is answered."""

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import quote, urlsplit

from fastapi import Depends, Request, WebSocket
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from markupsafe import Markup
from starlette.requests import HTTPConnection

from muster.core.model.token import Token
from muster.core.values.errors import MusterError
from muster.service.identity.tokens import NoTokenError, ScopeError
from muster.service.local_backend import LocalBackend
from muster.web.caller import service_of
from muster.web.rendering import rendered

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'{styles}; img-src 'self' data:; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_NOT_SIGNED_IN, _REFUSED = 4401, 4403


class NotSignedInError(MusterError):
    """Sign in first; the browser is sent there."""


class ForeignPageError(ScopeError):
    """The request came from a page that is not this server's, or from an old one; load the page again."""


@dataclass(frozen=True, slots=True)
class Visitor:
    """Somebody who has signed in, with his request."""

    backend: LocalBackend
    csrf: str
    connection: HTTPConnection

    @property
    def user(self) -> str:
        return self.backend.user

    @property
    def token(self) -> Token:
        return self.backend.token

    @property
    def is_admin(self) -> bool:
        return self.token.sees_all

    @property
    def may_change(self) -> bool:
        return self.token.may_change

    def is_signed_in(self) -> bool:
        """Still; for what goes on for long."""
        try:
            service_of(self.connection).tokens.signed_in(self.connection.cookies[cookie_name(self.connection)])
        except NoTokenError:
            return False
        return True

    def page(self, template: str, *, status: int = 200, terminal: bool = False, **context: object) -> Response:
        """The page, or for htmx its block `live` alone. `terminal`: styles may be set by scripts."""
        block = "live" if is_htmx(self.connection) else None
        return html(template, block, self._context(context), status, terminal=terminal)

    def fragment(self, template: str, block: str, **context: object) -> Response:
        """That block alone."""
        return html(template, block, self._context(context))

    def announce(self, text: str) -> Response:
        """After a change: the text is shown, and what is live refreshes."""
        if is_htmx(self.connection):
            return Response(status_code=204, headers={"HX-Trigger": _ascii({"muster:announce": text})})
        return RedirectResponse(local_path(self.connection.headers.get("referer", "/")), 303)

    def go(self, path: str) -> Response:
        """The browser goes to this page of ours."""
        if is_htmx(self.connection):
            return Response(status_code=204, headers={"HX-Redirect": path})
        return RedirectResponse(path, 303)

    def _context(self, context: Mapping[str, object]) -> dict[str, object]:
        field = Markup('<input type="hidden" name="csrf" value="{}">').format(self.csrf)
        return {"visitor": self, "request": self.connection, "csrf_field": lambda: field, **context}


async def visitor(request: Request) -> Visitor:
    """Raises NotSignedInError, and ForeignPageError for a change that none of our pages asked for."""
    secret = request.cookies.get(cookie_name(request), "")
    found = await run_in_threadpool(_visitor, request, secret)
    if request.method not in SAFE:
        given = request.headers.get("x-csrf-token")
        if given is None:
            given = str((await request.form()).get("csrf", ""))
        if not (is_same_origin(request) and hmac.compare_digest(given.encode(), found.csrf.encode())):
            raise ForeignPageError
    return found


Visiting = Annotated[Visitor, Depends(visitor)]


async def websocket_visitor(websocket: WebSocket) -> Visitor | None:
    """None where it was closed, since nobody is signed in or another site's page opened it."""
    secret = websocket.cookies.get(cookie_name(websocket), "")
    if not is_same_origin(websocket):
        await websocket.close(_REFUSED, "another site's page opened it")
        return None
    try:
        return await run_in_threadpool(_visitor, websocket, secret)
    except NotSignedInError:
        await websocket.close(_NOT_SIGNED_IN, "sign in first")
        return None


def cookie_name(connection: HTTPConnection) -> str:
    """Where it travels by TLS, a name that nothing but this host can set."""
    return "__Host-muster" if is_secure(connection) else "muster"


def is_secure(connection: HTTPConnection) -> bool:
    return connection.url.scheme in {"https", "wss"}


def is_htmx(connection: HTTPConnection) -> bool:
    return connection.headers.get("hx-request") == "true"


def is_same_origin(connection: HTTPConnection) -> bool:
    """Whether a page of ours asks. Browsers name the page's origin with whatever changes something."""
    origin = connection.headers.get("origin")
    if origin is None:
        # Of a websocket every browser names it.
        is_websocket = connection.scope["type"] == "websocket"
        return not is_websocket and connection.headers.get("sec-fetch-site", "same-origin") == "same-origin"
    return urlsplit(origin).netloc == connection.headers.get("host")


def sign_in_path(connection: HTTPConnection) -> str:
    """Where to sign in, and to come back from there."""
    # A fragment is of no use alone: back to the page that asked for it.
    wanted = connection.headers.get("hx-current-url", "") if is_htmx(connection) else str(connection.url)
    method = connection.scope.get("method", "GET")
    path = local_path(wanted) if method in SAFE or is_htmx(connection) else "/"
    return "/sign-in" if path == "/" else f"/sign-in?next={quote(path, safe='')}"


def html(
    template: str, block: str | None, context: Mapping[str, Any], status: int = 200, *, terminal: bool = False
) -> HTMLResponse:
    policy = _POLICY.format(styles=" 'unsafe-inline'" if terminal else "")
    headers = {"Content-Security-Policy": policy, "Vary": "HX-Request", "Referrer-Policy": "same-origin"}
    return HTMLResponse(rendered(template, block, context), status, headers)


def _visitor(connection: HTTPConnection, secret: str) -> Visitor:
    """Raises NotSignedInError."""
    service = service_of(connection)
    try:
        token = service.tokens.signed_in(secret)
    except NoTokenError as error:
        raise NotSignedInError(str(error)) from None
    connection.state.caller = token
    csrf = hashlib.sha256(f"csrf {secret}".encode()).hexdigest()
    return Visitor(service.backend(token), csrf, connection)


def local_path(url: str) -> str:
    """Of this server, whatever host the URL names."""
    parts = urlsplit(url)
    path = "/" + parts.path.lstrip("/\\")
    return f"{path}?{parts.query}" if parts.query else path


def _ascii(events: Mapping[str, str]) -> str:
    return json.dumps(events, ensure_ascii=True)
