"""Errors on pages: a redirect to sign in, one line in the page's alert region, or a page of its own."""

from fastapi import Request
from fastapi.responses import RedirectResponse, Response

from muster.web.problems import Problem
from muster.web.viewer import html, is_htmx, sign_in_path
from muster.web.words import plain_words


def to_sign_in(request: Request) -> Response:
    path = sign_in_path(request)
    if is_htmx(request):
        return Response(status_code=401, headers={"HX-Redirect": path})
    return RedirectResponse(path, 303)


def error_page(request: Request, found: Problem, headers: dict[str, str]) -> Response:
    block = "problem" if is_htmx(request) else None
    shown = found.model_copy(update={"detail": plain_words(found.detail)})
    response = html("problem.html", block, {"request": request, "problem": shown, "viewer": None}, found.status)
    response.headers.update(headers)
    if is_htmx(request):
        response.headers.update({"HX-Retarget": "#problem", "HX-Reswap": "innerHTML"})
    return response
