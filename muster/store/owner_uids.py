"""The uid of each owner, from the site's range or as a Unix user. A given uid is never another owner's."""

from collections.abc import Collection, Mapping

import sqlalchemy as sa

from muster.store.database.connection import reading, writing
from muster.store.database.counters import increment_counter
from muster.store.database.tables import owner_uids

# Two transactions at once would give out the same uid: incrementing a counter makes one wait for the other.
_GIVEN = "owner_uids"


class OwnerUids:
    """A table of uids, keyed by owner."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def given(self, owners: Collection[str], uids: range, kept: Collection[int] = ()) -> dict[str, int]:
        """Return the owners' uids; those without get the lowest free ones, but none of `kept`.

        Who is not in the answer got none, since the range is used up.
        """
        with reading(self._engine) as connection:
            known = _of(connection, owners)
        missing = sorted(set(owners) - known.keys())
        if not missing:
            return known
        with writing(self._engine) as connection:
            increment_counter(connection, _GIVEN)
            known = _of(connection, owners)
            taken = {*kept, *connection.execute(sa.select(owner_uids.c.uid)).scalars()}
            free = (uid for uid in uids if uid not in taken)
            new = dict(zip((owner for owner in missing if owner not in known), free, strict=False))
            if new:
                rows = [{"owner": owner, "uid": uid} for owner, uid in new.items()]
                connection.execute(sa.insert(owner_uids), rows)
        return {**known, **new}

    def record(self, uids: Mapping[str, int]) -> None:
        """Record uids that owners have elsewhere, each as its owner's and nobody else's."""
        with reading(self._engine) as connection:
            known = _of(connection, uids)
        if known == uids:
            return
        with writing(self._engine) as connection:
            increment_counter(connection, _GIVEN)
            earlier = owner_uids.c.owner.in_(sorted(uids)) | owner_uids.c.uid.in_(sorted(uids.values()))
            connection.execute(sa.delete(owner_uids).where(earlier))
            rows = [{"owner": owner, "uid": uid} for owner, uid in uids.items()]
            connection.execute(sa.insert(owner_uids), rows)


def _of(connection: sa.Connection, owners: Collection[str]) -> dict[str, int]:
    query = sa.select(owner_uids.c.owner, owner_uids.c.uid).where(owner_uids.c.owner.in_(sorted(owners)))
    return {row.owner: row.uid for row in connection.execute(query)}
