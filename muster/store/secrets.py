"""Owners' secrets in the database, as they are sealed: what they say never comes here."""

from dataclasses import dataclass, field

import sqlalchemy as sa

from muster.core.values.errors import BadInputError, NotFoundError
from muster.store.database.connection import reading, upsert, writing
from muster.store.database.counters import counted_alone
from muster.store.database.tables import secrets

# A counter that each one that is set raises.
_NUMBER = "secrets"


@dataclass(frozen=True, slots=True)
class SealedSecret:
    """A sealed secret. `key_id` names its key; `changed_at` is in seconds since the epoch."""

    owner: str
    name: str
    sealed: bytes = field(repr=False)
    key_id: str
    changed_at: float


class SecretRows:
    """A table of secrets, keyed by owner and name."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def put(self, secret: SealedSecret, most: int) -> bool:
        """Save a secret, in place of one of that owner and name; return False where any has another key.

        Raises BadInputError where the owner has `most`.
        """
        row = {
            "owner": secret.owner,
            "name": secret.name,
            "sealed": secret.sealed,
            "key_id": secret.key_id,
            "changed_at": secret.changed_at,
        }
        is_other = sa.and_(secrets.c.owner == secret.owner, secrets.c.name != secret.name)
        others = sa.select(sa.func.count()).select_from(secrets).where(is_other)
        other_key = sa.select(secrets.c.name).where(secrets.c.key_id != secret.key_id).limit(1)
        with writing(self._engine) as connection:
            count = counted_alone(connection, _NUMBER, others)
            if connection.execute(other_key).first() is not None:
                return False
            if count >= most:
                raise BadInputError(f"NAME: you have {most} secrets; remove one of them first")
            upsert(connection, secrets, [row])
        return True

    def remove(self, owner: str, name: str) -> None:
        """Raises NotFoundError."""
        this = sa.delete(secrets).where(secrets.c.owner == owner, secrets.c.name == name)
        with writing(self._engine) as connection:
            if not connection.execute(this).rowcount:
                raise NotFoundError(f"{owner} has no secret {name!r}; see `muster secret ls`")

    def of(self, owner: str) -> dict[str, SealedSecret]:
        """Return the owner's secrets in their names' order."""
        query = sa.select(secrets).where(secrets.c.owner == owner).order_by(secrets.c.name)
        with reading(self._engine) as connection:
            return {row["name"]: SealedSecret(**row) for row in connection.execute(query).mappings()}

    def key_ids(self) -> set[str]:
        """Return the ids of the keys that any secret is sealed with."""
        with reading(self._engine) as connection:
            return set(connection.execute(sa.select(secrets.c.key_id).distinct()).scalars())
