"""`/sessions/{session}/apps/{app}/open`: opens an app of a session in a new tab."""

import re
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from muster.core.values.errors import BadInputError, NotPossibleInStateError
from muster.web.api.requests import note_sessions
from muster.web.api.session_routes import Reference
from muster.web.opened_apps.gateway import AppGateway, Browser
from muster.web.viewer import CurrentViewer, cookie_name

router = APIRouter(include_in_schema=False)
AppName = Annotated[str, Path(max_length=64)]
_HOST = re.compile(r"[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]")


@router.post("/sessions/{session}/apps/{app}/open")
async def open_app(request: Request, viewer: CurrentViewer, session: Reference, app: AppName) -> Response:
    """Open the app, and send the browser there.

    It is not sent by a redirect: the page's policy forbids its forms to lead to another origin.
    """
    gateway: AppGateway | None = request.app.state.app_gateway
    if gateway is None:
        raise NotPossibleInStateError("this server opens no apps in the browser; ask an administrator")
    browser = Browser(request.cookies[cookie_name(request)], request.url.scheme, _host(request))
    found, url = await gateway.open(viewer.backend, session, app, browser)
    note_sessions(request, [found])
    response = viewer.page("app_opening.html", session=found, app=app, url=url)
    response.headers["Refresh"] = f"0; url={url}"
    # The app's code gets no access to the page that opened its tab.
    response.headers["Cross-Origin-Opener-Policy"] = "same-origin"
    return response


def _host(request: Request) -> str:
    """Return the host by which the browser reaches this server. Raises BadInputError."""
    name = request.url.hostname or ""
    host = f"[{name}]" if ":" in name else name
    if not _HOST.fullmatch(host):
        raise BadInputError(f"Host: {name!r} is no host's name; call this server by its name or address")
    return host
