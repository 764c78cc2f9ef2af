"""Errors on pages: a redirect to sign in, one line in the page's alert region, or a page of its own."""

from collections.abc import Mapping

from fastapi import Request
from fastapi.responses import RedirectResponse, Response

from muster.web.problems import Problem
from muster.web.viewer import html, is_htmx, sign_in_path, signed_in_user
from muster.web.words import plain_words

_TITLES: Mapping[int, str] = {
    403: "Not allowed",
    404: "Not found",
    405: "Not possible here",
    409: "Not possible now",
    422: "Something is wrong in the request",
    429: "Too many requests",
    503: "Not available now",
}

_OF_THE_ROUTER = "urn:muster:http"


def to_sign_in(request: Request) -> Response:
    path = sign_in_path(request)
    if is_htmx(request):
        return Response(status_code=401, headers={"HX-Redirect": path})
    return RedirectResponse(path, 303)


def error_page(request: Request, found: Problem, headers: dict[str, str]) -> Response:
    block = "problem" if is_htmx(request) else None
    shown = found.model_copy(update={"detail": plain_words(found.detail)})
    caller = getattr(request.state, "caller", None)
    # At a path that nothing serves, nobody has looked who sent the request.
    user = caller.user if caller else signed_in_user(request) if found.type == _OF_THE_ROUTER else ""
    context = {
        "request": request,
        "problem": shown,
        "title": _TITLES.get(found.status, "Something went wrong"),
        "viewer": None,
        "signed_in_as": user,
    }
    response = html("problem.html", block, context, found.status)
    response.headers.update(headers)
    if is_htmx(request):
        response.headers.update({"HX-Retarget": "#problem", "HX-Reswap": "innerHTML"})
    return response
