"""Tokens in the database: a hash of each secret, never the secret."""

import hmac
from typing import Any

import sqlalchemy as sa

from muster.core.model.token import Scope, Token
from muster.core.values.errors import BadInputError, NameTakenError, NotFoundError
from muster.store.database.connection import reading, writing
from muster.store.database.counters import counted_alone
from muster.store.database.tables import tokens

_NOTED_EVERY_S = 60.0
# A counter that each one raises that a user makes for themselves.
_NUMBER = "tokens"
_SHOWN = [column for column in tokens.c if column is not tokens.c.hash]
# Each request looks for a token: to make the statement costs more than to run it.
_OF_HASH = sa.select(tokens).where(tokens.c.hash == sa.bindparam("secret_hash"))


class Tokens:
    """A table of tokens, keyed by name. A row stays until the token is revoked."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def add(self, token: Token, secret_hash: str, most: int | None = None) -> None:
        """Raises NameTakenError, and BadInputError where the user has `most` tokens already."""
        row = {name: getattr(token, name) for name in Token.__dataclass_fields__}
        theirs = sa.select(sa.func.count()).select_from(tokens).where(tokens.c.user == token.user)
        with writing(self._engine) as connection:
            if most is not None and counted_alone(connection, _NUMBER, theirs) >= most:
                raise BadInputError(f"NAME: you have {most} tokens; revoke one of them first")
            try:
                connection.execute(
                    sa.insert(tokens).values(
                        {**row, "scope": token.scope.value, "projects": list(token.projects), "hash": secret_hash}
                    )
                )
            except sa.exc.IntegrityError:
                raise NameTakenError(
                    f"NAME: there is a token {token.name!r} already;"
                    f" choose another name, or `muster token revoke {token.name}`"
                ) from None

    def renew(self, token: Token) -> Token | None:
        """Give the token of that name this one's scope and end, and return it; None where there is none of that name.

        One that had expired is as old as this one.
        """
        this = tokens.c.name == token.name
        had_expired = tokens.c.expires_at <= token.created_at
        values = {"scope": token.scope.value, "expires_at": token.expires_at, "projects": list(token.projects)}
        with writing(self._engine) as connection:
            connection.execute(
                sa.update(tokens)
                .where(this)
                .values({**values, "created_at": sa.case((had_expired, token.created_at), else_=tokens.c.created_at)})
            )
            row = connection.execute(sa.select(*_SHOWN).where(this)).mappings().first()
        return None if row is None else token_from_row(row)

    def remove(self, name: str, user: str | None = None) -> Token:
        """Remove a token, with a `user` one of theirs, and return it. Raises NotFoundError."""
        this = sa.and_(tokens.c.name == name, sa.true() if user is None else tokens.c.user == user)
        with writing(self._engine) as connection:
            row = connection.execute(sa.delete(tokens).where(this).returning(*_SHOWN)).mappings().first()
        if row is None:
            raise NotFoundError(f"there is no token {name!r}; see `muster token ls`")
        return token_from_row(row)

    def all(self) -> tuple[Token, ...]:
        """Return all tokens by name, also those that have expired."""
        with reading(self._engine) as connection:
            rows = connection.execute(sa.select(*_SHOWN)).mappings()
            return tuple(sorted(map(token_from_row, rows), key=lambda token: token.name))

    def of_hash(self, secret_hash: str) -> Token | None:
        with reading(self._engine) as connection:
            row = connection.execute(_OF_HASH, {"secret_hash": secret_hash}).mappings().first()
        # Timing a comparison would reveal nothing about the hash of a random secret; it takes constant time even so.
        return token_from_row(row) if row is not None and hmac.compare_digest(row["hash"], secret_hash) else None

    def note_use(self, token: Token, now: float) -> None:
        """Record the last use, at most once a minute: frequent requests should not make the database write often."""
        if token.last_used_at is not None and now - token.last_used_at < _NOTED_EVERY_S:
            return
        with writing(self._engine) as connection:
            connection.execute(sa.update(tokens).where(tokens.c.name == token.name).values(last_used_at=now))


def token_from_row(row: sa.RowMapping) -> Token:
    fields: dict[str, Any] = {name: row[name] for name in Token.__dataclass_fields__}
    return Token(**{**fields, "scope": Scope(fields["scope"]), "projects": tuple(fields["projects"])})
