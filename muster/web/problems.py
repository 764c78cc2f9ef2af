"""Errors as `application/problem+json` (RFC 9457), with the texts that the command line prints."""

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

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
)
from muster.service.identity.tokens import NoTokenError, ScopeError
from muster.service.local_backend import KeyUsedError

MEDIA_TYPE = "application/problem+json"
PAGELESS = ("/api/", "/metrics", "/healthz", "/readyz")


class TooManyError(MusterError):
    """Too many at once; try again later."""


# The first that fits counts.
STATUS: Mapping[type[MusterError], tuple[HTTPStatus, str]] = {
    SpecError: (HTTPStatus.UNPROCESSABLE_ENTITY, "spec"),
    NotFoundError: (HTTPStatus.NOT_FOUND, "not-found"),
    AmbiguousNameError: (HTTPStatus.CONFLICT, "ambiguous-name"),
    NameTakenError: (HTTPStatus.CONFLICT, "name-taken"),
    KeyUsedError: (HTTPStatus.CONFLICT, "idempotency-key-used"),
    # The site's own files are wrong, and nothing that the caller wrote.
    SettingsError: (HTTPStatus.SERVICE_UNAVAILABLE, "settings"),
    BadInputError: (HTTPStatus.UNPROCESSABLE_ENTITY, "bad-input"),
    NotPossibleInStateError: (HTTPStatus.CONFLICT, "not-possible-in-state"),
    NoTokenError: (HTTPStatus.UNAUTHORIZED, "no-token"),
    ScopeError: (HTTPStatus.FORBIDDEN, "scope"),
    TooManyError: (HTTPStatus.TOO_MANY_REQUESTS, "too-many"),
    StoreUnavailableError: (HTTPStatus.SERVICE_UNAVAILABLE, "store-unavailable"),
    AgentUnreachableError: (HTTPStatus.SERVICE_UNAVAILABLE, "agent-unreachable"),
    MusterError: (HTTPStatus.INTERNAL_SERVER_ERROR, "failed"),
}


class FieldProblem(BaseModel):
    """What is wrong with one field, and what to write instead."""

    field: str
    problem: str
    remedy: str


class Problem(BaseModel):
    """Why a request was refused."""

    model_config = ConfigDict(extra="forbid")

    type: str = Field(description="what kind of problem it is, such as urn:muster:not-found")
    title: str
    status: int
    detail: str = Field(description="a line for a person, the one that the command line prints")
    errors: list[FieldProblem] = Field(default=[], description="every error of a spec")


def problem(error: MusterError) -> Problem:
    status, kind = next(found for cls, found in STATUS.items() if isinstance(error, cls))
    errors = error.errors if isinstance(error, SpecError) else ()
    return Problem(
        type=f"urn:muster:{kind}",
        title=status.phrase,
        status=status,
        detail=_text(str(error)),
        errors=[FieldProblem(field=_text(e.field), problem=_text(e.problem), remedy=_text(e.remedy)) for e in errors],
    )


def answers(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What an operation's document says of the problems that it answers with, besides those of all operations."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    always = (400, 401, 403, 413, 429, 503)
    return {
        status: {"description": HTTPStatus(status).phrase, "content": content}
        for status in sorted({*always, *statuses})
    }


ErrorPage = Callable[[Request, Problem, dict[str, str]], Response]


def install(app: FastAPI, page: ErrorPage) -> None:
    """`page` answers where a person asked instead of a program."""

    def response(request: Request, told: Problem, headers: dict[str, str] | None = None) -> Response:
        if request.url.path.startswith(PAGELESS):
            return JSONResponse(told.model_dump(), told.status, headers, MEDIA_TYPE)
        return page(request, told, headers or {})

    @app.exception_handler(MusterError)
    async def _muster(request: Request, error: MusterError) -> Response:
        headers = {"WWW-Authenticate": "Bearer"} if isinstance(error, NoTokenError) else {}
        if isinstance(error, TooManyError):
            headers = {"Retry-After": "60"}
        return response(request, problem(error), headers)

    @app.exception_handler(RequestValidationError)
    async def _validation(request: Request, error: RequestValidationError) -> Response:
        found = [
            FieldProblem(
                field=_text(".".join(str(part) for part in detail["loc"][1:]) or str(detail["loc"][0])),
                problem=_text(str(detail["msg"])[:1].lower() + str(detail["msg"])[1:]),
                remedy="see /api/v1/openapi.json",
            )
            for detail in error.errors()
        ]
        told = _of_status(422, "bad-input", "; ".join(f"{e.field}: {e.problem}" for e in found), found)
        return response(request, told)

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> Response:
        return response(request, _of_status(error.status_code, "http", str(error.detail)), dict(error.headers or {}))


def _of_status(status: int, kind: str, detail: str, errors: list[FieldProblem] | None = None) -> Problem:
    return Problem(
        type=f"urn:muster:{kind}", title=HTTPStatus(status).phrase, status=status, detail=detail, errors=errors or []
    )


def _text(text: str) -> str:
    """A caller's text in an answer: half of a surrogate pair cannot be sent back."""
    return text.encode(errors="backslashreplace").decode()
