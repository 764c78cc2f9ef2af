"""What the API answers with, for its document. Views may hold more than is named here; nothing named is taken away."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class View(BaseModel):
    model_config = ConfigDict(extra="allow")


class Slots(View):
    cpu: int = Field(description="in thousandths of a core")
    mem: int = Field(description="in bytes")
    fgpu: int = Field(description="in thousandths of a unit")
    gpu: int = Field(description="whole devices")


class KernelView(View):
    id: str
    name: str
    role: str
    image: str
    slots: Slots
    agent: str | None
    state: str | None
    exit_code: int | None


class SessionView(View):
    """A session, as `muster show --json` prints it."""

    id: str
    name: str
    owner: str
    type: str
    state: str
    reason: str
    result: str | None
    exit_code: int | None
    resource_group: str
    project: str
    priority: int
    cluster_mode: str
    cluster_size: int
    slots: Slots
    agents: list[str]
    submitted_at: str
    started_at: str | None
    ended_at: str | None
    wait: dict[str, Any] | None
    kernels: list[KernelView]
    spec: dict[str, Any]


class SessionList(View):
    items: list[SessionView]
    next_cursor: str | None = Field(description="give it as `cursor` for the next page; null on the last one")
    total: int = Field(description="sessions on all pages")


class SubmittedView(View):
    items: list[SessionView]
    impossible: dict[str, dict[str, Any]] = Field(description="by session id, why it could never start as it is")
    again: bool = Field(description="whether this submit was done before, with the same Idempotency-Key")


class SessionsView(View):
    items: list[SessionView]


class StoryLineView(BaseModel):
    model_config = ConfigDict(populate_by_name=True)

    at: str
    from_: str | None = Field(alias="from")
    to: str
    reason: str


class StoryView(View):
    items: list[StoryLineView]


class SuggestionView(View):
    text: str
    flags: list[str]
    effort: float
    starts_at: str | None


class WhyView(View):
    id: str
    name: str
    state: str
    reason: str
    wait: dict[str, Any] | None
    suggestions: list[SuggestionView] | None = Field(default=None, description="left out where not asked for")


class DryRunItem(View):
    name: str
    starts_now: bool
    mode: str | None
    kernels: list[dict[str, Any]]
    wait: dict[str, Any] | None
    suggestions: list[SuggestionView]


class DryRunView(View):
    items: list[DryRunItem]


class QueuedView(View):
    id: str
    name: str
    owner: str
    resource_group: str
    position: int | None = Field(description="among those of its resource group; null when it is about to start")
    wait: dict[str, Any] | None


class QueueView(View):
    items: list[QueuedView]


class AgentView(View):
    id: str
    resource_group: str
    state: str
    problem: str | None
    capacity: Slots
    free: Slots
    kernels: int
    drain_reason: str | None
    sessions: list[dict[str, str]]


class AgentsView(View):
    items: list[AgentView]


class ItemsView(View):
    items: list[dict[str, Any]]


class DrainRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    reason: str = Field(default="", max_length=1000, description="shown to everybody who asks why")


class References(BaseModel):
    model_config = ConfigDict(extra="forbid")

    sessions: list[str] = Field(max_length=10_000, description="names, ids, or the starts of ids")


class VersionView(View):
    muster: str
    api: str


class Health(View):
    status: str


class RenameRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
