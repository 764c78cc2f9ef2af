"""Bodies of requests as plain data, replies, and notes for the audit log."""

import json
from collections.abc import Iterable
from typing import Annotated, Any, Protocol

from fastapi import Depends, Request
from fastapi.responses import Response

from muster.core.model.policy import Limit
from muster.core.spec.session_spec import SessionSpec
from muster.core.values.errors import BadInputError
from muster.service.view import View


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
SPEC_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{SessionSpec.__name__}"}}},
    }
}
"""What a route says of such a body that is a session spec."""
CHANGES_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "description": f"fields of a {SessionSpec.__name__} with their new values, null for the default;"
                    " of `env` and `labels` the names that change, null for those that go",
                }
            }
        },
    }
}
"""What a route says of such a body that changes a session spec."""


class HasId(Protocol):
    """A session, or its view."""

    @property
    def id(self) -> str: ...


def reply(view: View, status: int = 200) -> Response:
    """Return the view as JSON, without fields that were never set."""
    return json_reply(view.json_text(), status)


def json_reply(text: str, status: int = 200) -> Response:
    return Response(text, status, media_type="application/json")


def note_sessions(request: Request, sessions: Iterable[HasId]) -> None:
    """Record the sessions of a change for the audit log."""
    request.state.audit_sessions = [session.id for session in sessions]


def note_file(request: Request, path: str) -> None:
    """Record for the audit log which file of a folder is changed or refused."""
    request.state.audit_query = {"path": path}


def note_name(request: Request, name: str) -> None:
    """Record for the audit log what is made by a form that has its name."""
    request.state.audit_query = {"name": name}


def note_changes(request: Request, limit: Limit, **named: str) -> None:
    """Record for the audit log what a limit is set to, with what a form says that the path does not."""
    amounts = {
        f"{when}.{counted}": str(amount)
        for when, bounds in (("running", limit.running), ("pending", limit.pending))
        for counted, amount in bounds.items()
    }
    request.state.audit_query = {**named, **(amounts or {"none": "true"})}


def note_weight(request: Request, weight: float, **named: str) -> None:
    """Record for the audit log what a share weight is set to, with what a form says that the path does not."""
    request.state.audit_query = {**named, "weight": f"{weight:g}"}


def note_quota(request: Request, quota_bytes: int | None) -> None:
    """Record for the audit log what a folder's quota is set to."""
    request.state.audit_query = {"quota_bytes": "none" if quota_bytes is None else str(quota_bytes)}


def note_content(request: Request, *, before: View | None = None, after: View | None = None) -> None:
    """Record for the audit log what was there before a change, and what is there since."""
    request.state.audit_content = {
        name: view.as_json() for name, view in (("before", before), ("after", after)) if view is not None
    }


def note_owner(request: Request, owner: str | None) -> None:
    """Record for the audit log whose things an administrator changes."""
    request.state.audit_owner = owner
