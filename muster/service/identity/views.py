"""Views of API tokens. The secret of one is no part of them."""

from typing import Self

from pydantic import Field

from muster.core.model.token import Scope, Token
from muster.service.view import Moment, View


class TokenView(View):
    name: str
    user: str
    scope: Scope
    created_at: Moment
    expires_at: Moment | None
    last_used_at: Moment | None
    projects: list[str]

    @classmethod
    def of(cls, token: Token) -> Self:
        return cls(
            name=token.name,
            user=token.user,
            scope=token.scope,
            created_at=token.created_at,
            expires_at=token.expires_at,
            last_used_at=token.last_used_at,
            projects=list(token.projects),
        )


class NewTokenView(TokenView):
    """A token that was just made, with its secret."""

    token: str = Field(description="the secret: it is shown this once")


class TokensView(View):
    items: list[TokenView]
