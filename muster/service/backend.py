"""What the faces ask for: answered by the control node itself, or by its API from another machine."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from muster.core.images.committed import CommittedImage
from muster.core.model.folders import Folder, FolderUser
from muster.core.model.heartbeat import Unworked
from muster.core.model.session import Session
from muster.service.agents.gpu_map import GpuUse
from muster.service.agents.views import AgentView
from muster.service.folders.owned import FolderQuery
from muster.service.folders.views import FolderListing, FolderRemoved
from muster.service.images.commits_under_way import Progressed
from muster.service.images.known import KnownImages
from muster.service.questions.details import Details
from muster.service.questions.dry_run import DryRun
from muster.service.questions.what_if import Queued
from muster.service.questions.why import Why
from muster.service.reach.logs import LogRequest
from muster.service.secrets.owned import SecretName
from muster.service.sessions.commands import Submitted
from muster.service.sessions.queries import SessionQuery
from muster.service.usage.reports import Report

if TYPE_CHECKING:  # the Docker SDK loads slowly
    from muster.service.usage.live import KernelNow


class FolderBackend(Protocol):
    """As `OwnedFolders`."""

    def search(self, query: FolderQuery) -> FolderListing: ...

    def show(self, name: str, owner: str | None = None, *, sizes: bool = True) -> FolderListing: ...

    def create(self, name: str, owner: str | None, quota_bytes: int | None) -> FolderListing: ...

    def set_quota(self, name: str, owner: str | None, quota_bytes: int | None) -> FolderListing: ...

    def share(self, name: str, owner: str | None, grantee: str, *, read_only: bool) -> Folder: ...

    def unshare(self, name: str, owner: str | None, grantee: str) -> list[FolderUser]: ...

    def remove(self, name: str, owner: str | None, on_removed: Callable[[str], None]) -> FolderRemoved: ...


class SecretBackend(Protocol):
    """As `OwnedSecrets`."""

    def names(self) -> Sequence[SecretName]: ...

    def set(self, name: str, value: str) -> None: ...

    def remove(self, name: str) -> None: ...


class Backend(Protocol):
    """Each method raises as the service layer does for the same, and NotFoundError for what its user may not see."""

    @property
    def folders(self) -> FolderBackend: ...

    @property
    def secrets(self) -> SecretBackend: ...

    def submit(self, spec: Mapping[str, Any], owner: str | None, count: int) -> Submitted: ...

    def dry_run(self, spec: Mapping[str, Any], owner: str | None, count: int) -> DryRun: ...

    def search(self, query: SessionQuery) -> list[Session]: ...

    def details(self, reference: str) -> Details: ...

    def why(self, reference: str, *, what_if: bool) -> Why: ...

    def queue(self) -> list[Queued]: ...

    def agents(self, labels: Mapping[str, str]) -> list[AgentView]: ...

    def gpus(self, labels: Mapping[str, str]) -> list[GpuUse]: ...

    def terminate(self, references: Iterable[str], *, only_pending: bool = False) -> list[Session]: ...

    def hold(self, references: Iterable[str]) -> list[Session]: ...

    def release(self, references: Iterable[str]) -> list[Session]: ...

    def restart(self, references: Iterable[str]) -> list[Session]: ...

    def rename(self, reference: str, name: str) -> Session: ...

    def unworked(self) -> Unworked | None: ...

    def known_images(self) -> KnownImages: ...

    def report(
        self,
        since: float | None = None,
        until: float | None = None,
        by: Sequence[str] = ("user",),
        users: Sequence[str] = (),
        projects: Sequence[str] = (),
    ) -> Report: ...

    def looks(self, references: Sequence[str], interval_s: float, *, once: bool) -> Iterator[Sequence["KernelNow"]]: ...

    def commit(
        self,
        reference: str,
        kernel: str | None,
        name: str,
        *,
        message: str = "",
        public: bool = False,
        progressed: Progressed | None = None,
    ) -> CommittedImage: ...

    def log(
        self, reference: str, kernel: str | None, request: LogRequest
    ) -> AbstractContextManager[Iterable[bytes]]: ...

    def wait_for(
        self, sessions: Sequence[Session], reached: Callable[[Session], bool], timeout_s: float | None = None
    ) -> Iterator[list[Session]]: ...
