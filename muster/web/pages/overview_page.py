"""`/overview`: what a user looks at first. The other pages have the details."""

from fastapi import APIRouter, Response

from muster.web.viewer import CurrentViewer

router = APIRouter(include_in_schema=False)


@router.get("/overview")
def overview(viewer: CurrentViewer) -> Response:
    return viewer.shared_page("overview.html", lambda: {"overview": viewer.backend.overview()})
