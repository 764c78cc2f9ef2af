"""Bodies of requests as plain data, and replies: views, or values for Muster's own client."""

import json
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Depends, Header, Request, Response
from fastapi.responses import JSONResponse

from muster.core.model.session import Session
from muster.core.values.errors import BadInputError
from muster.service.view import View
from muster.service.wire import MEDIA_TYPE, packed


async def json_object(request: Request) -> dict[str, Any]:
    """Return the body, a JSON object that can be stored. Raises BadInputError."""
    try:
        content = json.loads(await request.body(), parse_constant=_no_number)
        # Half of a surrogate pair, or a value that is nested too deeply, cannot be encoded.
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
    """Replies in the form that the header Accept names."""

    def __init__(self, accept: Annotated[str, Header(include_in_schema=False)] = "") -> None:
        self._wants_values = MEDIA_TYPE in accept

    def __call__(self, kind: Any, value: Any, view: Callable[[Any], View], status: int = 200) -> Response:  # noqa: ANN401
        """Return the value, of type `kind`, as its view or as itself."""
        if self._wants_values:
            return JSONResponse(packed(kind, value), status, media_type=MEDIA_TYPE)
        return JSONResponse(view(value).as_json(), status)


Replying = Annotated[Reply, Depends()]


def note_sessions(request: Request, sessions: list[Session]) -> None:
    """Record the sessions of a change for the audit log."""
    request.state.audit_sessions = [session.id for session in sessions]


def note_owner(request: Request, owner: str | None) -> None:
    """Record for the audit log whose things an administrator changes."""
    request.state.audit_owner = owner
