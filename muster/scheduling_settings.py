"""What the site says of how queues are worked."""

from typing import Annotated

from pydantic import Field

from muster.core.spec.values import Seconds
from muster.settings_section import Count, Section

PluginName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")]


class GroupScheduling(Section):
    """The scheduling of one resource group. A missing key is as in `scheduling`."""

    order: PluginName | None = Field(default=None, description="plugin that orders sessions of one priority")
    placement: PluginName | None = Field(default=None, description="plugin that chooses among places")
    backfill: bool | None = Field(default=None, description="let sessions pass one that waits, unless they delay it")
    reserve_after_passes: Count | None = Field(
        default=None,
        description="passes in which a session may be passed where nobody knows when it can start, before it reserves",
    )
    preemption: bool | None = Field(
        default=None, description="end or requeue preemptible sessions for ones of higher priority"
    )
    defragment: bool | None = Field(
        default=None, description="restart sessions with requeue elsewhere if one that waits fits in their place then"
    )
    default_time_limit: Seconds | None = Field(
        default=None, description="time limit of a session that is submitted without one"
    )


class Scheduling(GroupScheduling):
    """The scheduling of every resource group."""

    order: PluginName = "fifo"
    placement: PluginName = "fragmentation"
    backfill: bool = True
    reserve_after_passes: Count = 20
    preemption: bool = False
    defragment: bool = False

    def of(self, group: GroupScheduling) -> "Scheduling":
        said = {name: getattr(group, name) for name in group.model_fields_set}
        return self.model_copy(update={name: value for name, value in said.items() if value is not None})
