"""`/sessions/{session}/apps/{app}/open`: an app of a session, in a tab of its own."""

import re
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from muster.core.values.errors import BadInputError, NotPossibleInStateError
from muster.web.api.requests import note_sessions
from muster.web.api.session_routes import Reference
from muster.web.opened_apps.gateway import AppGateway, Browser
from muster.web.viewer import Visiting, cookie_name

router = APIRouter(include_in_schema=False)
AppName = Annotated[str, Path(max_length=64)]
_HOST = re.compile(r"[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]")


@router.post("/sessions/{session}/apps/{app}/open")
async def open_app(request: Request, visitor: Visiting, session: Reference, app: AppName) -> Response:
    """Opens it, and sends the browser there.

    Not by a redirect: browsers that follow a form to another origin ask the page's policy first, which forbids it.
    """
    gateway: AppGateway | None = request.app.state.app_gateway
    if gateway is None:
        raise NotPossibleInStateError(
            "apps cannot be opened in the browser: the server runs without --app-ports; use `muster open` instead"
        )
    browser = Browser(request.cookies[cookie_name(request)], request.url.scheme, _host(request))
    opened, named, url = await gateway.open(visitor.backend, session, app, browser)
    note_sessions(request, [opened])
    response = visitor.page("app_opening.html", session=opened, app=named, url=url)
    response.headers["Refresh"] = f"0; url={url}"
    # What an app's code does with its tab does not reach the page that it was opened from.
    response.headers["Cross-Origin-Opener-Policy"] = "same-origin"
    return response


def _host(request: Request) -> str:
    """How the browser calls this server, without a port. Raises BadInputError."""
    name = request.url.hostname or ""
    host = f"[{name}]" if ":" in name else name
    if not _HOST.fullmatch(host):
        raise BadInputError(f"Host: {name!r} is no host's name; call this server by its name or address")
    return host
