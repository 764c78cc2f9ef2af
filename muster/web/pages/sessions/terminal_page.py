"""`/sessions/{session}/terminal`: a terminal in a kernel."""

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response

from muster.web.viewer import CurrentViewer

router = APIRouter(prefix="/sessions", include_in_schema=False)


@router.get("/{session}/terminal")
def terminal_page(
    viewer: CurrentViewer, session: str, *, kernel: Annotated[str | None, Query(max_length=64)] = None
) -> Response:
    chosen = viewer.backend.reach.kernel_with_terminal(session, kernel)
    return viewer.page("terminal.html", terminal=True, session=chosen.session, kernel=chosen.kernel)
