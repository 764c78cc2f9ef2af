"""What the site says of how much users, projects and resource groups may have."""

from pydantic import Field

from muster.core.model.policy import EACH, Limit, Limits
from muster.core.spec.values import Bytes, Milli
from muster.settings_section import Amount, Section


class Amounts(Section):
    """The upper bounds. A missing one is no limit."""

    sessions: Amount | None = None
    kernels: Amount | None = None
    cpu: Milli | None = None
    mem: Bytes | None = None
    fgpu: Milli | None = None
    gpu: Amount | None = None

    def bounds(self) -> dict[str, int]:
        pairs = ((name, getattr(self, name)) for name in type(self).model_fields)
        return {name: value for name, value in pairs if value is not None}


class LimitSettings(Section):
    running: Amounts = Amounts()
    pending: Amounts = Amounts()

    def limit(self) -> Limit:
        return Limit(self.running.bounds(), self.pending.bounds())


# The limit if the site sets none: more than a person queues, and less than what slows down the queue for all.
_PENDING_OF_EACH = LimitSettings(pending=Amounts(sessions=20_000, kernels=200_000))


class LimitsSettings(Section):
    """The limits by name; `*` stands for each that is not named."""

    users: dict[str, LimitSettings] = Field(default={})
    projects: dict[str, LimitSettings] = Field(default={})
    resource_groups: dict[str, LimitSettings] = Field(default={})

    def limits(self) -> Limits:
        users = {EACH: _PENDING_OF_EACH, **self.users}
        return Limits(
            users={name: limit.limit() for name, limit in users.items()},
            projects={name: limit.limit() for name, limit in self.projects.items()},
            resource_groups={name: limit.limit() for name, limit in self.resource_groups.items()},
        )
