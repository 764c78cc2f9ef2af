"""Refusing query parameters that an operation does not have, or has once: a misspelt filter would filter nothing."""

from collections import Counter
from typing import TYPE_CHECKING, Annotated, get_origin

from fastapi import Depends, Request
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError

from muster.contract.values import printable
from muster.core.model.token import Token
from muster.web.caller import caller

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastapi.routing import APIRoute

_MAX_NAME = 100


def check_parameters(request: Request, _token: Annotated[Token, Depends(caller)]) -> None:
    """Refuse query parameters that the operation does not have, and several values of one that takes one.

    Raises RequestValidationError. The token is checked first, so that a request without one is answered with 401.
    """
    route: APIRoute = request.scope["route"]
    takes_several = dict(_query_parameters(route.dependant))
    known = sorted(takes_several)
    given = Counter(name for name, _ in request.query_params.multi_items())
    takes = f"this request takes {', '.join(known)}" if known else "this request takes none"
    errors = [
        {"loc": ("query", printable(name[:_MAX_NAME])), "msg": f"there is no such parameter; {takes}"}
        for name in given
        if name not in known
    ]
    errors += [
        {"loc": ("query", name), "msg": "it is given more than once, and takes one value"}
        for name, count in given.items()
        if count > 1 and not takes_several.get(name, True)
    ]
    if errors:
        raise RequestValidationError(errors)


def _query_parameters(dependant: Dependant) -> "Iterator[tuple[str, bool]]":
    """Yield each parameter, and whether it takes several values."""
    for field in dependant.query_params:
        yield field.alias, get_origin(field.field_info.annotation) is list
    for needed in dependant.dependencies:
        yield from _query_parameters(needed)
