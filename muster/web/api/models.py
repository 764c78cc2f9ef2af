"""Bodies of the API's requests and responses, for its document.

Views may have more fields than are named here; no named field will be removed.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr


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
    next_cursor: str | None = Field(description="the `cursor` of the next page; null on the last one")
    total: int = Field(description="sessions on all pages")


class SubmittedView(View):
    items: list[SessionView]
    impossible: dict[str, dict[str, Any]] = Field(description="by session id, why it can never start unchanged")
    again: bool = Field(description="whether this is the result of an earlier submit with the same Idempotency-Key")


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
    suggestions: list[SuggestionView] | None = Field(default=None, description="left out unless requested")


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
    position: int | None = Field(description="in the queue of its resource group; null if it is about to start")
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

    reason: str = Field(default="", max_length=1000, description="shown to users whose sessions wait because of it")


class References(BaseModel):
    model_config = ConfigDict(extra="forbid")

    sessions: list[str] = Field(max_length=10_000, description="names, ids, or starts of ids")


class VersionView(View):
    muster: str
    api: str


class Health(View):
    status: str


class RenameRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str


_TEXT = r"^[^\x00]*$"
_MOST_BYTES = 1 << 60


class FolderShare(View):
    grantee: str
    read_only: bool


class FolderListed(View):
    """A folder, as `muster folder show --json` prints it."""

    id: str
    name: str
    owner: str
    path: str = Field(description="below folders_root on the agents")
    state: str
    left_on: list[str]
    created_at: str
    quota_bytes: int | None
    quota_not_enforced: dict[str, str] = Field(description="by agent, the reason")
    used_bytes: int | None = Field(description="null if the agents did not measure it, or took too long")
    files: int | None
    used_by: list[str] = Field(description="sessions; for folders of other users only the caller's own")
    shared_with: list[FolderShare]


class FolderView(FolderListed):
    problems: dict[str, str] = Field(description="by agent, why it did not answer")


class FoldersView(View):
    items: list[FolderListed]
    problems: dict[str, str] = Field(description="by agent, why it did not answer")


class FolderRemovedView(View):
    name: str
    removed: bool
    left_on: list[str]
    problems: dict[str, str]


class UnsharedView(View):
    name: str
    grantee: str
    still_mounted_by: list[str]


class FolderRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=255)
    quota_bytes: int | None = Field(default=None, ge=0, le=_MOST_BYTES)


class QuotaRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    quota_bytes: int | None = Field(ge=0, le=_MOST_BYTES, description="null for any amount")


class UnshareRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    grantee: str = Field(max_length=255, pattern=_TEXT, description="a user, or @ and a project")


class ShareRequest(UnshareRequest):
    read_only: bool = True


class SecretListed(View):
    name: str
    changed_at: str


class SecretsView(View):
    items: list[SecretListed]


class NameView(View):
    name: str


class SecretRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    value: SecretStr = Field(description="text of at most 64 KiB")


class ReportView(View):
    since: str
    until: str
    by: list[str]
    lines: list[dict[str, Any]] = Field(description="the keys by their names, then the amounts")


class UsesView(View):
    items: list[dict[str, Any]]


class CommitRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=400, description="NAME:TAG of the new image")
    kernel: str | None = Field(default=None, max_length=255, description="such as sub1; main1 by default")
    message: str = Field(default="", max_length=1000, description="a line for the catalog")
    public: bool = Field(default=False, description="all users may use it")


class CommitView(View):
    reference: str
    state: Literal["making", "made", "failed"]
    done_bytes: int
    total_bytes: int = Field(description="0 until it is known")
    problem: str | None
    image: dict[str, Any] | None
