"""What the faces ask for, whoever answers: the control node itself, or its API from another machine."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from muster.core.images.committed import CommittedImage
from muster.core.model.apps import AppView
from muster.core.model.folders import Folder, FolderUser
from muster.core.model.plan import Wait
from muster.core.model.session import Session, SessionState
from muster.core.whatif.counterfactual import Answer
from muster.core.whatif.hypothesis import Suggestion
from muster.service.agents.gpu_map import GpuUse, HeldShare
from muster.service.folders.owned import FoldersWanted
from muster.service.folders.views import FolderRemoved, FoldersTold
from muster.service.images.commits_under_way import Progressed
from muster.service.images.known import KnownImages
from muster.service.questions.what_if import Queued
from muster.service.reach.logs import LogWanted
from muster.service.secrets.owned import SecretName
from muster.service.usage.reports import Report
from muster.store.store import StoryLine

if TYPE_CHECKING:  # the Docker SDK loads slowly
    from muster.service.usage.live import KernelNow


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which sessions: those that have ended only with `ended` or by their state; `limit`: only the newest."""

    ended: bool = False
    states: tuple[SessionState, ...] = ()
    mine: bool = False
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Submitted:
    """New sessions; by id, why some of them could never start. `again`: a submit with that key was done before."""

    sessions: Sequence[Session]
    impossible: Mapping[str, Wait] = field(default_factory=dict)
    again: bool = False


@dataclass(frozen=True, slots=True)
class DryRun:
    """What would become of sessions; the indexes of GPUs by uuid and the names of sessions by id that tell it."""

    answers: Sequence[Answer]
    gpu_indexes: Mapping[str, int]
    names: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Details:
    """A session with all that `muster show` tells; `shares` by kernel id, `uses` as `session_uses_json` tells them."""

    session: Session
    story: Sequence[StoryLine]
    dependencies: Mapping[str, Session]
    apps: Sequence[AppView]
    shares: Mapping[str, Sequence[HeldShare]]
    uses: Sequence[dict[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class Why:
    """`wait` is None where the session does not wait; `suggestions` where they were not asked for."""

    session: Session
    wait: Wait | None
    position: int
    names: Mapping[str, str]
    suggestions: Sequence[Suggestion] | None


class FolderBackend(Protocol):
    """As `OwnedFolders`."""

    def search(self, wanted: FoldersWanted) -> FoldersTold: ...

    def show(self, name: str, owner: str | None = None, *, sizes: bool = True) -> FoldersTold: ...

    def create(self, name: str, owner: str | None, quota_bytes: int | None) -> FoldersTold: ...

    def set_quota(self, name: str, owner: str | None, quota_bytes: int | None) -> FoldersTold: ...

    def share(self, name: str, owner: str | None, grantee: str, *, read_only: bool) -> Folder: ...

    def unshare(self, name: str, owner: str | None, grantee: str) -> list[FolderUser]: ...

    def remove(self, name: str, owner: str | None, told: Callable[[str], None]) -> FolderRemoved: ...


class SecretBackend(Protocol):
    """As `OwnedSecrets`."""

    def names(self) -> Sequence[SecretName]: ...

    def set(self, name: str, value: str) -> None: ...

    def remove(self, name: str) -> None: ...


class Backend(Protocol):
    """Each method raises what `Sessions` raises for the same, and NotFoundError for what its user may not see."""

    @property
    def folders(self) -> FolderBackend: ...

    @property
    def secrets(self) -> SecretBackend: ...

    def submit(self, spec: Mapping[str, Any], owner: str | None, count: int) -> Submitted: ...

    def dry_run(self, spec: Mapping[str, Any], owner: str | None, count: int) -> DryRun: ...

    def search(self, wanted: Wanted) -> list[Session]: ...

    def details(self, reference: str) -> Details: ...

    def why(self, reference: str, *, what_if: bool) -> Why: ...

    def queue(self) -> list[Queued]: ...

    def agents(self, labels: Mapping[str, str]) -> list[dict[str, Any]]: ...

    def gpus(self, labels: Mapping[str, str]) -> list[GpuUse]: ...

    def terminate(self, references: Iterable[str], *, only_pending: bool = False) -> list[Session]: ...

    def hold(self, references: Iterable[str]) -> list[Session]: ...

    def release(self, references: Iterable[str]) -> list[Session]: ...

    def restart(self, references: Iterable[str]) -> list[Session]: ...

    def rename(self, reference: str, name: str) -> Session: ...

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

    def log(self, reference: str, kernel: str | None, wanted: LogWanted) -> AbstractContextManager[Iterable[bytes]]: ...

    def wait_for(
        self, sessions: Sequence[Session], reached: Callable[[Session], bool], timeout_s: float | None = None
    ) -> Iterator[list[Session]]: ...
