"""The signed-in user of a page, and responses to them."""

import hashlib
import hmac
import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote, urlsplit

from fastapi import Depends, Request, WebSocket
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from markupsafe import Markup
from starlette.requests import HTTPConnection

from muster.core.model.token import Token
from muster.core.values.errors import BadInputError, MusterError
from muster.service.identity.tokens import NoTokenError, ScopeError
from muster.service.local_backend import LocalBackend
from muster.web.caller import check_requests, service_of
from muster.web.rendering import has_block, render
from muster.web.unix_connections import connection_secret

if TYPE_CHECKING:
    from muster.web.shared_work import SharedWork

# Of a page's path that a sign-in leads back to.
MOST_RETURN_LENGTH = 2000
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'{styles}; img-src 'self' data:; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_CHARSET = re.compile(r';\s*charset\s*=\s*"?([^";\s]*)', re.IGNORECASE)
_NOT_SIGNED_IN, _REFUSED = 4401, 4403


class NotSignedInError(MusterError):
    """Sign in first; the browser is sent there."""


class ForeignPageError(ScopeError):
    """The request came from a page of another site, or from an old page; load the page again."""


def is_known(connection: HTTPConnection) -> bool:
    """Return whether a request carries a token, or comes from a browser that is signed in, or from a Unix user."""
    if connection_secret(connection) is not None:
        return True
    scheme, _, secret = connection.headers.get("authorization", "").partition(" ")
    cookie = connection.cookies.get(cookie_name(connection))
    tokens = service_of(connection).tokens
    for value, token_of in (
        (secret if scheme.lower() == "bearer" else "", tokens.of_secret),
        (cookie, tokens.signed_in),
    ):
        if value:
            with suppress(NoTokenError):
                token_of(value)
                return True
    return False


@dataclass(frozen=True, slots=True)
class Viewer:
    """The signed-in user of a page, with the request."""

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

    def unworked(self) -> str | None:
        """Return what is wrong if nobody has worked the queue for too long: a banner on each page."""
        return self.backend.heartbeat().unworked

    def is_signed_in(self) -> bool:
        """Tell whether the sign-in still gives what it gave, for responses that last long."""
        try:
            return self.signed_in().gives_what(self.token)
        except NoTokenError:
            return False

    def signed_in(self) -> Token:
        """Return what the sign-in gives now. Raises NoTokenError."""
        return service_of(self.connection).tokens.signed_in(self.connection.cookies[cookie_name(self.connection)])

    def page(self, template: str, *, status: int = 200, terminal: bool = False, **context: object) -> Response:
        """Return the page, or for htmx its block `live` alone, if it has one. `terminal`: scripts may set styles."""
        block = "live" if is_htmx(self.connection) and has_block(template, "live") else None
        return html(template, block, self._context(context), status, terminal=terminal)

    def shared_page(self, template: str, context: Callable[[], Mapping[str, object]]) -> Response:
        """Return as `page`; what refreshes itself is made once for all of the user's pages that ask for it meanwhile.

        The block `live` of such a template is the same in all browsers of a user with a token of this scope.
        """
        if not is_htmx(self.connection):
            return html(template, None, self._context(context()))
        url, token = self.connection.url, self.token
        key = (template, url.path, url.query, token.user, token.scope, token.projects)
        shared: SharedWork[str] = self.connection.app.state.live_parts
        # Without `csrf_field`, which is one browser's own.
        values = {"viewer": self, "request": self.connection}
        return _html(shared.result(key, lambda: render(template, "live", {**values, **context()})))

    def fragment(self, template: str, block: str, *, status: int = 200, **context: object) -> Response:
        """Return one block of a template."""
        return html(template, block, self._context(context), status)

    def announce(self, text: str) -> Response:
        """Answer a change: the page announces the text and refreshes its live parts."""
        if is_htmx(self.connection):
            return Response(status_code=204, headers={"HX-Trigger": _ascii({"muster:announce": text})})
        return RedirectResponse(local_path(self.connection.headers.get("referer", "/")), 303)

    def go(self, path: str) -> Response:
        """Send the browser to this page."""
        if is_htmx(self.connection):
            return Response(status_code=204, headers={"HX-Redirect": path})
        return RedirectResponse(path, 303)

    def _context(self, context: Mapping[str, object]) -> dict[str, object]:
        field = Markup('<input type="hidden" name="csrf" value="{}">').format(self.csrf)
        return {"viewer": self, "request": self.connection, "csrf_field": lambda: field, **context}


async def viewer(request: Request) -> Viewer:
    """Return who sent the request.

    Raises NotSignedInError, TooManyError, ForeignPageError for a change that another site's page requested, and
    BadInputError for a form that is none.
    """
    secret = request.cookies.get(cookie_name(request), "")
    found = await run_in_threadpool(_viewer, request, secret)
    check_requests(request, found.token)
    if request.method not in SAFE:
        _check_charset(request)
        csrf = request.headers.get("x-csrf-token")
        if csrf is None:
            csrf = str((await request.form()).get("csrf", ""))
        if not (is_same_origin(request) and hmac.compare_digest(csrf.encode(), found.csrf.encode())):
            raise ForeignPageError
    return found


CurrentViewer = Annotated[Viewer, Depends(viewer)]


def _check_charset(request: Request) -> None:
    """Refuse a form in which other bytes than UTF-8's stand for text: in UTF-7, half of a surrogate pair is one.

    Raises BadInputError.
    """
    named = _CHARSET.search(request.headers.get("content-type", ""))
    if named is not None and named[1].lower() != "utf-8":
        raise BadInputError("body: a form is UTF-8; send it without another charset")


def signed_in_user(connection: HTTPConnection) -> str:
    """Return who has signed in, for pages that are shown to everybody; empty for others, and where nobody can tell."""
    try:
        return _viewer(connection, connection.cookies.get(cookie_name(connection), "")).user
    except MusterError:
        return ""


async def websocket_viewer(websocket: WebSocket) -> Viewer | None:
    """Return who opened the WebSocket; close it and return None if they may not.

    Raises TooManyError, and MusterError where nobody can tell who they are.
    """
    secret = websocket.cookies.get(cookie_name(websocket), "")
    if not is_same_origin(websocket):
        await websocket.close(_REFUSED, "another site's page opened it")
        return None
    try:
        found = await run_in_threadpool(_viewer, websocket, secret)
    except NotSignedInError:
        await websocket.close(_NOT_SIGNED_IN, "sign in first")
        return None
    check_requests(websocket, found.token)
    return found


def cookie_name(connection: HTTPConnection) -> str:
    """Return the name of the sign-in's cookie; with TLS, a name that only this host can set."""
    return "__Host-muster" if is_secure(connection) else "muster"


def is_secure(connection: HTTPConnection) -> bool:
    return connection.url.scheme in {"https", "wss"}


def is_htmx(connection: HTTPConnection) -> bool:
    return connection.headers.get("hx-request") == "true"


def is_same_origin(connection: HTTPConnection) -> bool:
    """Tell whether a page of this server sent the request. Browsers name the origin with every change.

    A page that came without TLS, which anybody on the way may have written, is no page of a server with TLS.
    """
    origin = connection.headers.get("origin")
    if origin is None:
        # Browsers name the origin with every WebSocket.
        is_websocket = connection.scope["type"] == "websocket"
        return not is_websocket and connection.headers.get("sec-fetch-site", "same-origin") == "same-origin"
    try:
        parts = urlsplit(origin)
    except ValueError:  # such as of http://[
        return False
    return parts.netloc == connection.headers.get("host") and (parts.scheme == "https" or not is_secure(connection))


def sign_in_path(connection: HTTPConnection) -> str:
    """Return the URL to sign in at, which leads back afterwards."""
    # A fragment is no page: lead back to the page that requested it.
    return_to = connection.headers.get("hx-current-url", "") if is_htmx(connection) else str(connection.url)
    method = connection.scope.get("method", "GET")
    path = local_path(return_to) if method in SAFE or is_htmx(connection) else "/"
    return "/sign-in" if path == "/" or len(path) > MOST_RETURN_LENGTH else f"/sign-in?next={quote(path, safe='')}"


def html(
    template: str, block: str | None, context: Mapping[str, Any], status: int = 200, *, terminal: bool = False
) -> HTMLResponse:
    return _html(render(template, block, context), status, terminal=terminal)


def _html(text: str, status: int = 200, *, terminal: bool = False) -> HTMLResponse:
    policy = _POLICY.format(styles=" 'unsafe-inline'" if terminal else "")
    headers = {"Content-Security-Policy": policy, "Vary": "HX-Request", "Referrer-Policy": "same-origin"}
    return HTMLResponse(text, status, headers)


def _viewer(connection: HTTPConnection, secret: str) -> Viewer:
    """Return who has signed in with this secret. Raises NotSignedInError."""
    service = service_of(connection)
    try:
        token = service.tokens.signed_in(secret)
    except NoTokenError as error:
        raise NotSignedInError(str(error)) from None
    connection.state.caller = token
    csrf = hashlib.sha256(f"csrf {secret}".encode()).hexdigest()
    return Viewer(service.backend(token), csrf, connection)


def local_path(url: str) -> str:
    """Return the path and query of a URL, whatever host it names; the first page's of what is none."""
    try:
        parts = urlsplit(url)
    except ValueError:  # such as of http://[
        return "/"
    path = "/" + parts.path.lstrip("/\\")
    return f"{path}?{parts.query}" if parts.query else path


def _ascii(events: Mapping[str, str]) -> str:
    return json.dumps(events, ensure_ascii=True)
