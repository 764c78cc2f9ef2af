"""Who is signed in to the pages: a hash of each browser's secret, and the token that it was given for."""

import sqlalchemy as sa

from muster.core.model.token import Token
from muster.core.values.errors import NotFoundError
from muster.store.database.connection import reading, writing
from muster.store.database.tables import sign_ins, tokens
from muster.store.tokens import token_from_row

# Each request looks for a token: to make the statement costs more than to run it.
_TOKEN_OF = (
    sa.select(tokens)
    .join(sign_ins, sign_ins.c.token_name == tokens.c.name)
    .where(sign_ins.c.hash == sa.bindparam("secret_hash"), sign_ins.c.expires_at > sa.bindparam("now"))
)


class SignIns:
    """A table of sign-ins. They end with their token, by signing out, or with time."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def add(self, secret_hash: str, token: Token, expires_at: float, now: float) -> None:
        """Add a sign-in, and remove those that have expired.

        Raises NotFoundError where the token was revoked, be there another of its name.
        """
        is_it = (tokens.c[name] == getattr(token, name) for name in ("name", "user", "created_at"))
        # First, as a revocation has the token before it removes sign-ins: they would wait for each other otherwise.
        kept = sa.select(tokens.c.name).where(*is_it).with_for_update(read=True, key_share=True)
        with writing(self._engine) as connection:
            if connection.execute(kept).first() is None:
                raise NotFoundError(f"there is no token {token.name!r} any more")
            connection.execute(sa.delete(sign_ins).where(sign_ins.c.expires_at <= now))
            row = {"hash": secret_hash, "token_name": token.name, "expires_at": expires_at}
            connection.execute(sa.insert(sign_ins).values(row))

    def token_of(self, secret_hash: str, now: float) -> Token | None:
        """Return the token by which that browser signed in; the token may have expired."""
        with reading(self._engine) as connection:
            row = connection.execute(_TOKEN_OF, {"secret_hash": secret_hash, "now": now}).mappings().first()
        return None if row is None else token_from_row(row)

    def remove(self, secret_hash: str) -> None:
        with writing(self._engine) as connection:
            connection.execute(sa.delete(sign_ins).where(sign_ins.c.hash == secret_hash))
