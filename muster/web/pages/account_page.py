"""`/account`: who is signed in, what he may do, for how long; and out again."""

import shlex

from fastapi import APIRouter, Response

from muster.core.model.token import Scope
from muster.web.viewer import Visiting

router = APIRouter(include_in_schema=False)
_MAY = {
    Scope.ADMIN: "sees and changes everything, and submits for others",
    Scope.USER: "sees and changes what is yours",
    Scope.READ: "sees what is yours, and changes nothing",
}


@router.get("/account")
def account(visitor: Visiting) -> Response:
    return visitor.page("account.html", may=_MAY[visitor.token.scope], quoted_user=shlex.quote(visitor.user))
