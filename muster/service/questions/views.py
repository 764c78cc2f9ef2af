"""Views of answers about sessions and the queue."""

from collections.abc import Iterable
from typing import Self

from pydantic import Field

from muster.core.model.heartbeat import Unworked
from muster.core.model.session import GpuShare, SessionState
from muster.core.whatif.counterfactual import Answer
from muster.core.whatif.hypothesis import Suggestion
from muster.service.agents.views import share_view
from muster.service.questions.details import Details
from muster.service.questions.dry_run import DryRun
from muster.service.questions.what_if import Queued
from muster.service.questions.why import Why
from muster.service.reach.views import SessionAppView
from muster.service.sessions.views import SessionView, SlotsView, StoryLineView, WaitView, session_fields
from muster.service.usage.views import KernelUsageView
from muster.service.view import Moment, View


class DetailsView(SessionView):
    """A session, as `muster show --json` prints it."""

    apps: list[SessionAppView]
    use: list[KernelUsageView]
    story: list[StoryLineView]

    @classmethod
    def of_details(cls, details: Details) -> Self:
        shares = {key: [share_view(held) for held in held_shares] for key, held_shares in details.shares.items()}
        return cls(
            **session_fields(details.session, shares),
            apps=[SessionAppView.of(app) for app in details.apps],
            use=list(details.uses),
            story=[StoryLineView.of(line) for line in details.story],
        )


class SuggestionView(View):
    text: str
    flags: list[str]
    effort: float
    starts_at: Moment | None

    @classmethod
    def of(cls, suggestion: Suggestion) -> Self:
        return cls(
            text=suggestion.text,
            flags=list(suggestion.flags),
            effort=round(suggestion.effort, 4),
            starts_at=suggestion.starts_at,
        )


class WhyView(View):
    id: str
    name: str
    state: SessionState
    reason: str
    wait: WaitView | None
    suggestions: list[SuggestionView] | None = Field(default=None, description="left out unless requested")

    @classmethod
    def of(cls, why: Why) -> Self:
        session, suggestions = why.session, why.suggestions
        return cls(
            id=session.id,
            name=session.name,
            state=session.state,
            reason=session.reason,
            wait=WaitView.of(why.wait, why.position) if why.wait else None,
            **({} if suggestions is None else {"suggestions": [SuggestionView.of(one) for one in suggestions]}),
        )


class QueuedView(View):
    id: str
    name: str
    owner: str
    resource_group: str
    priority: int
    cluster_size: int
    slots: SlotsView
    submitted_at: Moment
    position: int | None = Field(description="in the queue of its resource group; null if it is about to start")
    wait: WaitView | None

    @classmethod
    def of(cls, queued: Queued) -> Self:
        session, wait = queued.session, queued.wait
        return cls(
            id=session.id,
            name=session.name,
            owner=session.owner,
            resource_group=session.spec.resource_group,
            priority=session.spec.priority,
            cluster_size=len(session.kernels),
            slots=SlotsView.of(session.slots),
            submitted_at=session.submitted_at,
            position=wait.position if wait else None,
            wait=WaitView.of(wait, wait.position) if wait else None,
        )


class QueueView(View):
    items: list[QueuedView]

    @classmethod
    def of(cls, queue: Iterable[Queued]) -> Self:
        return cls(items=[QueuedView.of(queued) for queued in queue])


class HeartbeatView(View):
    """Whether something works the queue."""

    unworked: str | None = Field(description="what is wrong, if nobody has worked the queue for too long")
    unworked_for_s: float | None

    @classmethod
    def of(cls, unworked: Unworked | None) -> Self:
        if unworked is None:
            return cls(unworked=None, unworked_for_s=None)
        return cls(unworked=unworked.text, unworked_for_s=round(unworked.for_s, 1))


class PlacedKernelView(View):
    name: str
    agent: str
    gpus: list[GpuShare]


class DryRunItemView(View):
    """What would become of one session."""

    name: str
    starts_now: bool
    mode: str | None
    kernels: list[PlacedKernelView] = Field(description="where they would run; empty where it would wait")
    wait: WaitView | None
    suggestions: list[SuggestionView]

    @classmethod
    def of(cls, answer: Answer, *, is_worked: bool) -> Self:
        allocations = answer.placement.allocations if answer.placement else {}
        return cls(
            name=answer.session.name,
            starts_now=answer.placement is not None and is_worked,
            mode=answer.placement.mode if answer.placement else None,
            kernels=[
                PlacedKernelView(name=kernel.name, agent=allocation.agent_id, gpus=list(allocation.gpus))
                for kernel in answer.session.kernels
                if (allocation := allocations.get(kernel.id))
            ],
            wait=WaitView.of(answer.wait, answer.wait.position) if answer.wait else None,
            suggestions=[SuggestionView.of(suggestion) for suggestion in answer.suggestions],
        )


class DryRunView(View):
    items: list[DryRunItemView]
    unworked: str | None = Field(description="what is wrong, if nobody works the queue: then nothing starts now")

    @classmethod
    def of(cls, dry_run: DryRun) -> Self:
        unworked = dry_run.unworked
        return cls(
            items=[DryRunItemView.of(answer, is_worked=unworked is None) for answer in dry_run.answers],
            unworked=None if unworked is None else unworked.text,
        )
