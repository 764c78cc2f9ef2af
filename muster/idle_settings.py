"""What the site says of sessions that nobody uses, and of how long one may live."""

from pydantic import Field

from muster.core.lifecycle.idle import IdleRules
from muster.core.spec.values import Seconds, SecondsOrZero
from muster.settings_section import MOST_AMOUNT, Section


class GroupIdle(Section):
    """The idle settings of one resource group. A missing key is as in `idle`."""

    timeout: Seconds | None = Field(default=None, description="sessions end after this time without use; none: never")
    grace: SecondsOrZero | None = Field(default=None, description="time after a session's start that does not count")
    warn_before: Seconds | None = Field(default=None, description="how long before the end its users are warned")
    cpu_percent: float | None = Field(default=None, ge=0, le=100, description="of its cores; less is idle")
    network_bytes_per_s: float | None = Field(
        default=None, ge=0, le=MOST_AMOUNT, description="received and sent; less is idle"
    )
    gpu_percent: float | None = Field(default=None, ge=0, le=100, description="of each of its GPUs; less is idle")
    may_opt_out: bool | None = Field(
        default=None, description="whether sessions may ask for no check, or a longer timeout"
    )
    max_lifetime: Seconds | None = Field(default=None, description="no session lives longer: the most for a time limit")


class Idle(GroupIdle):
    """The idle settings of every resource group."""

    grace: SecondsOrZero = 900
    warn_before: Seconds = 600
    cpu_percent: float = Field(default=5.0, ge=0, le=100)
    network_bytes_per_s: float = Field(default=200.0, ge=0, le=MOST_AMOUNT)
    gpu_percent: float = Field(default=5.0, ge=0, le=100)
    may_opt_out: bool = False
    resource_groups: dict[str, GroupIdle] = Field(default={}, description="by name, where a group differs")

    def of(self, resource_group: str) -> "Idle":
        group = self.resource_groups.get(resource_group)
        if group is None:
            return self
        said = {name: getattr(group, name) for name in group.model_fields_set}
        return self.model_copy(update={name: value for name, value in said.items() if value is not None})

    def rules(self, resource_group: str, gap_s: float) -> IdleRules:
        """Return a group's rules. Observations may be `gap_s` apart for the time between them to count."""
        own = self.of(resource_group)
        return IdleRules(
            timeout_s=own.timeout,
            grace_s=own.grace,
            warn_before_s=own.warn_before,
            cpu_percent=own.cpu_percent,
            network_bytes_per_s=own.network_bytes_per_s,
            gpu_percent=own.gpu_percent,
            gap_s=gap_s,
        )
