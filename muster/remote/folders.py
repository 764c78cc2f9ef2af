"""Data folders and secrets by a server's API."""

from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

from muster.core.model.folders import Folder, FolderUser
from muster.core.values.errors import BadInputError
from muster.remote.client import Client
from muster.service.folders.owned import FolderQuery
from muster.service.folders.views import FolderListing, FolderRemoved
from muster.service.secrets.owned import SecretName
from muster.service.wire import unpacked


class RemoteFolders:
    """As `OwnedFolders`. The server asks agents for most of it, which may take a while."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def search(self, query: FolderQuery) -> FolderListing:
        parameters = {
            "all": query.everything,
            "project": query.project,
            "owner": query.owner,
            "sizes": query.sizes,
        }
        return self._listing("GET", "folders", parameters=parameters)

    def show(self, name: str, owner: str | None = None, *, sizes: bool = True) -> FolderListing:
        return self._listing("GET", _folder(name), parameters={"owner": owner, "sizes": sizes})

    def create(self, name: str, owner: str | None, quota_bytes: int | None) -> FolderListing:
        return self._listing("POST", "folders", {"name": name, "quota_bytes": quota_bytes}, {"owner": owner})

    def set_quota(self, name: str, owner: str | None, quota_bytes: int | None) -> FolderListing:
        return self._listing("POST", f"{_folder(name)}/quota", {"quota_bytes": quota_bytes}, {"owner": owner})

    def share(self, name: str, owner: str | None, grantee: str, *, read_only: bool) -> Folder:
        body = {"grantee": grantee, "read_only": read_only}
        told = self._client.post(f"{_folder(name)}/share", body, {"owner": owner})
        folder: Folder = unpacked(Folder, told)
        return folder

    def unshare(self, name: str, owner: str | None, grantee: str) -> list[FolderUser]:
        told = self._client.post(f"{_folder(name)}/unshare", {"grantee": grantee}, {"owner": owner})
        keep: list[FolderUser] = unpacked(list[FolderUser], told)
        return keep

    def remove(self, name: str, owner: str | None, on_removed: Callable[[str], None]) -> FolderRemoved:
        answer = self._client.patiently("DELETE", _folder(name), parameters={"owner": owner})
        removed: FolderRemoved = unpacked(FolderRemoved, answer)
        for agent_id in removed.removed_from:
            on_removed(agent_id)
        return removed

    def _listing(
        self, method: str, path: str, body: object = None, parameters: dict[str, Any] | None = None
    ) -> FolderListing:
        listing: FolderListing = unpacked(FolderListing, self._client.patiently(method, path, body, parameters))
        return listing


class RemoteSecrets:
    """As `OwnedSecrets`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def names(self) -> Sequence[SecretName]:
        names: Sequence[SecretName] = unpacked(Sequence[SecretName], self._client.get("secrets"))
        return names

    def set(self, name: str, value: str) -> None:
        self._client.put(_part("secrets", name), {"value": value})

    def remove(self, name: str) -> None:
        self._client.delete(_part("secrets", name))


def _folder(name: str) -> str:
    return _part("folders", name)


def _part(collection: str, name: str) -> str:
    """Raises BadInputError for what would be no part of a path."""
    if name in {"", ".", ".."}:
        raise BadInputError(f"NAME: {name!r} is no name; use letters, digits, dots, dashes and underscores")
    return f"{collection}/{quote(name, safe='')}"
