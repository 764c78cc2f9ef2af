"""What the command line asks for: answered by the control node itself, or by its API from another machine."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from muster.core.model.token import Scope
from muster.service.agents.views import AgentsView, GpusView
from muster.service.folders.owned import FolderQuery
from muster.service.folders.views import FolderRemovedView, FoldersView, MeasuredFolderView, UnsharedView
from muster.service.identity.views import NewTokenView, TokensView, TokenView
from muster.service.images.commits_under_way import Progressed
from muster.service.images.views import CommittedImageView, ImageRemovedView, ImagesView
from muster.service.questions.views import DetailsView, DryRunView, HeartbeatView, QueueView, WhyView
from muster.service.reach.logs import LogRequest
from muster.service.reach.programs import KernelPrograms
from muster.service.reach.views import AppAccessView, SshAccessView
from muster.service.secrets.views import SecretsView
from muster.service.sessions.queries import SessionQuery
from muster.service.sessions.views import SessionView, SubmittedView, UpdatedView
from muster.service.specs.preset_views import PresetsView, PresetView
from muster.service.usage.views import CurrentUsagesView, ReportView


class FolderBackend(Protocol):
    """The protocol of `OwnedFolders`."""

    def search(self, query: FolderQuery) -> FoldersView: ...

    def show(self, name: str, owner: str | None = None, *, sizes: bool = True) -> MeasuredFolderView: ...

    def create(self, name: str, owner: str | None, quota_bytes: int | None) -> MeasuredFolderView: ...

    def set_quota(self, name: str, owner: str | None, quota_bytes: int | None) -> MeasuredFolderView: ...

    def share(self, name: str, owner: str | None, grantee: str, *, read_only: bool) -> MeasuredFolderView: ...

    def unshare(self, name: str, owner: str | None, grantee: str) -> UnsharedView: ...

    def remove(self, name: str, owner: str | None, on_removed: Callable[[str], None]) -> FolderRemovedView: ...


class ImageBackend(Protocol):
    """The protocol of `OwnedImages`."""

    def all(self) -> ImagesView: ...

    def named(self, name: str) -> ImagesView: ...

    def commit(
        self,
        reference: str,
        kernel: str | None,
        name: str,
        *,
        message: str = "",
        public: bool = False,
        progressed: Progressed | None = None,
    ) -> CommittedImageView: ...

    def remove(self, reference: str) -> ImageRemovedView: ...


class ReachBackend(Protocol):
    """The protocol of `OwnedReach`, of what is open to commands."""

    def log(
        self, reference: str, kernel: str | None, request: LogRequest
    ) -> AbstractContextManager[Iterable[bytes]]: ...

    def programs(self, reference: str, kernel: str | None) -> AbstractContextManager[KernelPrograms]: ...

    def ssh_access(self, reference: str) -> SshAccessView: ...

    def app_access(self, reference: str, name: str | None) -> AppAccessView: ...


class SecretBackend(Protocol):
    """The protocol of `OwnedSecrets`."""

    def names(self) -> SecretsView: ...

    def set(self, name: str, value: str) -> None: ...

    def remove(self, name: str) -> None: ...


class TokenBackend(Protocol):
    """The protocol of `OwnedTokens`."""

    def all(self) -> TokensView: ...

    def create(
        self, name: str, user: str | None, scope: Scope, expires: str | None, projects: Sequence[str] = ()
    ) -> NewTokenView: ...

    def revoke(self, name: str) -> TokenView: ...


class PresetBackend(Protocol):
    """The protocol of `OwnedPresets`."""

    def all(self) -> PresetsView: ...

    def named(self, name: str) -> PresetView: ...

    def save(self, name: str, values: Mapping[str, Any]) -> PresetView: ...

    def remove(self, name: str) -> PresetView: ...


class Backend(Protocol):
    """The protocol of backends. Answers are the views of the API, wherever they come from.

    Each method raises as the service layer does for the same, and NotFoundError for what its user may not see.
    """

    @property
    def folders(self) -> FolderBackend: ...

    @property
    def images(self) -> ImageBackend: ...

    @property
    def reach(self) -> ReachBackend: ...

    @property
    def secrets(self) -> SecretBackend: ...

    @property
    def presets(self) -> PresetBackend: ...

    @property
    def tokens(self) -> TokenBackend: ...

    def submit(self, spec: Mapping[str, Any], owner: str | None, count: int) -> SubmittedView: ...

    def dry_run(self, spec: Mapping[str, Any], owner: str | None, count: int) -> DryRunView: ...

    def search(self, query: SessionQuery) -> list[SessionView]: ...

    def named(self, references: Iterable[str]) -> list[SessionView]: ...

    def details(self, reference: str) -> DetailsView: ...

    def why(self, reference: str, *, what_if: bool) -> WhyView: ...

    def queue(self, group: str | None = None) -> QueueView: ...

    def agents(self, labels: Mapping[str, str]) -> AgentsView: ...

    def gpus(self, labels: Mapping[str, str]) -> GpusView: ...

    def terminate(self, references: Iterable[str], *, only_pending: bool = False) -> list[SessionView]: ...

    def hold(self, references: Iterable[str]) -> list[SessionView]: ...

    def release(self, references: Iterable[str]) -> list[SessionView]: ...

    def restart(self, references: Iterable[str]) -> list[SessionView]: ...

    def extend(self, references: Iterable[str], seconds: int) -> list[SessionView]: ...

    def rename(self, reference: str, name: str) -> SessionView: ...

    def update(self, reference: str, changes: Mapping[str, Any]) -> UpdatedView: ...

    def heartbeat(self) -> HeartbeatView: ...

    def report(
        self,
        since: float | None = None,
        until: float | None = None,
        by: Sequence[str] = ("user",),
        users: Sequence[str] = (),
        projects: Sequence[str] = (),
    ) -> ReportView: ...

    def usage_samples(
        self, references: Sequence[str], interval_s: float, *, once: bool
    ) -> Iterator[CurrentUsagesView]: ...

    def wait_for(
        self,
        sessions: Sequence[SessionView],
        reached: Callable[[SessionView], bool],
        timeout_s: float | None = None,
    ) -> Iterator[list[SessionView]]: ...
