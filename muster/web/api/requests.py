"""Bodies of requests as plain data, and answers as the caller wants them: views, or values for Muster's own client."""

import json
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Depends, Header, Request, Response
from fastapi.responses import JSONResponse

from muster.core.model.session import Session
from muster.core.values.errors import BadInputError
from muster.service.wire import MEDIA_TYPE, packed


async def json_object(request: Request) -> dict[str, Any]:
    """The body, a mapping of text that can be kept. Raises BadInputError."""
    try:
        content = json.loads(await request.body(), parse_constant=_no_number)
        # What is half of a surrogate pair, or too deep, goes no further.
        json.dumps(content, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise BadInputError(f"body: it is not JSON: {' '.join(str(error).split())}; write a session spec") from None
    if not isinstance(content, dict):
        raise BadInputError('body: it is no mapping; write fields such as {"cluster_size": 3}')
    return content


def _no_number(text: str) -> object:
    raise ValueError(f"{text} is no number")


Body = Annotated[dict[str, Any], Depends(json_object)]


class Reply:
    """`accept` names the form that the caller wants."""

    def __init__(self, accept: Annotated[str, Header(include_in_schema=False)] = "") -> None:
        self._wants_values = MEDIA_TYPE in accept

    def __call__(self, kind: Any, value: Any, view: Callable[[Any], Any], status: int = 200) -> Response:  # noqa: ANN401
        """The value, of type `kind`, as its view or as itself."""
        if self._wants_values:
            return JSONResponse(packed(kind, value), status, media_type=MEDIA_TYPE)
        return JSONResponse(view(value), status)


Replying = Annotated[Reply, Depends()]


def note_sessions(request: Request, sessions: list[Session]) -> None:
    """For the audit log: whom a change was about."""
    request.state.audit_sessions = [session.id for session in sessions]


def note_owner(request: Request, owner: str | None) -> None:
    """For the audit log: of whom an administrator changes something."""
    request.state.audit_owner = owner
