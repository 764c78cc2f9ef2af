"""Data folders that have an owner: their names, where they lie on an agent, who may mount them and how."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from muster.core.spec.mounts import HOME, MountSpec
from muster.core.spec.session_spec import SessionSpec
from muster.core.values.errors import BadInputError, FieldError, NotFoundError, SpecError

# Below the folders' root. Plain directories, which a site makes itself, lie beside it.
AREA = ".muster"
PROJECT_MARK = "@"
NAME_PATTERN = re.compile(r"\.?[A-Za-z0-9][A-Za-z0-9_.-]{0,61}")
# A user or a project of any name that does not begin like another's mark or like nothing.
GRANTEE_PATTERN = re.compile(r"@?[^@\s\x00][^\x00]*")
OWNER_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,63}")
MIN_QUOTA_BYTES = 1 << 20
_MOST_NAMES = 5
_MOST_NAME_BYTES = 255
_MOST_PATH_BYTES = 4096
# Above the ids that a host gives to people and programs; 30 bits of the folder's id follow.
_FIRST_NUMBER = 1 << 30


@dataclass(frozen=True, slots=True)
class FolderShare:
    """A folder share; `grantee` is a user, or `@` and a project."""

    grantee: str
    read_only: bool


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder as the store holds it; `created_at` and `removed_at` in seconds since the epoch.

    One with `removed_at` can no longer be mounted: its data are still to be removed from the agents `left_on`.
    """

    id: str
    owner: str
    name: str
    created_at: float
    quota_bytes: int | None = None
    shares: tuple[FolderShare, ...] = ()
    removed_at: float | None = None
    left_on: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        """Return the path below the folders' root.

        A folder made again under the same name never finds the data of an earlier one.
        """
        return f"{AREA}/folders/{self.owner}/{self.name}-{self.id[:8]}"

    @property
    def number(self) -> int:
        """Return the number of the folder's group and of its project quota."""
        return _FIRST_NUMBER | int(self.id[:8], 16) >> 2

    @property
    def in_every_session(self) -> bool:
        return self.name.startswith(".")

    def read_only_for(self, user: str, project: str) -> bool | None:
        """Return whether a session of this user in this project gets it read-only; None: not at all."""
        if user == self.owner:
            return False
        grants = [s.read_only for s in self.shares if s.grantee in {user, f"{PROJECT_MARK}{project}"}]
        return all(grants) if grants else None


class FolderMounter(NamedTuple):
    """A session that mounts a folder, with its name and its owner."""

    session: str
    owner: str


@dataclass(frozen=True, slots=True)
class MountedFolder:
    """A folder as a session mounts it in each of its kernels, as it was when the session was submitted."""

    folder_id: str
    owner: str
    name: str
    path: str
    number: int
    quota_bytes: int | None
    target: str
    read_only: bool


def check_name(name: str) -> None:
    """Check a folder's name. Raises BadInputError where it cannot be one."""
    if not NAME_PATTERN.fullmatch(name):
        raise BadInputError(
            f"NAME: {name!r} is not a folder's name; use letters, digits, dots, dashes and underscores, 62 at most"
        )


def check_owner(owner: str) -> None:
    """Check a folder's owner, whose name becomes a directory's. Raises BadInputError where it cannot."""
    if not OWNER_PATTERN.fullmatch(owner):
        raise BadInputError(
            f"--owner: {owner!r} cannot own folders; use letters, digits, dots, dashes and underscores, 64 at most"
        )


def check_grantee(grantee: str, owner: str) -> None:
    """Check a grantee. Raises BadInputError for what is neither another user nor `@PROJECT`."""
    if grantee == owner:
        raise BadInputError(f"WHOM: {owner} owns the folder; name another user, or @ and a project")
    if not GRANTEE_PATTERN.fullmatch(grantee) or len(grantee) > 255:
        raise BadInputError(f"WHOM: {grantee!r} names nobody; write a user's name, or @ and a project's")


def check_quota(quota_bytes: int) -> None:
    """Check a quota. Raises BadInputError for less than a useful folder's."""
    if quota_bytes < MIN_QUOTA_BYTES:
        raise BadInputError(f"--quota: {quota_bytes} bytes are too few; write 1M or more, such as 500M or 2T")


def no_such_folder(owner: str, name: str) -> NotFoundError:
    return NotFoundError(f"{owner} has no folder {name!r}; see `muster folder ls`")


def qualified(reference: str) -> tuple[str, str] | None:
    """Return the pair of `OWNER/NAME`, and None for any other text."""
    owner, slash, name = reference.partition("/")
    return (owner, name) if slash and name and "/" not in name else None


def mounted_folders(spec: SessionSpec, user: str, known: Sequence[Folder]) -> tuple[MountedFolder, ...]:
    """Return the folders with an owner that a session of this spec and user mounts. Other mounts are plain directories.

    `known` holds the user's own folders, and those shared with the user or the spec's project. It also holds those that
    the spec names as OWNER/NAME, shared or not. Raises SpecError with every mount that is refused.
    """
    errors: list[FieldError] = []
    found: list[MountedFolder] = []
    for number, mount in enumerate(spec.mounts):
        try:
            mounted = _mounted(mount, user, spec.project, known)
        except _RefusedError as refused:
            errors.append(FieldError(f"mounts[{number}].folder", refused.problem, refused.remedy))
            continue
        if mounted:
            found.append(mounted)
    if errors:
        raise SpecError(errors)
    return (*found, *_in_every_session(spec, user, known))


def in_use(folder: Folder, sessions: Sequence[FolderMounter]) -> str:
    """Return one line that says why a folder cannot be removed; empty when no session that has not ended mounts it."""
    if not sessions:
        return ""
    return f"folder {folder.name} is in use by {few_names(user.session for user in sessions)}; end them first"


def few_names(sessions: Iterable[str]) -> str:
    """Return a few of the sessions' names, and the number of the others."""
    names = sorted(sessions)
    more = f" and {len(names) - _MOST_NAMES} others" if len(names) > _MOST_NAMES else ""
    return f"{', '.join(names[:_MOST_NAMES])}{more}"


class _RefusedError(Exception):
    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy


def _mounted(mount: MountSpec, user: str, project: str, known: Sequence[Folder]) -> MountedFolder | None:
    if mount.folder.split("/")[0] == AREA:
        raise _RefusedError(
            f"{mount.folder!r} is where folders with an owner are kept", "name the folder, such as data or ada/data"
        )
    folder = _meant(mount.folder, user, project, known)
    if folder is None:
        return None
    read_only = folder.read_only_for(user, project)
    title = f"{folder.owner}/{folder.name}"
    if read_only is None:
        raise _RefusedError(f"folder {title} is not shared with {user}", f"ask {folder.owner} to share it")
    mounted_read_only = mount.read_only if "read_only" in mount.model_fields_set else read_only
    if read_only and not mounted_read_only:
        raise _RefusedError(f"folder {title} is shared with {user} read-only", f"mount it with :ro: {title}:ro")
    return _as_mounted(folder, mount.target, read_only=mounted_read_only)


def _meant(reference: str, user: str, project: str, known: Sequence[Folder]) -> Folder | None:
    """Return the user's own folder of the name, else a shared one; None where the reference is a plain directory."""
    pair = qualified(reference)
    if pair:
        return next((folder for folder in known if (folder.owner, folder.name) == pair), None)
    allowed = [f for f in known if f.name == reference and f.read_only_for(user, project) is not None]
    own = [folder for folder in allowed if folder.owner == user]
    if own or len(allowed) < 2:
        return next(iter(own or allowed), None)
    titles = ", ".join(sorted(f"{folder.owner}/{folder.name}" for folder in allowed))
    raise _RefusedError(f"several folders {reference!r} are shared with {user}", f"name one of {titles}")


def _in_every_session(spec: SessionSpec, user: str, known: Sequence[Folder]) -> Iterator[MountedFolder]:
    taken = {mount.target for mount in spec.mounts}
    for folder in sorted(known, key=lambda folder: folder.name):
        target = f"{HOME}/{folder.name}"
        if spec.dot_folders and folder.owner == user and folder.in_every_session and target not in taken:
            yield _as_mounted(folder, target, read_only=False)


def _as_mounted(folder: Folder, target: str, *, read_only: bool) -> MountedFolder:
    return MountedFolder(
        folder_id=folder.id,
        owner=folder.owner,
        name=folder.name,
        path=folder.path,
        number=folder.number,
        quota_bytes=folder.quota_bytes,
        target=target,
        read_only=read_only,
    )


def file_path(text: str) -> tuple[str, ...]:
    """Return the parts of a path in a folder; none for the folder itself. Raises BadInputError."""
    parts = tuple(part for part in text.split("/") if part)
    try:
        longest = max((len(part.encode()) for part in parts), default=0)
        size = len(text.encode())
    except UnicodeEncodeError:
        raise BadInputError("path: it is no text; write one such as results/loss.csv") from None
    if longest > _MOST_NAME_BYTES or size > _MOST_PATH_BYTES:
        raise BadInputError(
            f"path: it is too long; a name has at most {_MOST_NAME_BYTES} bytes, a path {_MOST_PATH_BYTES}"
        )
    if {".", ".."} & set(parts) or "\0" in text:
        raise BadInputError(f"path: {text!r} is no path in a folder; write one such as results/loss.csv, without ..")
    return parts
