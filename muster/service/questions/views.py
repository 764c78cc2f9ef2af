"""Views of answers about sessions and the queue."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field

from muster.core.agents.agent import Agent
from muster.core.launch.environment import overridden_variables
from muster.core.model.heartbeat import Unworked
from muster.core.model.session import GpuShare, Session, SessionState, size_text
from muster.core.spec.session_spec import SessionSpec
from muster.core.spec.written import written
from muster.core.whatif.explain import HOPELESS
from muster.core.whatif.hypothesis import SpecChange, Suggestion
from muster.service.agents.gpu_map import session_shares
from muster.service.agents.views import AgentView, share_views
from muster.service.questions.details import Details, has_gpus
from muster.service.reach.views import SessionAppView
from muster.service.sessions.views import (
    SIZE_HELP,
    SIZE_TEXT_HELP,
    ProgressView,
    SessionView,
    SlotsView,
    StoryLineView,
    WaitView,
    session_fields,
    session_views,
)
from muster.service.sessions.visibility import Sees
from muster.service.usage.views import KernelUsageView
from muster.service.view import Moment, View

if TYPE_CHECKING:  # the scheduler loads slowly, and most answers need none
    from muster.core.whatif.counterfactual import StartForecast
    from muster.service.questions.decided_queue import Queued
    from muster.service.questions.dry_run import DryRun
    from muster.service.questions.overview import GroupOverview, Overview
    from muster.service.questions.why import Why


class DependencyView(View):
    id: str
    name: str
    state: SessionState


class DetailsView(SessionView):
    """A session, as `muster show --json` prints it."""

    dependencies: list[DependencyView] = Field(description="the first of those that the caller may see")
    apps: list[SessionAppView]
    use: list[KernelUsageView]
    story: list[StoryLineView]
    overridden_env: list[str] = Field(default=[], description="what frameworks read and the spec's env says otherwise")

    @classmethod
    def of_details(cls, details: Details) -> Self:
        return cls(
            **session_fields(details.session, share_views(details.shares)),
            dependencies=[
                DependencyView(id=key, name=other.name, state=other.state)
                for key, other in details.dependencies.items()
            ],
            apps=[SessionAppView.of(app) for app in details.apps],
            use=list(details.uses),
            story=[StoryLineView.of(line) for line in details.story],
            overridden_env=overridden_variables(details.session),
        )


def session_with_shares(session: Session, agents: Sequence[Agent]) -> SessionView:
    """Return the view, with what the agents say of its kernels' GPU shares."""
    held = session_shares(session, agents) if has_gpus(session) else {}
    return SessionView(**session_fields(session, share_views(held)))


class SuggestionView(View):
    text: str
    flags: list[str]
    effort: float
    starts_at: Moment | None
    spec_changes: dict[str, Any] | None = Field(
        description="the changed fields as in a session file, null for the default; null if the spec would not change"
    )

    @classmethod
    def of(cls, suggestion: Suggestion, spec: SessionSpec) -> Self:
        return cls(
            text=suggestion.text,
            flags=list(suggestion.flags),
            effort=round(suggestion.effort, 4),
            starts_at=suggestion.starts_at,
            spec_changes=_spec_changes(suggestion, spec),
        )


def _spec_changes(suggestion: Suggestion, spec: SessionSpec) -> dict[str, Any] | None:
    changed: dict[str, Any] = {}
    for change in suggestion.changes:
        if not isinstance(change, SpecChange):
            return None
        changed |= change.fields
    values = written(spec.model_copy(update=changed))
    return {name: values.get(name) for name in changed}


_LEFT_OUT_HELP = "for what agents were drained that the wait counts as left out, and the like; a line each"


class WhyView(View):
    id: str
    name: str
    state: SessionState
    reason: str
    resource_group: str
    priority: int
    cluster_size: int = Field(description=SIZE_HELP)
    size: str = Field(description=SIZE_TEXT_HELP)
    slots: SlotsView
    progress: ProgressView | None
    wait: WaitView | None
    names: dict[str, str] = Field(description="by id, names and states of the sessions that it waits for")
    left_out: list[str] = Field(description=_LEFT_OUT_HELP)
    unworked: str | None = Field(description="what is wrong, if nobody works the queue: then nothing starts now")
    suggestions: list[SuggestionView] | None = Field(default=None, description="left out unless requested")

    @classmethod
    def of(cls, why: "Why") -> Self:
        session, suggestions = why.session, why.suggestions
        return cls(
            id=session.id,
            name=session.name,
            state=session.state,
            reason=session.reason,
            resource_group=session.spec.resource_group,
            priority=session.spec.priority,
            cluster_size=len(session.kernels),
            size=size_text(session.spec, session.given),
            slots=SlotsView.of(session.slots),
            progress=ProgressView.of(session.progress),
            wait=WaitView.of(why.wait, why.position) if why.wait else None,
            names=dict(why.names),
            left_out=list(why.left_out),
            unworked=why.unworked.text if why.unworked else None,
            **({} if suggestions is None else {"suggestions": suggestion_views(suggestions, session.spec)}),
        )


class GroupOverviewView(View):
    """A resource group at a glance."""

    name: str
    agent_count: int
    serving: int = Field(description="agents that take sessions")
    capacity: SlotsView = Field(description="of the agents that take sessions")
    free: SlotsView
    waiting: int = Field(description="sessions of all users")
    head: list[SessionView | None] = Field(description="the queue's first sessions; null for another user's")

    @classmethod
    def of(cls, group: "GroupOverview") -> Self:
        return cls(
            name=group.name,
            agent_count=group.agent_count,
            serving=group.serving,
            capacity=SlotsView.of(group.capacity),
            free=SlotsView.of(group.free),
            waiting=group.waiting,
            head=[None if session is None else SessionView.of(session) for session in group.head],
        )


class OverviewView(View):
    """The cluster at a glance, as its reader may see it."""

    states: dict[SessionState, int] = Field(description="visible sessions by state, without those that have ended")
    failures: list[SessionView] = Field(description="the user's own newest failures of the last week")
    groups: list[GroupOverviewView]
    troubled: list[AgentView] = Field(description="agents that take no sessions, or whose GPUs are not shared")

    @classmethod
    def of(cls, found: "Overview", sees: Sees) -> Self:
        return cls(
            states=dict(found.states),
            failures=session_views(found.failures),
            groups=[GroupOverviewView.of(group) for group in found.groups],
            troubled=[AgentView.of(use, sees) for use in found.troubled],
        )


class QueuedView(View):
    id: str
    name: str
    owner: str
    resource_group: str
    priority: int
    cluster_size: int = Field(description=SIZE_HELP)
    size: str = Field(description=SIZE_TEXT_HELP)
    slots: SlotsView
    submitted_at: Moment
    position: int | None = Field(description="in the queue of its resource group; null if it is about to start")
    wait: WaitView | None

    @classmethod
    def of(cls, queued: "Queued") -> Self:
        session, wait = queued.session, queued.wait
        return cls(
            id=session.id,
            name=session.name,
            owner=session.owner,
            resource_group=session.spec.resource_group,
            priority=session.spec.priority,
            cluster_size=len(session.kernels),
            size=size_text(session.spec, session.given),
            slots=SlotsView.of(session.slots),
            submitted_at=session.submitted_at,
            position=wait.position if wait else None,
            wait=WaitView.of(wait, wait.position) if wait else None,
        )


class QueueView(View):
    items: list[QueuedView]

    @classmethod
    def of(cls, queue: "Iterable[Queued]") -> Self:
        return cls(items=[QueuedView.of(queued) for queued in queue])


class HeartbeatView(View):
    """The heartbeat: whether something works the queue."""

    unworked: str | None = Field(description="what is wrong, if nobody has worked the queue for too long")
    unworked_for_s: float | None

    @classmethod
    def of(cls, unworked: Unworked | None) -> Self:
        if unworked is None:
            return cls(unworked=None, unworked_for_s=None)
        return cls(unworked=unworked.text, unworked_for_s=round(unworked.for_s, 1))


def suggestion_views(suggestions: Iterable[Suggestion], spec: SessionSpec) -> list[SuggestionView]:
    return [SuggestionView.of(suggestion, spec) for suggestion in suggestions]


class PlacedKernelView(View):
    name: str
    agent: str
    gpus: list[GpuShare]


class DryRunItemView(View):
    """The forecast for one session."""

    name: str
    resource_group: str
    priority: int
    cluster_size: int = Field(description=SIZE_HELP)
    size: str = Field(description=SIZE_TEXT_HELP)
    slots: SlotsView
    starts_now: bool
    mode: str | None
    kernels: list[PlacedKernelView] = Field(description="where they would run; empty where it would wait")
    wait: WaitView | None
    left_out: list[str] = Field(description=_LEFT_OUT_HELP)
    suggestions: list[SuggestionView]

    @property
    def never_starts(self) -> bool:
        return self.wait is not None and self.wait.code in HOPELESS

    @classmethod
    def of(cls, answer: "StartForecast", left_out: Iterable[str], *, is_worked: bool) -> Self:
        session, placement = answer.session, answer.placement
        allocations = placement.allocations if placement else {}
        if placement and session.spec.is_elastic:
            session = session.of_size(len(allocations))
        return cls(
            name=session.name,
            resource_group=session.spec.resource_group,
            priority=session.spec.priority,
            cluster_size=len(session.kernels),
            size=size_text(session.spec, session.given),
            slots=SlotsView.of(session.slots),
            starts_now=placement is not None and is_worked,
            mode=placement.mode if placement else None,
            kernels=[
                PlacedKernelView(name=kernel.name, agent=allocation.agent_id, gpus=list(allocation.gpus))
                for kernel in session.kernels
                if (allocation := allocations.get(kernel.id))
            ],
            wait=WaitView.of(answer.wait, answer.wait.position) if answer.wait else None,
            left_out=list(left_out),
            suggestions=suggestion_views(answer.suggestions, session.spec),
        )


class DryRunView(View):
    items: list[DryRunItemView]
    unworked: str | None = Field(description="what is wrong, if nobody works the queue: then nothing starts now")
    gpu_indexes: dict[str, int] = Field(description="by uuid, indexes of the GPUs that they would get")
    names: dict[str, str] = Field(description="by id, names of the sessions that they would wait for")
    warnings: list[str] = Field(description="what may go wrong, such as an image that nobody knows; a line each")

    @classmethod
    def of(cls, dry_run: "DryRun", warnings: Iterable[str] = ()) -> Self:
        unworked = dry_run.unworked
        items = [
            DryRunItemView.of(answer, dry_run.left_out.get(answer.session.id, ()), is_worked=unworked is None)
            for answer in dry_run.answers
        ]
        uuids = {share.uuid for item in items for kernel in item.kernels for share in kernel.gpus}
        waited_for = {key for item in items if item.wait for key in item.wait.waits_for}
        return cls(
            items=items,
            unworked=unworked.text if unworked else None,
            gpu_indexes={uuid: index for uuid, index in dry_run.gpu_indexes.items() if uuid in uuids},
            names={key: name for key, name in dry_run.names.items() if key in waited_for},
            warnings=list(warnings),
        )
