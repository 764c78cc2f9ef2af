"""Limits and share weights that administrators set: each replaces the settings' entry of its name as a whole."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from muster.core.model.policy import Limit, Limits, SchedulingPolicy


class Limited(StrEnum):
    """What a limit is for."""

    USER = "user"
    PROJECT = "project"
    RESOURCE_GROUP = "resource_group"

    @property
    def spelled(self) -> str:
        """Return it for people."""
        return self.replace("_", " ")


@dataclass(frozen=True, slots=True)
class LimitOverride:
    """A limit that an administrator set, for one that is named or, by `EACH`, for all that are not."""

    limited: Limited
    name: str
    limit: Limit
    changed_by: str
    changed_at: float


@dataclass(frozen=True, slots=True)
class WeightOverride:
    """A share weight that an administrator set."""

    owner: str
    weight: float
    changed_by: str
    changed_at: float


@dataclass(frozen=True, slots=True)
class Overrides:
    """All that administrators set. What is not here is as in the settings."""

    limits: tuple[LimitOverride, ...] = ()
    weights: tuple[WeightOverride, ...] = ()

    def limits_over(self, base: Limits) -> Limits:
        """Return the limits in force, where `base` are the settings'."""
        return Limits(
            users=_over(base.users, self._limits_of(Limited.USER)),
            projects=_over(base.projects, self._limits_of(Limited.PROJECT)),
            resource_groups=_over(base.resource_groups, self._limits_of(Limited.RESOURCE_GROUP)),
        )

    def weights_over(self, base: Mapping[str, float]) -> dict[str, float]:
        """Return the share weights in force by owner, where `base` are the settings'."""
        return {**base, **{override.owner: override.weight for override in self.weights}}

    def policy_over(self, base: SchedulingPolicy) -> SchedulingPolicy:
        """Return the policy in force, where `base` is the settings'."""
        return replace(base, limits=self.limits_over(base.limits), shares=self.weights_over(base.shares))

    def _limits_of(self, limited: Limited) -> Iterable[LimitOverride]:
        return (override for override in self.limits if override.limited is limited)


def _over(base: Mapping[str, Limit], overrides: Iterable[LimitOverride]) -> dict[str, Limit]:
    return {**base, **{override.name: override.limit for override in overrides}}


def limits_of(limits: Limits, limited: Limited) -> Mapping[str, Limit]:
    """Return the limits of users, of projects or of resource groups by name."""
    match limited:
        case Limited.USER:
            return limits.users
        case Limited.PROJECT:
            return limits.projects
        case Limited.RESOURCE_GROUP:
            return limits.resource_groups
