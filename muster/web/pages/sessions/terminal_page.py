"""`/sessions/{session}/terminal`: a terminal in a kernel."""

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response

from muster.core.model.session import kernel_named
from muster.service.reach.terminal import check_has_terminal
from muster.web.viewer import CurrentViewer

router = APIRouter(prefix="/sessions", include_in_schema=False)


@router.get("/{session}/terminal")
def terminal_page(
    viewer: CurrentViewer, session: str, *, kernel: Annotated[str | None, Query(max_length=64)] = None
) -> Response:
    viewer.backend.check_may_change()
    found = viewer.backend.find(session)
    chosen = kernel_named(found, kernel)
    check_has_terminal(found, chosen)
    return viewer.page("terminal.html", terminal=True, session=found, kernel=chosen)
