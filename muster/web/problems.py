"""Errors as `application/problem+json` (RFC 9457), in plain words; for our command line, with what it prints."""

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.routing import Match, Mount

from muster.core.values.errors import (
    AgentUnreachableError,
    AmbiguousNameError,
    BadInputError,
    MusterError,
    NameTakenError,
    NotFoundError,
    NotPossibleInStateError,
    SettingsError,
    SpecError,
    StoreUnavailableError,
    UnwritableError,
)
from muster.service.identity.tokens import NoTokenError, ScopeError
from muster.service.local_backend import KeyUsedError
from muster.service.problem_kinds import KINDS

MEDIA_TYPE = "application/problem+json"
PAGELESS = ("/api/", "/metrics", "/healthz", "/readyz")
_MAX_PATH, _MAX_METHOD = 200, 20
_DOCUMENT = "see /api/v1/openapi.json"
_METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")


class TooManyError(MusterError):
    """Too many at once; try again in so many seconds."""

    def __init__(self, message: str, retry_after_s: int = 60) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


_KINDS = {KeyUsedError: "idempotency-key-used", TooManyError: "too-many", **KINDS}
# The first class that an error is an instance of counts.
_STATUS: Mapping[type[MusterError], HTTPStatus] = {
    SpecError: HTTPStatus.UNPROCESSABLE_ENTITY,
    NotFoundError: HTTPStatus.NOT_FOUND,
    AmbiguousNameError: HTTPStatus.CONFLICT,
    NameTakenError: HTTPStatus.CONFLICT,
    KeyUsedError: HTTPStatus.CONFLICT,
    # The site's own files are wrong, not the caller's input.
    SettingsError: HTTPStatus.SERVICE_UNAVAILABLE,
    BadInputError: HTTPStatus.UNPROCESSABLE_ENTITY,
    NotPossibleInStateError: HTTPStatus.CONFLICT,
    NoTokenError: HTTPStatus.UNAUTHORIZED,
    ScopeError: HTTPStatus.FORBIDDEN,
    TooManyError: HTTPStatus.TOO_MANY_REQUESTS,
    StoreUnavailableError: HTTPStatus.SERVICE_UNAVAILABLE,
    UnwritableError: HTTPStatus.INSUFFICIENT_STORAGE,
    AgentUnreachableError: HTTPStatus.SERVICE_UNAVAILABLE,
    MusterError: HTTPStatus.INTERNAL_SERVER_ERROR,
}


class FieldProblem(BaseModel):
    """A problem of one field: what is wrong, and what to write instead."""

    field: str
    problem: str
    remedy: str


class Problem(BaseModel):
    """A problem as in RFC 9457: why a request was refused."""

    model_config = ConfigDict(extra="forbid")

    type: str = Field(description="what kind of problem it is, such as urn:muster:not-found")
    title: str
    status: int
    detail: str = Field(description="a line for a person")
    errors: list[FieldProblem] = Field(default=[], description="every error of a spec")


def problem(error: MusterError) -> Problem:
    """Return an error as a problem."""
    cls, status = next((cls, status) for cls, status in _STATUS.items() if isinstance(error, cls))
    errors = error.errors if isinstance(error, SpecError) else ()
    return Problem(
        type=f"urn:muster:{_KINDS[cls]}",
        title=status.phrase,
        status=status,
        detail=_text(str(error)),
        errors=[FieldProblem(field=_text(e.field), problem=_text(e.problem), remedy=_text(e.remedy)) for e in errors],
    )


def answers(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the responses of an operation in the API's document: these problems and those of all operations.

    Each operation has a 422, since each refuses unknown query parameters.
    """
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    always = (400, 401, 403, 413, 422, 429, 503)
    return {
        status: {"description": HTTPStatus(status).phrase, "content": content}
        for status in sorted({*always, *statuses})
    }


# What a request prefers (RFC 7240) whose sender is a command line, which gives its own advice.
_COMMAND_LINE = "command-line"
ErrorPage = Callable[[Request, Problem, dict[str, str]], Response]


def install(app: FastAPI, page: ErrorPage, plain: Callable[[str], str]) -> None:
    """Answer each error with a problem, in words that `plain` gives; with `page` where a browser requested a page."""

    def response(request: Request, found: Problem, headers: dict[str, str] | None = None) -> Response:
        if request.url.path.startswith(PAGELESS):
            if _COMMAND_LINE not in request.headers.get("prefer", ""):
                errors = [one.model_copy(update={"remedy": plain(one.remedy) or _DOCUMENT}) for one in found.errors]
                found = found.model_copy(update={"detail": plain(found.detail), "errors": errors})
            return JSONResponse(found.model_dump(), found.status, headers, MEDIA_TYPE)
        return page(request, found, headers or {})

    @app.exception_handler(MusterError)
    async def _muster(request: Request, error: MusterError) -> Response:
        headers = {"WWW-Authenticate": "Bearer"} if isinstance(error, NoTokenError) else {}
        if isinstance(error, TooManyError):
            headers = {"Retry-After": str(error.retry_after_s)}
        return response(request, problem(error), headers)

    @app.exception_handler(RequestValidationError)
    async def _validation(request: Request, error: RequestValidationError) -> Response:
        errors = [
            FieldProblem(
                field=_text(".".join(str(part) for part in detail["loc"][1:]) or str(detail["loc"][0])),
                problem=_text(str(detail["msg"])[:1].lower() + str(detail["msg"])[1:]),
                remedy=_DOCUMENT,
            )
            for detail in error.errors()
        ]
        detail = "; ".join(f"{e.field}: {e.problem}" for e in errors)
        return response(request, _of_status(422, "bad-input", detail, errors))

    # In a thread: a page looks up who has signed in.
    @app.exception_handler(HTTPException)
    def _http(request: Request, error: HTTPException) -> Response:
        headers = dict(error.headers or {})
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            headers["Allow"] = ", ".join(_allowed_methods(request)) or headers["Allow"]
        detail = str(error.detail)
        if detail == HTTPStatus(error.status_code).phrase:
            # The framework's own errors say no more than their status.
            detail = _routing_problem(request, error.status_code, headers.get("Allow", "")) or detail
        return response(request, _of_status(error.status_code, "http", detail), headers)


def _allowed_methods(request: Request) -> list[str]:
    """Return the methods of all routes of the request's path: the router itself names those of the first one alone.

    Where there is GET there is HEAD.
    """
    routes = [route for route in request.app.router.routes if not isinstance(route, Mount)]

    def is_routed(method: str) -> bool:
        scope = {**request.scope, "method": method}
        return any(route.matches(scope)[0] == Match.FULL for route in routes) or (method == "HEAD" and is_routed("GET"))

    return [method for method in _METHODS if is_routed(method)]


def _routing_problem(request: Request, status: int, allowed: str) -> str:
    """Return why no route takes the request, which has these methods; empty for another status."""
    if status == HTTPStatus.NOT_FOUND:
        return f"there is nothing at {request.url.path[:_MAX_PATH]}"
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        # Nobody who means to change something is helped by HEAD.
        methods = [method for method in allowed.split(", ") if method != "HEAD"]
        return f"{request.method[:_MAX_METHOD]} is not possible here; use {' or '.join(methods)}"
    return ""


def _of_status(status: int, kind: str, detail: str, errors: list[FieldProblem] | None = None) -> Problem:
    return Problem(
        type=f"urn:muster:{kind}",
        title=HTTPStatus(status).phrase,
        status=status,
        detail=detail,
        errors=errors or [],
    )


def _text(text: str) -> str:
    """Return a caller's text as it may be sent back: half of a surrogate pair cannot be encoded."""
    return text.encode(errors="backslashreplace").decode()
