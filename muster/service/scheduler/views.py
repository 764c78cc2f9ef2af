"""Views of the limits and share weights in force."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Self

from pydantic import Field

from muster.core.model.overrides import Limited, LimitOverride, Overrides, WeightOverride, limits_of
from muster.core.model.policy import Limit
from muster.core.scheduling.limits import COUNTED, spell_counted
from muster.service.view import Moment, View
from muster.settings import Settings


class Source(StrEnum):
    """Where a value in force comes from."""

    DEFAULT = "default"
    SETTINGS = "settings"
    ADMINISTRATOR = "administrator"


class AmountsView(View):
    """Upper bounds; null limits nothing."""

    sessions: int | None = None
    kernels: int | None = None
    cpu: int | None = Field(default=None, description="in thousandths of a core")
    mem: int | None = Field(default=None, description="in bytes")
    fgpu: int | None = Field(default=None, description="in thousandths of a unit")
    gpu: int | None = Field(default=None, description="whole devices")

    @property
    def spelled(self) -> str:
        """Return them for people: `8 GPU, 100 sessions`."""
        pairs = ((counted, getattr(self, counted)) for counted in COUNTED)
        return ", ".join(spell_counted(counted, amount) for counted, amount in pairs if amount is not None) or "any"


class BoundsView(View):
    """What may run, and what may wait."""

    running: AmountsView
    pending: AmountsView

    @classmethod
    def of(cls, limit: Limit) -> Self:
        return cls(running=AmountsView(**limit.running), pending=AmountsView(**limit.pending))


class SiteLimitView(BoundsView):
    """A limit in force."""

    kind: Limited
    name: str = Field(description="of a user, a project or a resource group; * for each that is not named")
    source: Source
    replaces: BoundsView | None = Field(description="the settings' limit of that name, which does not apply")
    changed_by: str | None
    changed_at: Moment | None

    @property
    def sentence(self) -> str:
        """Return what it allows, for people."""
        return f"running {self.running.spelled}; waiting {self.pending.spelled}"

    @classmethod
    def of_override(cls, override: LimitOverride, replaced: Limit | None) -> Self:
        return cls(
            kind=override.limited,
            name=override.name,
            source=Source.ADMINISTRATOR,
            replaces=None if replaced is None else BoundsView.of(replaced),
            changed_by=override.changed_by,
            changed_at=override.changed_at,
            **dict(BoundsView.of(override.limit)),
        )

    @classmethod
    def of_settings(cls, limited: Limited, name: str, limit: Limit, source: Source) -> Self:
        bounds = dict(BoundsView.of(limit))
        return cls(kind=limited, name=name, source=source, replaces=None, changed_by=None, changed_at=None, **bounds)


class SiteLimitsView(View):
    items: list[SiteLimitView]

    @classmethod
    def of(cls, settings: Settings, overrides: Overrides) -> Self:
        """Return the limits in force by what they are for and by name."""
        base = settings.limits.limits()
        written = {
            Limited.USER: settings.limits.users,
            Limited.PROJECT: settings.limits.projects,
            Limited.RESOURCE_GROUP: settings.limits.resource_groups,
        }
        items = [
            SiteLimitView.of_override(override, limits_of(base, override.limited).get(override.name))
            for override in overrides.limits
        ]
        replaced = {(override.limited, override.name) for override in overrides.limits}
        items += [
            SiteLimitView.of_settings(
                limited, name, limit, Source.SETTINGS if name in written[limited] else Source.DEFAULT
            )
            for limited in Limited
            for name, limit in limits_of(base, limited).items()
            if (limited, name) not in replaced
        ]
        order = list(Limited)
        return cls(items=sorted(items, key=lambda item: (order.index(item.kind), item.name)))


class ChangedLimitView(View):
    """What holds after a change."""

    limit: SiteLimitView | None = Field(description="null where nothing is left that has this name: then * applies")


class ShareWeightView(View):
    """An owner's share weight in force."""

    owner: str
    weight: float
    source: Source
    replaces: float | None = Field(description="the settings' weight, which does not apply")
    changed_by: str | None
    changed_at: Moment | None

    @classmethod
    def of_override(cls, override: WeightOverride, replaced: float | None) -> Self:
        return cls(
            owner=override.owner,
            weight=override.weight,
            source=Source.ADMINISTRATOR,
            replaces=replaced,
            changed_by=override.changed_by,
            changed_at=override.changed_at,
        )

    @classmethod
    def of_settings(cls, owner: str, weight: float) -> Self:
        return cls(owner=owner, weight=weight, source=Source.SETTINGS, replaces=None, changed_by=None, changed_at=None)


class ShareWeightsView(View):
    items: list[ShareWeightView]

    @classmethod
    def of(cls, written: Mapping[str, float], overrides: Overrides) -> Self:
        """Return the share weights in force by owner; `written` are those of the settings."""
        items = [ShareWeightView.of_override(one, written.get(one.owner)) for one in overrides.weights]
        replaced = {one.owner for one in overrides.weights}
        items += [ShareWeightView.of_settings(o, weight) for o, weight in written.items() if o not in replaced]
        return cls(items=sorted(items, key=lambda item: item.owner))


class ChangedWeightView(View):
    """What holds after a change."""

    share_weight: ShareWeightView | None = Field(description="null where the owner is not named any more: then it is 1")
