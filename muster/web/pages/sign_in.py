"""`/sign-in`, which exchanges a token for a cookie, and `/sign-out`."""

from typing import Annotated

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import RedirectResponse, Response

from muster.service.identity.tokens import NoTokenError
from muster.web.caller import FailureLimit, service_of
from muster.web.viewer import (
    CurrentViewer,
    ForeignPageError,
    cookie_name,
    html,
    is_same_origin,
    is_secure,
    local_path,
)

router = APIRouter(include_in_schema=False)
ReturnTo = Annotated[str, Query(alias="next", max_length=2000)]


@router.get("/")
def home() -> Response:
    return RedirectResponse("/overview", 303)


@router.get("/sign-in")
def sign_in_page(request: Request, *, return_to: ReturnTo = "/") -> Response:
    return _page(request, return_to, "")


@router.post("/sign-in")
def sign_in_with_token(
    request: Request, *, token: Annotated[str, Form(max_length=1000)] = "", return_to: ReturnTo = "/"
) -> Response:
    """Sign in. Raises TooManyError and ForeignPageError: another site's page must not sign a user in as another one."""
    if not is_same_origin(request):
        raise ForeignPageError
    limit: FailureLimit = request.app.state.failures
    tokens = service_of(request).tokens
    try:
        found = tokens.of_secret(token.strip())
    except NoTokenError as error:
        limit.record_failure(request.client.host if request.client else "")
        return _page(request, return_to, str(error), 401)
    request.state.caller = found
    secret, lifetime_s = tokens.sign_in(found)
    response = RedirectResponse(local_path(return_to), 303)
    response.set_cookie(
        cookie_name(request),
        secret,
        max_age=int(lifetime_s),
        secure=is_secure(request),
        httponly=True,
        samesite="lax",
    )
    return response


@router.post("/sign-out")
def sign_out_of_pages(request: Request, viewer: CurrentViewer) -> Response:
    service_of(request).tokens.sign_out(request.cookies[cookie_name(request)])
    response = viewer.go("/sign-in")
    response.delete_cookie(cookie_name(request), secure=is_secure(request), httponly=True, samesite="lax")
    return response


def _page(request: Request, return_to: str, error: str, status: int = 200) -> Response:
    return html("sign_in.html", None, {"request": request, "next": return_to, "error": error, "viewer": None}, status)
