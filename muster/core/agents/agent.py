"""Agents as the scheduler sees them, and what a host's report says of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from operator import attrgetter
from typing import Any

from muster.contract.report import GpuReport, Report
from muster.core.agents.agent_attributes import AgentAttributes, FgpuChoice
from muster.core.agents.agent_connection import AgentConnection
from muster.core.agents.agent_inventory import AgentInventory, agent_inventory
from muster.core.agents.gpu_health import MISSING, AcceptedSymptoms, GpuRecord, health_of
from muster.core.agents.gpu_providers import PROVIDERS
from muster.core.agents.gpu_toolkit import toolkit_problem
from muster.core.agents.launch_record import LaunchRecord
from muster.core.agents.numa import NumaNode
from muster.core.agents.remapped_ids import remapped_ids_problem
from muster.core.values.architecture import labels_of
from muster.core.values.slots import Slots

UNIT = 1000
HAS_LEFT = "it is no longer in the inventory"
# What gave no agent at all is more likely broken than meant so: a file cut short, or a program without its source.
NAMES_NOBODY = "the inventory names no agent"


class AgentState(StrEnum):
    """The state of an agent. UNREACHABLE ones get no new sessions; LOST ones are silent so long that sessions end.

    STALE is never stored: it answered when it was last observed, and that is too long ago to call it ALIVE.
    """

    ALIVE = "ALIVE"
    UNREACHABLE = "UNREACHABLE"
    LOST = "LOST"
    STALE = "STALE"


@dataclass(frozen=True, slots=True)
class Gpu:
    """A physical GPU, or a MIG instance of one. `units` says into how many fGPU units the physical one is cut; 0:
    whole devices only.

    The GPUs of one agent have the same units, but for those of different models. An instance is `exclusive`: a device
    that one kernel takes whole, with the `fraction` of its GPU that it is in thousandths.

    One in `quarantine` gets no new kernels; the text says why. So does that of a `warning`, which keeps none away.
    `quarantined_by` has the symptoms' codes. `context_bytes` is what a context costs, if that
    was measured.
    """

    uuid: str
    index: int
    model: str
    mem: int
    units: int = 0
    numa_node: int | None = None
    exclusive: bool = False
    parent_uuid: str | None = None
    mig_profile: str | None = None
    fraction: int = UNIT
    quarantine: str = ""
    quarantined_by: tuple[str, ...] = ()
    warning: str = ""
    context_bytes: int | None = None

    @property
    def physical_uuid(self) -> str:
        """Return the UUID of the physical GPU that it is, or is a part of."""
        return self.parent_uuid or self.uuid

    @property
    def capacity(self) -> int:
        """Return thousandths of a unit. A GPU that is not cut counts as one unit, an instance of it as its fraction."""
        return max(self.units, 1) * self.fraction


# Fields of a report that change while an agent does nothing but run what it was given.
_OF_USE = (
    *("uptime_s", "mem_available_bytes", "disk", "generation", "generation_before", "database"),
    *("kernels", "networks", "spools", "files", "leftovers"),
)


@dataclass(frozen=True, slots=True)
class Agent:
    """A Docker host that runs kernels.

    `labels`, `rack` and `zone` come from the inventory. By them sessions request agents of a kind, or near each other;
    `rack` and `zone` may be empty. `fgpu_choice` says which of its GPUs gets a share. `fgpu_obstacle` says why GPUs are
    not cut although the site wants it; it is empty if all is well. `inventory` has the inventory's values as given,
    `attributes` and `connection` those of them that are valid. None of these come from its `report`.

    `gpu_record` is what its reports have shown of its GPUs' health, `gpu_accepted` what operators accept of that.

    One that is `unreachable_since` gave no report since then, be it that its host was `reached`. Its silence counts
    from `silence_counts_from` where that is later: before, the control node itself seemed to be cut off.
    """

    id: str
    resource_group: str
    capacity: Slots
    gpus: tuple[Gpu, ...] = ()
    state: AgentState = AgentState.ALIVE
    report: Report = field(default=Report(), compare=False)
    inventory: Mapping[str, Any] = field(default_factory=dict, compare=False)
    attributes: AgentAttributes = field(default=AgentAttributes(), compare=False)
    connection: AgentConnection = field(default=AgentConnection(), compare=False)
    observed_at: float = 0.0
    problem: str = ""
    unreachable_since: float | None = None
    reached: bool = True
    silence_counts_from: float | None = None
    drain_reason: str | None = None
    launch_record: LaunchRecord = field(default=LaunchRecord())
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    rack: str = ""
    zone: str = ""
    numa: tuple[NumaNode, ...] = ()
    fgpu_choice: FgpuChoice = FgpuChoice.POLICY
    fgpu_obstacle: str = ""
    gpu_record: GpuRecord = field(default=GpuRecord())
    gpu_accepted: AcceptedSymptoms = field(default_factory=dict, hash=False)

    @property
    def has_unknown_units(self) -> bool:
        """Return whether it has GPUs, and the inventory does not say validly into how many units they are cut."""
        # What is wrong in the inventory is a problem: of thousands of agents, the few that have one are read again.
        errors = agent_inventory(self.inventory).errors if self.problem and self.gpus else ()
        return any(error.field.partition(".")[0] == "units_per_gpu" for error in errors)

    @property
    def choosable_labels(self) -> Mapping[str, str]:
        """Return the labels by which sessions may choose it: the site's, and its architecture."""
        return {**labels_of(self.report.architecture), **self.labels}

    @property
    def takes_sessions(self) -> bool:
        in_service = self.drain_reason is None and not self.is_suspect
        return self.state is AgentState.ALIVE and in_service and not self.problem

    @property
    def is_suspect(self) -> bool:
        """Return whether launches fail on it, so that it gets no new sessions for a while."""
        return self.launch_record.suspect_until is not None

    def decides_like(self, other: "Agent") -> bool:
        """Return whether a decision on where sessions start cannot tell them apart.

        They may differ in when they were observed, and in what a report says of use and of containers.
        """
        return _deciding(self) == _deciding(other) and _deciding_report(self.report) == _deciding_report(other.report)

    def in_service(self) -> "Agent":
        """Return the agent as if it and its GPUs were well: it answers, is not drained, no launch has failed there.

        What its last report and the inventory say against it stays, also that it is no longer there.
        """
        # That of one that does not answer says why.
        stays = self.has_left or self.state is AgentState.ALIVE
        problem = self.problem if stays else _problem_of(self.report, agent_inventory(self.inventory))
        gpus = tuple(replace(gpu, quarantine="", quarantined_by=()) for gpu in self.gpus)
        record = LaunchRecord()
        return replace(
            self, state=AgentState.ALIVE, problem=problem, drain_reason=None, launch_record=record, gpus=gpus
        )

    @property
    def most_cpu_of_a_kernel(self) -> int:
        """Return milli-cores. However far its cores are overcommitted, one container has no more than all of them."""
        return self.report.cpu_count * UNIT

    @property
    def on_overlay(self) -> bool:
        """Return whether overlay networks reach it."""
        return self.report.swarm.state == "active"

    @property
    def manages_overlays(self) -> bool:
        return self.on_overlay and self.report.swarm.manager

    @property
    def images(self) -> frozenset[str]:
        """Return the tags and ids of the images that it holds."""
        return frozenset(name for image in self.report.images for name in (image.id, *image.tags))

    @property
    def has_left(self) -> bool:
        """Return whether the inventory no longer names it."""
        return self.problem == HAS_LEFT

    @property
    def is_unnamed_with_all(self) -> bool:
        """Return whether the inventory named no agent at all when it was last read."""
        return self.problem == NAMES_NOBODY

    def unanswered(self, problem: str, since: float, *, reached: bool = True) -> "Agent":
        """Return the agent after it gave no report to a visit that began at `since`: UNREACHABLE, if it was not LOST.

        Its host was `reached` if its code ran and failed.
        """
        first = since if self.unreachable_since is None else self.unreachable_since
        state = self.state if self.state is AgentState.LOST else AgentState.UNREACHABLE
        # Until now nothing was held against it.
        is_news = self.is_unnamed_with_all and problem != NAMES_NOBODY
        counts_from = since if is_news else self.silence_counts_from
        return replace(
            self,
            state=state,
            problem=problem,
            unreachable_since=first,
            reached=reached,
            silence_counts_from=counts_from,
        )

    def is_silent_after(self, now: float) -> bool:
        """Return whether its silence begins later than now: the clock was set back since."""
        return max(self.unreachable_since or 0.0, self.silence_counts_from or 0.0) > now

    def set_back(self, now: float) -> "Agent":
        """Return the agent with a silence that begins now at the latest."""
        since, counts_from = (
            None if at is None else min(at, now) for at in (self.unreachable_since, self.silence_counts_from)
        )
        return replace(self, unreachable_since=since, silence_counts_from=counts_from)

    def lost_at(self, lost_after_s: float) -> float | None:
        """Return when it is LOST if it stays silent; None for one that answers, is LOST already, or is kept."""
        if self.state is not AgentState.UNREACHABLE or self.unreachable_since is None or self.is_unnamed_with_all:
            return None
        return max(self.unreachable_since, self.silence_counts_from or 0.0) + lost_after_s

    def aged(self, now: float, most_s: float) -> "Agent":
        """Return the agent as it may be shown: STALE if it was ALIVE, but was not observed for `most_s`."""
        is_stale = self.state is AgentState.ALIVE and abs(now - self.observed_at) > most_s
        return replace(self, state=AgentState.STALE) if is_stale else self


_compared = (item.name for item in fields(Agent) if item.compare and item.name != "observed_at")
_deciding = attrgetter(*_compared, "attributes")
_deciding_report = attrgetter(*(name for name in Report.model_fields if name not in _OF_USE))


def leftovers_line(agent: Agent) -> str:
    """Return in one line what the agent could not remove at the last try, and why; empty if there is nothing."""
    first, more = (agent.report.leftovers or ())[:1], len(agent.report.leftovers or ()) - 1
    line = "".join(f"{leftover.name}: {leftover.error}" for leftover in first)
    return " ".join(f"{line} (and {more} more)".split()) if more > 0 else " ".join(line.split())


def agent_from_report(
    agent_id: str,
    report: Report,
    inventory: Mapping[str, Any],
    now: float,
    gpu_record: GpuRecord | None = None,
    gpu_accepted: AcceptedSymptoms | None = None,
) -> Agent:
    """Return the agent that a report describes. Its capacity is without what the inventory reserves for the system.

    `gpu_record` is the record after this report; without one the report alone counts.

    What is wrong in the inventory, with its container toolkit or with its engine's ids is its `problem`: it gets no new
    sessions, those that it has go on.
    """
    entry = agent_inventory(inventory)
    attributes = entry.attributes
    provider = PROVIDERS[attributes.fgpu_provider]
    record = GpuRecord().after((), report, now) if gpu_record is None else gpu_record
    accepted = gpu_accepted or {}
    reported = [_gpu(gpu, report, attributes, record, accepted) for gpu in report.gpus]
    missing = [_gpu(gpu, report, attributes, record, accepted) for gpu in record.missing]
    # Nothing can be placed on one that is missing: it is shown where that is a trouble, and otherwise left out.
    known = [*reported, *(gpu for gpu in missing if MISSING in gpu.quarantined_by)]
    gpus = tuple(sorted(known, key=lambda gpu: gpu.index))
    asks_units = any(attributes.units_of(gpu.model) for gpu in report.gpus)
    return Agent(
        id=agent_id,
        resource_group=attributes.resource_group,
        capacity=Slots(
            cpu=max(0, report.cpu_count * attributes.cpu_overcommit - attributes.reserved_cpu),
            mem=max(0, report.mem_bytes - attributes.reserved_mem),
            gpu=sum(not gpu.exclusive for gpu in gpus),
            fgpu=sum(gpu.capacity for gpu in gpus if gpu.units),
        ),
        gpus=gpus,
        report=report,
        inventory=inventory,
        attributes=attributes,
        connection=entry.connection,
        observed_at=now,
        problem=_problem_of(report, entry),
        labels=attributes.labels,
        rack=attributes.rack,
        zone=attributes.zone,
        numa=tuple(NumaNode(node.node, node.cpus, node.mem_bytes) for node in report.numa),
        fgpu_choice=attributes.fgpu_choice,
        fgpu_obstacle=provider.obstacle(report) if asks_units else "",
        gpu_record=record,
        gpu_accepted=accepted,
    )


def reported_again(
    before: Agent | None, agent_id: str, report: Report, inventory: Mapping[str, Any], now: float
) -> Agent:
    """Return the agent that a report describes, with what its earlier reports have shown of its GPUs.

    An observation's report has the leftovers of the last visit that had a manifest.
    """
    if before is None:
        return agent_from_report(agent_id, report, inventory, now)
    if report.leftovers is None and before.report.leftovers:
        report = report.model_copy(update={"leftovers": before.report.leftovers})
    record = before.gpu_record.after(before.report.gpus, report, now)
    return agent_from_report(agent_id, report, inventory, now, record, before.gpu_accepted)


def _problem_of(report: Report, entry: AgentInventory) -> str:
    """Return what keeps an agent that answers from getting sessions; an empty text if nothing does."""
    inventory_problem = f"inventory: {', and '.join(map(str, entry.errors))}" if entry.errors else ""
    return "; ".join(filter(None, (inventory_problem, toolkit_problem(report), remapped_ids_problem(report))))


def _gpu(
    gpu: GpuReport, report: Report, attributes: AgentAttributes, record: GpuRecord, accepted: AcceptedSymptoms
) -> Gpu:
    health = health_of(record.unaccepted(gpu.physical_uuid, accepted), attributes.gpu_health)
    return Gpu(
        uuid=gpu.uuid,
        index=gpu.index,
        model=gpu.model,
        mem=gpu.mem_bytes,
        units=attributes.units_of(gpu.model) if PROVIDERS[attributes.fgpu_provider].cuts(report, gpu) else 0,
        numa_node=gpu.numa_node,
        exclusive=gpu.is_instance,
        parent_uuid=gpu.parent_uuid,
        mig_profile=gpu.mig_profile,
        fraction=gpu.fraction or UNIT,
        quarantine=health.quarantine,
        quarantined_by=health.codes,
        warning=health.warning,
        context_bytes=gpu.context_bytes,
    )
