"""`/sessions/…/terminal`: a kernel's shell in the whole window."""

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response

from muster.core.model.session import kernel_named
from muster.service.reach.terminal import check_has_terminal
from muster.web.viewer import Visiting

router = APIRouter(prefix="/sessions", include_in_schema=False)


@router.get("/{session}/terminal")
def terminal_page(
    visitor: Visiting, session: str, *, kernel: Annotated[str | None, Query(max_length=64)] = None
) -> Response:
    visitor.backend.check_may_change()
    found = visitor.backend.find(session)
    chosen = kernel_named(found, kernel)
    check_has_terminal(found, chosen)
    return visitor.page("terminal.html", terminal=True, session=found, kernel=chosen)
