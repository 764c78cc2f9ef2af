"""`/account`: the signed-in user, what they may do and for how long, and signing out."""

from fastapi import APIRouter, Response

from muster.core.model.token import Scope
from muster.web.viewer import CurrentViewer

router = APIRouter(include_in_schema=False)
_SCOPE_TEXTS = {
    Scope.ADMIN: "sees and changes everything, and submits for others",
    Scope.USER: "sees and changes your own sessions and folders",
    Scope.READ: "sees your own sessions and folders, and changes nothing",
}


@router.get("/account")
def account(viewer: CurrentViewer) -> Response:
    return viewer.page("account.html", scope_text=_SCOPE_TEXTS[viewer.token.scope])
