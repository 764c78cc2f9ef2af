"""Tokens as a token's user makes and revokes them: no new one may do more, or for longer, than the one that made it."""

from collections.abc import Sequence

from muster.core.model.token import Scope, Token
from muster.service.identity.permissions import check_acts_for, check_may_change
from muster.service.identity.tokens import ScopeError, Tokens
from muster.service.identity.views import NewTokenView, TokensView, TokenView

MOST_OF_ONE = 50
_WITHIN = {
    Scope.ADMIN: frozenset(Scope),
    Scope.USER: frozenset({Scope.USER, Scope.READ}),
    Scope.READ: frozenset[Scope](),
}


class OwnedTokens:
    """The tokens of a token's user; an administrator's token gives those of all users.

    Methods raise ScopeError where the token's scope does not allow it.
    """

    def __init__(self, tokens: Tokens, token: Token) -> None:
        self._tokens = tokens
        self._token = token

    def all(self) -> TokensView:
        """Return the tokens by name, also those that have expired."""
        return TokensView(items=[TokenView.of(one) for one in self._tokens.all() if self._token.sees(one.user)])

    def create(
        self, name: str, user: str | None, scope: Scope, expires: str | None, projects: Sequence[str] = ()
    ) -> NewTokenView:
        """Return a new token with its secret, which is shown this once. Raises BadInputError and NameTakenError."""
        check_may_change(self._token)
        check_acts_for(self._token, user, "makes tokens")
        if scope not in _WITHIN[self._token.scope]:
            raise ScopeError(f"{self._token.title} has scope {self._token.scope}; it makes none of scope {scope}")
        own = self._token.projects
        if own and not {*projects} <= {*own}:
            raise ScopeError(f"{self._token.title} is for {', '.join(own)}; it makes tokens for these projects only")
        most = None if self._token.sees_all else MOST_OF_ONE
        made, secret = self._tokens.create(
            name, user or self._token.user, scope, expires, projects or own, until=self._token.expires_at, most=most
        )
        return NewTokenView(**dict(TokenView.of(made)), token=secret)

    def revoke(self, name: str) -> TokenView:
        """Make a token worthless at once, and return what it was. Raises NotFoundError."""
        check_may_change(self._token)
        return TokenView.of(self._tokens.revoke(name, self._token.owner_filter))
