"""Backup and restore of a control node: its database and its keys in one file."""

import gzip
import json
import os
import tarfile
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from pydantic import BaseModel

from muster.core.lifecycle.adoption import HELD_BY
from muster.core.values.errors import BadInputError, MusterError, PassInProgressError
from muster.private_directories import private_directory
from muster.service.sessions.commands import SessionCommands
from muster.service.specs.scope import SessionScope
from muster.settings import Settings
from muster.store.database.copies import DatabaseCopies, copies_of, is_newer, keep_aside
from muster.store.database.lock import exclusive, queue_lock, shared
from muster.store.queue_numbers import restore_note
from muster.store.store import Store
from muster.whole_files import writing_to

_CONTENTS = "backup.json"
_DATABASE = "database"
_KEYS = ("secrets.key", "id_ed25519", "id_ed25519.pub")
_SERVED = "served.lock"
# Where backups lie on a network, our lock on what we write may be seen by this machine alone.
_LONGEST_BACKUP_S = 86400


class _Contents(BaseModel):
    """The description of a backup inside of it."""

    format: int
    muster: str
    cluster: str
    database: str
    migration: str
    taken_at: str


@dataclass(frozen=True, slots=True)
class Backup:
    """A backup that was taken; `keys` are the names of the key files in it."""

    file: str
    size_bytes: int
    taken_at: str
    database: str
    migration: str
    keys: Sequence[str]


@dataclass(frozen=True, slots=True)
class Restored:
    """The result of a restore. `held` counts pending sessions that were held; `replaced` is the old state's place.

    When the backup was `taken_at` is None for a database that was put back by other means.
    """

    taken_at: str | None
    sessions: int
    held: int
    replaced: str | None


def back_up(settings: Settings, file: Path, *, force: bool = False) -> Backup:
    """Write database and keys into one file, mode 0600, while everything runs.

    Raises BadInputError if the file is there, without `force`, and MusterError for what cannot be read or written.
    """
    if file.exists() and not force:
        raise BadInputError(f"FILE: {file} is there already; choose another name, or give --force to replace it")
    copies = copies_of(settings.database_url)
    taken_at = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    contents = _Contents(
        format=1,
        muster=version("muster"),
        cluster=settings.cluster,
        database=copies.kind,
        migration=copies.revision(),
        taken_at=taken_at,
    )
    with writing_to(file), private_directory(file.parent, ".muster-backup-", spare_s=_LONGEST_BACKUP_S) as work:
        copies.save(work / _DATABASE)
        # After the copy, in which the first secret may be: its key was there before it.
        keys = [name for name in _KEYS if (settings.state_dir / name).is_file()]
        (work / _CONTENTS).write_text(contents.model_dump_json(indent=2), encoding="utf-8")
        archive = work / "archive"
        archive.touch(mode=0o600)
        with archive.open("wb") as target:
            with tarfile.open(fileobj=target, mode="w:gz") as tar:
                for path in (work / _CONTENTS, work / _DATABASE, *(settings.state_dir / name for name in keys)):
                    tar.add(path, arcname=path.name, filter=_plain)
            target.flush()
            os.fsync(target.fileno())
        archive.replace(file)
    return Backup(str(file), file.stat().st_size, taken_at, copies.kind, contents.migration, keys)


def restore(settings: Settings, file: Path, *, force: bool = False, hold: bool = True) -> Restored:
    """Put a backup in the place of this control node's state, and hold its pending sessions if `hold`.

    The present state is kept in a directory beside it. Raises BadInputError for a file that cannot be restored here, or
    if users made the present state and `force` is not set. Raises MusterError while something works the queue. Nothing
    is changed then.
    """
    copies = copies_of(settings.database_url)
    settings.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (
        _unused(settings),
        private_directory(settings.state_dir, ".restore-") as work,
    ):
        contents, keys = _unpacked(file, work)
        _check(contents, copies, settings, file)
        _check_unused(copies)
        if not force and copies.is_live:
            raise BadInputError(
                f"FILE: it would replace the state of cluster {settings.cluster}, which is in use;"
                " give --force to put that aside and restore"
            )
        aside = settings.state_dir / f"replaced-{datetime.now(UTC):%Y%m%dT%H%M%S%fZ}"
        with writing_to(settings.state_dir):
            # With the note in it: a restore that is cut short after that is one that the next pass knows of.
            copies.replace_by(work / _DATABASE, aside, restore_note(holds=hold))
            for name in keys:
                _replace_key(settings.state_dir / name, work / name, aside)
        sessions, held = _taken_over(settings, hold=hold)
    return Restored(contents.taken_at, sessions, held, str(aside) if aside.exists() else None)


def note_restored(settings: Settings, *, hold: bool = True) -> Restored:
    """Take the database that is there for a restored one, put back by other means, as `restore` does.

    Raises MusterError while something works the queue, or uses the database. Nothing is changed then.
    """
    copies = copies_of(settings.database_url)
    copies.revision()
    with _unused(settings):
        _check_unused(copies)
        store = Store(settings.database_url)
        try:
            store.queue.note_restore(holds=hold)
        finally:
            store.close()
        sessions, held = _taken_over(settings, hold=hold)
    return Restored(None, sessions, held, None)


@contextmanager
def _unused(settings: Settings) -> Iterator[None]:
    """Let nothing work the queue and no server begin meanwhile. Raises MusterError while one does."""
    try:
        with queue_lock(settings.database_url, settings.state_dir, wait=False), _unserved(settings):
            yield
    except PassInProgressError:
        raise MusterError(
            "a daemon or a pass works the queue; stop it first (`service muster stop`, on every control node)"
        ) from None


def _check_unused(copies: DatabaseCopies) -> None:
    if users := copies.users():
        raise MusterError(
            f"the database is in use: {', '.join(users)} (host and process); stop daemons and `muster web` there first"
        )


@contextmanager
def served(settings: Settings) -> Iterator[None]:
    """Let no backup be restored into this state directory meanwhile; wait while one is."""
    with ExitStack() as held:
        with writing_to(settings.state_dir):
            held.enter_context(shared(settings.state_dir / _SERVED))
        yield


@contextmanager
def _unserved(settings: Settings) -> Iterator[None]:
    """Let no server begin meanwhile. Raises MusterError while one runs."""
    with ExitStack() as held:
        try:
            held.enter_context(exclusive(settings.state_dir / _SERVED, wait=False))
        except PassInProgressError:
            raise MusterError(
                "`muster web` runs on this state; stop it first (`service muster-web stop`, or end its process)"
            ) from None
        yield


def _unpacked(file: Path, work: Path) -> tuple[_Contents, list[str]]:
    """Write the backup's parts into the directory; return what it says of itself, and the names of its keys."""
    no_backup = f"FILE: {file} is no backup of Muster, or is damaged"
    try:
        with gzip.open(file) as stream, tarfile.open(fileobj=stream, mode="r:") as tar:
            there = {member.name: member for member in tar.getmembers() if member.isfile()}
            for name in (_CONTENTS, _DATABASE, *_KEYS):
                if name in there and (source := tar.extractfile(there[name])) is not None:
                    path = work / name
                    path.touch(mode=0o600)
                    with path.open("wb") as target:
                        while chunk := source.read(1 << 20):
                            target.write(chunk)
            # To the end, where its checksum is.
            while stream.read(1 << 20):
                pass
        if not (work / _CONTENTS).exists() or not (work / _DATABASE).exists():
            raise BadInputError(no_backup)
        contents = _Contents.model_validate(json.loads((work / _CONTENTS).read_bytes()))
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, ValueError, RecursionError) as error:
        raise BadInputError(f"{no_backup}: {' '.join(str(error).split())}") from None
    except OSError as error:
        raise BadInputError(f"FILE: {file} cannot be read: {error.strerror or error}") from None
    return contents, [name for name in _KEYS if (work / name).exists()]


def _check(contents: _Contents, copies: DatabaseCopies, settings: Settings, file: Path) -> None:
    """Raises BadInputError for a backup that does not belong here."""
    if contents.format != 1 or is_newer(contents.migration):
        raise BadInputError(
            f"FILE: {file} is of a newer Muster ({contents.muster}, migration {contents.migration}); update Muster"
        )
    if contents.database != copies.kind:
        raise BadInputError(
            f"FILE: {file} holds a {contents.database} database, and `database` names {copies.kind};"
            " let `database` name one of the same kind"
        )
    if contents.cluster != settings.cluster:
        raise BadInputError(
            f"FILE: {file} is of cluster {contents.cluster}, and this one is {settings.cluster};"
            " agents know their sessions by it: set `cluster` to the same name"
        )


def _replace_key(path: Path, new: Path, aside: Path) -> None:
    if path.exists():
        if path.read_bytes() == new.read_bytes():
            return
        keep_aside(path, aside)
    new.replace(path)


def _taken_over(settings: Settings, *, hold: bool) -> tuple[int, int]:
    """Bring the tables to this Muster's migration, and hold what waits if `hold`.

    Return how many sessions have not ended, and how many are held.
    """
    store = Store(settings.database_url)
    try:
        now = store.snapshot(time.time())
        free = [session.id for session in now.pending if session.held_by is None]
        if hold and free:
            SessionCommands(SessionScope(store, settings)).hold(free, HELD_BY)
        return len(now.sessions), len(free) if hold else 0
    finally:
        store.close()


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.mode, member.uid, member.gid, member.uname, member.gname = 0o600, 0, 0, "", ""
    return member
