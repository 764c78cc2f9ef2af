"""Data folders, secrets, presets and tokens by a server's API."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from muster.core.model.token import Scope
from muster.remote.client import Client, path_part
from muster.service.folders.owned import FolderQuery
from muster.service.folders.views import FolderRemovedView, FoldersView, MeasuredFolderView, UnsharedView
from muster.service.identity.views import NewTokenView, TokensView, TokenView
from muster.service.secrets.views import NameView, SecretsView
from muster.service.specs.preset_views import PresetsView, PresetView


class RemoteFolders:
    """The remote twin of `OwnedFolders`. The server visits agents for most of it, which may take a while."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def search(self, query: FolderQuery) -> FoldersView:
        parameters = {
            "all": query.everything,
            "project": query.project,
            "owner": query.owner,
            "sizes": query.sizes,
        }
        return self._client.get(FoldersView, "folders", parameters, patient=True)

    def show(self, name: str, owner: str | None = None, *, sizes: bool = True) -> MeasuredFolderView:
        return self._client.get(MeasuredFolderView, _folder(name), {"owner": owner, "sizes": sizes}, patient=True)

    def create(self, name: str, owner: str | None, quota_bytes: int | None) -> MeasuredFolderView:
        return self._changed("folders", {"name": name, "quota_bytes": quota_bytes}, owner)

    def set_quota(self, name: str, owner: str | None, quota_bytes: int | None) -> MeasuredFolderView:
        return self._changed(f"{_folder(name)}/quota", {"quota_bytes": quota_bytes}, owner)

    def share(self, name: str, owner: str | None, grantee: str, *, read_only: bool) -> MeasuredFolderView:
        return self._changed(f"{_folder(name)}/share", {"grantee": grantee, "read_only": read_only}, owner)

    def unshare(self, name: str, owner: str | None, grantee: str) -> UnsharedView:
        return self._client.post(UnsharedView, f"{_folder(name)}/unshare", {"grantee": grantee}, {"owner": owner})

    def remove(self, name: str, owner: str | None, on_removed: Callable[[str], None]) -> FolderRemovedView:
        removed = self._client.delete(FolderRemovedView, _folder(name), {"owner": owner})
        for agent_id in removed.removed_from:
            on_removed(agent_id)
        return removed

    def _changed(self, path: str, body: Any, owner: str | None) -> MeasuredFolderView:  # noqa: ANN401 - JSON
        return self._client.post(MeasuredFolderView, path, body, {"owner": owner}, patient=True)


class RemoteSecrets:
    """The remote twin of `OwnedSecrets`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def names(self) -> SecretsView:
        return self._client.get(SecretsView, "secrets")

    def set(self, name: str, value: str) -> None:
        self._client.put(NameView, _secret(name), {"value": value})

    def remove(self, name: str) -> None:
        self._client.delete(NameView, _secret(name))


class RemotePresets:
    """The remote twin of `OwnedPresets`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def all(self) -> PresetsView:
        return self._client.get(PresetsView, "presets")

    def named(self, name: str) -> PresetView:
        return self._client.get(PresetView, _preset(name))

    def save(self, name: str, values: Mapping[str, Any]) -> PresetView:
        return self._client.put(PresetView, _preset(name), values)

    def remove(self, name: str) -> PresetView:
        return self._client.delete(PresetView, _preset(name))


class RemoteTokens:
    """The remote twin of `OwnedTokens`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def all(self) -> TokensView:
        return self._client.get(TokensView, "tokens")

    def create(
        self, name: str, user: str | None, scope: Scope, expires: str | None, projects: Sequence[str] = ()
    ) -> NewTokenView:
        body = {"scope": scope.value, "expires": expires, "projects": list(projects)}
        return self._client.post(NewTokenView, _token(name), body, {"owner": user})

    def revoke(self, name: str) -> TokenView:
        return self._client.delete(TokenView, _token(name))


def _preset(name: str) -> str:
    return f"presets/{path_part(name)}"


def _token(name: str) -> str:
    return f"tokens/{path_part(name)}"


def _folder(name: str) -> str:
    return f"folders/{path_part(name)}"


def _secret(name: str) -> str:
    return f"secrets/{path_part(name)}"
