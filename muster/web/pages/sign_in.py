"""`/sign-in`, which exchanges a token, or what the site's provider says, for a cookie, and `/sign-out`."""

import re
from typing import Annotated

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import RedirectResponse, Response

from muster.oidc_settings import CALLBACK
from muster.service.identity.oidc import ATTEMPT_S
from muster.service.identity.oidc_users import ProviderAwayError, SignInRefusedError
from muster.service.identity.tokens import NoTokenError
from muster.web.caller import FailureLimit, check_requests, service_of
from muster.web.viewer import (
    MOST_RETURN_LENGTH,
    CurrentViewer,
    ForeignPageError,
    cookie_name,
    html,
    is_same_origin,
    is_secure,
    local_path,
)

router = APIRouter(include_in_schema=False)
ReturnTo = Annotated[str, Query(alias="next", max_length=MOST_RETURN_LENGTH)]
Shown = Annotated[str, Query(max_length=4000)]
# What a provider may answer instead of a code; anything else is somebody's text.
_PROVIDERS_ERROR = re.compile(r"[a-z_]{1,40}")


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
    # Each is kept until it ends.
    check_requests(request, found)
    secret, lifetime_s = tokens.sign_in(found)
    response = RedirectResponse(local_path(return_to), 303)
    _set_cookie(request, response, cookie_name(request), secret, lifetime_s)
    return response


@router.get("/sign-in/oidc")
def begin_at_provider(request: Request, *, return_to: ReturnTo = "/") -> Response:
    """Send the browser to the provider, with what it shows when it comes back."""
    try:
        begun = service_of(request).oidc.begin(local_path(return_to))
    except ProviderAwayError as error:
        return _page(request, return_to, str(error), 503)
    response = RedirectResponse(begun.url, 303)
    _set_cookie(request, response, _attempt_cookie(request), begun.sealed, ATTEMPT_S)
    return response


@router.get(CALLBACK)
def sign_in_from_provider(
    request: Request,
    *,
    state: Shown = "",
    code: Shown = "",
    error: Shown = "",
    issuer: Annotated[str | None, Query(alias="iss", max_length=4000)] = None,
) -> Response:
    """Sign in whom the provider sends back with a code. Raises TooManyError.

    The browser must be the one that began: nobody is signed in as another by a link.
    """
    request.state.is_change = True
    oidc = service_of(request).oidc
    sealed = request.cookies.get(_attempt_cookie(request), "")
    try:
        signed = oidc.finish(sealed, state, _code(code, error), issuer)
    except ProviderAwayError as away:
        return _page(request, "/", str(away), 503)
    except SignInRefusedError as refused:
        limit: FailureLimit = request.app.state.failures
        limit.record_failure(request.client.host if request.client else "")
        return _page(request, "/", str(refused), 401)
    request.state.caller = signed.token
    response = RedirectResponse(local_path(signed.return_to), 303)
    _set_cookie(request, response, cookie_name(request), signed.secret, signed.lifetime_s)
    _delete_cookie(request, response, _attempt_cookie(request))
    return response


@router.post("/sign-out")
def sign_out_of_pages(request: Request, viewer: CurrentViewer) -> Response:
    service_of(request).tokens.sign_out(request.cookies[cookie_name(request)])
    response = viewer.go("/sign-in")
    _delete_cookie(request, response, cookie_name(request))
    return response


def _code(code: str, error: str) -> str:
    """Return the provider's code. Raises SignInRefusedError where it sent an error instead."""
    if not code:
        named = error if _PROVIDERS_ERROR.fullmatch(error) else "no code"
        raise SignInRefusedError(f"the provider did not sign you in ({named}); try again")
    return code


def _page(request: Request, return_to: str, error: str, status: int = 200) -> Response:
    oidc = service_of(request).settings.web.oidc
    context = {"request": request, "next": return_to, "error": error, "viewer": None, "oidc": oidc}
    return html("sign_in.html", None, context, status)


def _attempt_cookie(request: Request) -> str:
    return cookie_name(request) + "-oidc"


def _set_cookie(request: Request, response: Response, name: str, secret: str, lifetime_s: float) -> None:
    response.set_cookie(name, secret, max_age=int(lifetime_s), secure=is_secure(request), httponly=True, samesite="lax")


def _delete_cookie(request: Request, response: Response, name: str) -> None:
    response.delete_cookie(name, secure=is_secure(request), httponly=True, samesite="lax")
