"""Data folders with an owner, and their shares, in the database."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from muster.core.model.folders import (
    PROJECT_MARK,
    Folder,
    FolderMounter,
    FolderShare,
    in_use,
    no_such_folder,
)
from muster.core.model.session import Session
from muster.core.values.errors import BadInputError, NameTakenError, NotFoundError, NotPossibleInStateError
from muster.store.database.connection import reading, upsert, writing
from muster.store.database.counters import increment_counter
from muster.store.database.tables import NOT_ENDED, folder_shares, folders, sessions
from muster.store.sessions.known import SESSION_REVISION

_CHUNK = 500
_MOUNTS_SOME = sa.cast(sessions.c.folders, sa.Text) != "[]"


class Folders:
    """A table of owned folders, keyed by owner and name. A row stays until no agent holds the folder's data."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def add(self, folder: Folder) -> None:
        """Raises NameTakenError."""
        with writing(self._engine) as connection:
            try:
                connection.execute(sa.insert(folders).values(_row(folder)))
            except sa.exc.IntegrityError:
                raise NameTakenError(
                    f"{folder.owner} has a folder {folder.name!r} already; choose another name,"
                    f" or `muster folder rm {folder.name}`"
                ) from None

    def find(self, owner: str, name: str) -> Folder:
        """Raises NotFoundError."""
        with reading(self._engine) as connection:
            return _found(connection, owner, name)

    def all(self) -> tuple[Folder, ...]:
        """Return all folders by owner and name, also those whose data are still to be removed from agents."""
        with reading(self._engine) as connection:
            return _selected(connection, sa.true())

    def mountable(self, user: str, project: str, named: Iterable[tuple[str, str]] = ()) -> tuple[Folder, ...]:
        """Return the user's own folders, those shared with them or the project, and those `named` by owner and name."""
        grantees = (user, f"{PROJECT_MARK}{project}")
        shared = sa.select(folder_shares.c.folder_id).where(folder_shares.c.grantee.in_(grantees))
        pairs = [sa.and_(folders.c.owner == owner, folders.c.name == name) for owner, name in named]
        with reading(self._engine) as connection:
            return _selected(
                connection,
                sa.and_(
                    folders.c.removed_at.is_(None), sa.or_(folders.c.owner == user, folders.c.id.in_(shared), *pairs)
                ),
            )

    def share(self, folder: Folder, share: FolderShare) -> None:
        """Save a share, in place of the grantee's earlier one. Raises NotFoundError where the folder is gone."""
        with writing(self._engine) as connection:
            increment_counter(connection, SESSION_REVISION)
            _kept(connection, folder)
            row = {"folder_id": folder.id, "grantee": share.grantee, "read_only": share.read_only}
            upsert(connection, folder_shares, [row])

    def unshare(self, folder: Folder, grantee: str) -> None:
        """Raises NotFoundError where there is no such share."""
        this = sa.and_(folder_shares.c.folder_id == folder.id, folder_shares.c.grantee == grantee)
        with writing(self._engine) as connection:
            # The first that a new session's transaction raises too: later ones find no share.
            increment_counter(connection, SESSION_REVISION)
            if not connection.execute(sa.delete(folder_shares).where(this)).rowcount:
                raise NotFoundError(
                    f"folder {folder.name} is not shared with {grantee}; see `muster folder show {folder.name}`"
                )

    def set_quota(self, folder: Folder, quota_bytes: int | None) -> None:
        with writing(self._engine) as connection:
            connection.execute(sa.update(folders).where(folders.c.id == folder.id).values(quota_bytes=quota_bytes))

    def mounters(self) -> dict[str, list[FolderMounter]]:
        """Return by folder id the sessions that mount it and have not ended."""
        with reading(self._engine) as connection:
            return _mounters(connection)

    def remove(self, folder: Folder, now: float, agent_ids: Iterable[str]) -> Folder:
        """Keep sessions from mounting it from now on; its data are to be removed from these agents.

        Raises NotFoundError where it is gone, and NotPossibleInStateError, naming the sessions, while one mounts it.
        """
        with writing(self._engine) as connection:
            # The first that a new session's transaction raises too: no session comes in between.
            increment_counter(connection, SESSION_REVISION)
            found = _kept(connection, folder)
            if found.removed_at is not None:
                return found
            if obstacle := in_use(found, _mounters(connection).get(found.id, ())):
                raise NotPossibleInStateError(obstacle)
            removal = {"removed_at": now, "left_on": sorted(agent_ids)}
            connection.execute(sa.update(folders).where(folders.c.id == folder.id).values(removal))
            return _kept(connection, folder)

    def removed_from(self, folder: Folder, agent_ids: Collection[str]) -> Folder | None:
        """Record that its data are gone from these agents. Return None once they are gone from all."""
        this = folders.c.id == folder.id
        with writing(self._engine) as connection:
            # Others may record the same of other agents.
            connection.execute(sa.select(folders.c.id).where(this).with_for_update())
            found = _selected(connection, this)
            left = [agent_id for f in found for agent_id in f.left_on if agent_id not in agent_ids]
            if left:
                connection.execute(sa.update(folders).where(this).values(left_on=left))
            else:
                connection.execute(sa.delete(folder_shares).where(folder_shares.c.folder_id == folder.id))
                connection.execute(sa.delete(folders).where(this))
            return next(iter(_selected(connection, this)), None)


def check_mountable(connection: sa.Connection, new: Iterable[Session]) -> None:
    """Raises BadInputError where a session may not mount a folder as it did when it was prepared.

    The caller has raised the sessions' revision: no folder is removed, and no share changed, before it is done.
    """
    mounts = {(session.owner, session.spec.project, folder) for session in new for folder in session.folders}
    ids = sorted({folder.folder_id for _, _, folder in mounts})
    there: dict[str, Folder] = {}
    for start in range(0, len(ids), _CHUNK):
        these = sa.and_(folders.c.id.in_(ids[start : start + _CHUNK]), folders.c.removed_at.is_(None))
        there |= {folder.id: folder for folder in _selected(connection, these)}
    for user, project, mounted in mounts:
        what = f"mounts: folder {mounted.owner}/{mounted.name}"
        if mounted.folder_id not in there:
            raise BadInputError(f"{what} was removed just now; leave it out")
        read_only = there[mounted.folder_id].read_only_for(user, project)
        if read_only is None:
            raise BadInputError(f"{what} is not shared with {user} any more; leave it out")
        if read_only and not mounted.read_only:
            raise BadInputError(f"{what} is shared read-only since just now; mount it so")


def _mounters(connection: sa.Connection) -> dict[str, list[FolderMounter]]:
    query = sa.select(sessions.c.name, sessions.c.owner, sessions.c.folders).where(NOT_ENDED, _MOUNTS_SOME)
    found: dict[str, list[FolderMounter]] = {}
    for name, owner, mounted in connection.execute(query.order_by(sessions.c.name)):
        for folder_id in {folder["folder_id"] for folder in mounted}:
            found.setdefault(folder_id, []).append(FolderMounter(name, owner))
    return found


def _found(connection: sa.Connection, owner: str, name: str) -> Folder:
    found = _selected(connection, sa.and_(folders.c.owner == owner, folders.c.name == name))
    if not found:
        raise no_such_folder(owner, name)
    return found[0]


def _kept(connection: sa.Connection, folder: Folder) -> Folder:
    """Return the folder as it is now, which nobody forgets before this transaction is over.

    Raises NotFoundError where it is gone, be there another of its name.
    """
    this = folders.c.id == folder.id
    connection.execute(sa.select(folders.c.id).where(this).with_for_update(read=True, key_share=True))
    found = _selected(connection, this)
    if not found:
        raise no_such_folder(folder.owner, folder.name)
    return found[0]


def _selected(connection: sa.Connection, where: sa.ColumnElement[bool]) -> tuple[Folder, ...]:
    rows = connection.execute(sa.select(folders).where(where).order_by(folders.c.owner, folders.c.name)).mappings()
    shares: dict[str, list[FolderShare]] = {}
    of_these = folder_shares.c.folder_id.in_(sa.select(folders.c.id).where(where))
    found = rows.all()
    for share in connection.execute(sa.select(folder_shares).where(of_these).order_by(folder_shares.c.grantee)):
        shares.setdefault(share.folder_id, []).append(FolderShare(share.grantee, share.read_only))
    return tuple(_folder(row, shares.get(row["id"], ())) for row in found)


def _folder(row: sa.RowMapping, shares: Sequence[FolderShare]) -> Folder:
    return Folder(**{**row, "left_on": tuple(row["left_on"]), "shares": tuple(shares)})


def _row(folder: Folder) -> dict[str, Any]:
    return {
        "id": folder.id,
        "owner": folder.owner,
        "name": folder.name,
        "created_at": folder.created_at,
        "quota_bytes": folder.quota_bytes,
        "removed_at": folder.removed_at,
        "left_on": list(folder.left_on),
    }
