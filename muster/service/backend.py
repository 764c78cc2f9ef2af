"""What the faces ask for, whoever answers: the control node itself, or its API from another machine."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from muster.core.apps import AppView
from muster.core.changes import Suggestion
from muster.core.counterfactual import Answer
from muster.core.plan import Wait
from muster.core.session import Session, SessionState
from muster.service.gpu_map import GpuUse, HeldShare
from muster.service.session_logs import LogWanted
from muster.service.what_if import Queued
from muster.store.store import StoryLine


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


class Backend(Protocol):
    """Each method raises what `Sessions` raises for the same, and NotFoundError for what its user may not see."""

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

    def log(self, reference: str, kernel: str | None, wanted: LogWanted) -> AbstractContextManager[Iterable[bytes]]: ...

    def wait_for(
        self, sessions: Sequence[Session], reached: Callable[[Session], bool], timeout_s: float | None = None
    ) -> Iterator[list[Session]]: ...
