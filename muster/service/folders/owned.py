"""Data folders as a token's user sees and changes them: their own, and what others share with them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from muster.core.model.folders import PROJECT_MARK, Folder, FolderMounter, no_such_folder
from muster.core.model.projects import DEFAULT_PROJECT
from muster.core.model.token import Token
from muster.core.values.errors import NotPossibleInStateError, SpecError
from muster.service.folders.files import FilePlace, FolderFiles, OpenedFile, Upload
from muster.service.folders.measurements import Measurements, Visited
from muster.service.folders.views import (
    FilesView,
    FolderRemovedView,
    FoldersView,
    FolderUsage,
    FolderView,
    MeasuredFolderView,
    UnsharedView,
)
from muster.service.identity.permissions import check_acts_for, check_admin, check_may_change, owner_of_new
from muster.service.identity.tokens import ScopeError
from muster.settings import Settings
from muster.store.store import Store

if TYPE_CHECKING:  # Ansible's libraries load slowly
    from muster.service.folders.folders import FolderService


@dataclass(frozen=True, slots=True)
class FolderQuery:
    """A query for folders: all visible ones (`everything`), or those that `owner` may mount in `project`.

    `owner` is the caller by default. With `sizes` the agents measure them, which takes seconds.
    """

    everything: bool = False
    project: str = DEFAULT_PROJECT
    owner: str | None = None
    sizes: bool = False


class OwnedFolders:
    """The folders of a token's user. An administrator's token sees and changes all.

    Any other user changes their own, and sees what is shared with them.

    `owner` is the folder's owner, by default the user. Methods raise NotFoundError for an invisible folder, as if it
    did not exist, and ScopeError for a change of another owner's visible folder.
    """

    def __init__(self, store: Store, settings: Settings, token: Token, measurements: Measurements) -> None:
        self._measurements = measurements
        self._store = store
        self._settings = settings
        self._token = token

    def search(self, query: FolderQuery) -> FoldersView:
        """Return folders by owner and name. Raises ScopeError for another user's view, and for everybody's."""
        user = query.owner or self._token.user
        check_acts_for(self._token, user, "acts")
        if query.everything:
            check_admin(self._token)
        self._check_project(user, query.project)
        found = [
            folder
            for folder in self._store.folders.all()
            if query.everything or folder.read_only_for(user, query.project) is not None
        ]
        visited = self._agents().measured(found) if query.sizes and found else None
        mounters = self._store.folders.mounters()
        items = [FolderView.of(*self._visible_facts(one, mounters, visited, query.project)) for one in found]
        return FoldersView(items=items, problems=dict(visited.problems) if visited else {})

    def show(
        self, name: str, owner: str | None = None, *, project: str = DEFAULT_PROJECT, sizes: bool = True
    ) -> MeasuredFolderView:
        """Return one folder. Raises NotFoundError."""
        self._check_project(self._token.user, project)
        folder = self._visible(name, owner or self._token.user, project)
        return self._view(folder, self._agents().measured([folder]) if sizes else None, project)

    def create(self, name: str, owner: str | None, quota_bytes: int | None) -> MeasuredFolderView:
        """Raises ScopeError, BadInputError and NameTakenError."""
        whose = owner_of_new(self._token, owner, "makes folders")
        return self._view(*self._agents().create(name, whose, quota_bytes))

    def set_quota(self, name: str, owner: str | None, quota_bytes: int | None) -> MeasuredFolderView:
        """Raises ScopeError, NotFoundError and BadInputError."""
        return self._view(*self._agents().set_quota(name, self._changeable(name, owner).owner, quota_bytes))

    def share(self, name: str, owner: str | None, grantee: str, *, read_only: bool) -> MeasuredFolderView:
        """Raises ScopeError, NotFoundError, and BadInputError for an impossible grantee."""
        whose = self._changeable(name, owner).owner
        return self._view(self._agents().share(name, whose, grantee, read_only=read_only))

    def unshare(self, name: str, owner: str | None, grantee: str) -> UnsharedView:
        """Return the sessions of others that keep it until they end. Raises ScopeError and NotFoundError."""
        mounters = self._agents().unshare(name, self._changeable(name, owner).owner, grantee)
        return UnsharedView(name=name, grantee=grantee, still_mounted_by=[mounter.session for mounter in mounters])

    def remove(self, name: str, owner: str | None, on_removed: Callable[[str], None]) -> FolderRemovedView:
        """Remove a folder and its data; `on_removed` is called with each agent that removed them.

        Raises ScopeError, NotFoundError, and NotPossibleInStateError while a session mounts it.
        """
        left, visited = self._agents().remove(name, self._changeable(name, owner).owner, on_removed)
        return FolderRemovedView(
            name=name,
            removed=left is None,
            removed_from=list(visited.answers),
            left_on=list(left.left_on) if left else [],
            problems=dict(visited.problems),
        )

    def look(self, place: FilePlace) -> FilesView:
        """Return what is at a path of a folder. Raises NotFoundError, and as `FolderFiles.look`."""
        folder, read_only = self._reached(place)
        may_change = self._token.may_change and not read_only
        return self._files(folder).look(place.path, place.agent, may_change=may_change)

    @contextmanager
    def open_file(self, place: FilePlace, most_bytes: int | None = None) -> Iterator[OpenedFile]:
        """Open a file, its first bytes, or a directory as a tar file. Raises as `FolderFiles.opened`."""
        folder, _ = self._reached(place)
        with self._files(folder).opened(place.path, place.agent, most_bytes) as opened:
            yield opened

    @contextmanager
    def upload(self, place: FilePlace, size: int, *, replaces: bool = False) -> Iterator[Upload]:
        """Begin to write a file of so many bytes. Raises ScopeError, and as `FolderFiles.uploading`."""
        with self._changed(place).uploading(place.path, place.agent, size, replaces=replaces) as upload:
            yield upload

    def make_directory(self, place: FilePlace) -> None:
        """Raises ScopeError, NameTakenError, and as `FolderFiles`."""
        self._changed(place).make_directory(place.path, place.agent)

    def rename_file(self, place: FilePlace, to: str) -> None:
        """Rename or move an entry within the folder. Raises ScopeError, NameTakenError, and as `FolderFiles`."""
        self._changed(place).rename(place.path, to, place.agent)

    def remove_file(self, place: FilePlace) -> None:
        """Remove a file, or a directory with all that is in it. Raises ScopeError, and as `FolderFiles`."""
        self._changed(place).remove(place.path, place.agent)

    def _reached(self, place: FilePlace) -> tuple[Folder, bool]:
        """Return a folder whose files the user may read, and whether they may only read them.

        Raises NotFoundError and NotPossibleInStateError.
        """
        self._check_project(self._token.user, place.project)
        folder = self._visible(place.folder, place.owner or self._token.user, place.project)
        if folder.removed_at is not None:
            raise NotPossibleInStateError(f"folder {folder.name} is being removed")
        read_only = False if self._may_change(folder) else folder.read_only_for(self._token.user, place.project)
        return folder, read_only is not False

    def _changed(self, place: FilePlace) -> FolderFiles:
        """Return a folder whose files the user may change. Raises ScopeError, and as `_reached`."""
        check_may_change(self._token)
        folder, read_only = self._reached(place)
        if read_only:
            raise ScopeError(f"folder {folder.owner}/{folder.name} is shared with you read-only")
        return self._files(folder)

    def _files(self, folder: Folder) -> FolderFiles:
        return FolderFiles(
            self._store, self._settings, folder, folder.owner if self._may_change(folder) else self._token.user
        )

    def _agents(self) -> "FolderService":
        from muster.service.folders.folders import FolderService  # noqa: PLC0415 - Ansible's libraries load slowly

        return FolderService(self._store, self._settings, self._measurements)

    def _check_project(self, user: str, project: str) -> None:
        """Refuse a project that is not theirs: its shares are. Raises SpecError."""
        # Those of the default project are everybody's, whatever a token is for.
        only = () if project == DEFAULT_PROJECT else self._token.projects
        if not self._token.sees_all and (refusal := self._settings.members.refusal(user, project, only)):
            raise SpecError([refusal])

    def _visible(self, name: str, owner: str, project: str) -> Folder:
        folder = self._store.folders.find(owner, name)
        if not self._token.sees_all and folder.read_only_for(self._token.user, project) is None:
            raise no_such_folder(owner, name)
        return folder

    def _changeable(self, name: str, owner: str | None) -> Folder:
        """Raises ScopeError and NotFoundError."""
        check_may_change(self._token)
        folder = self._visible(name, owner or self._token.user, DEFAULT_PROJECT)
        if not self._may_change(folder):
            raise ScopeError(f"folder {folder.owner}/{name} is {folder.owner}'s; only its owner can change it")
        return folder

    def _may_change(self, folder: Folder) -> bool:
        return self._token.owner_filter in {None, folder.owner}

    def _view(
        self, folder: Folder, visited: Visited | None = None, project: str = DEFAULT_PROJECT
    ) -> MeasuredFolderView:
        facts = self._visible_facts(folder, self._store.folders.mounters(), visited, project)
        view = MeasuredFolderView.of(*facts)
        return view.model_copy(update={"problems": dict(visited.problems) if visited else {}})

    def _visible_facts(
        self,
        folder: Folder,
        mounters: Mapping[str, Sequence[FolderMounter]],
        visited: Visited | None,
        project: str,
    ) -> tuple[Folder, Sequence[FolderMounter], FolderUsage | None]:
        """Return the folder, the sessions that mount it and its usage.

        Other grantees and other users' sessions are left out, unless the user may change the folder.
        """
        use = visited.use_of(folder) if visited else None
        mounting = mounters.get(folder.id, ())
        if self._may_change(folder):
            return folder, mounting, use
        grantees = {self._token.user, f"{PROJECT_MARK}{project}"}
        shares = tuple(share for share in folder.shares if share.grantee in grantees)
        return replace(folder, shares=shares), [m for m in mounting if m.owner == self._token.user], use
