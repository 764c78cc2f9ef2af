"""Refusing query parameters that an operation does not have: a misspelt filter would filter nothing."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Request
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError

from muster.contract.values import printable
from muster.core.model.token import Token
from muster.web.caller import caller

if TYPE_CHECKING:
    from fastapi.routing import APIRoute

_MAX_NAME = 100


def check_parameters(request: Request, _token: Annotated[Token, Depends(caller)]) -> None:
    """Refuse query parameters that the operation does not have. Raises RequestValidationError.

    The token is checked first, so that a request without one is answered with 401.
    """
    route: APIRoute = request.scope["route"]
    known = sorted(_query_parameters(route.dependant))
    takes = f"this request takes {', '.join(known)}" if known else "this request takes none"
    errors = [
        {"loc": ("query", printable(name[:_MAX_NAME])), "msg": f"there is no such parameter; {takes}"}
        for name in request.query_params
        if name not in known
    ]
    if errors:
        raise RequestValidationError(errors)


def _query_parameters(dependant: Dependant) -> Iterator[str]:
    for field in dependant.query_params:
        yield field.alias
    for needed in dependant.dependencies:
        yield from _query_parameters(needed)
