"""The limits and share weights in force: the settings', and over them what administrators set while everything runs."""

import re
import time
from collections.abc import Mapping

from muster.core.model.overrides import Limited, LimitOverride, WeightOverride
from muster.core.model.policy import Limit, Limits, SchedulingPolicy
from muster.core.scheduling.limits import COUNTED
from muster.core.spec.errors import validated
from muster.core.values.errors import BadInputError
from muster.limits_settings import LimitSettings
from muster.service.scheduler.plugins import scheduling_policy
from muster.service.scheduler.views import ShareWeightsView, ShareWeightView, SiteLimitsView, SiteLimitView
from muster.service.wake import wake
from muster.settings import Settings
from muster.settings_section import LEAST_WEIGHT, MOST_AMOUNT, MOST_WEIGHT
from muster.store.store import Store

NAME_PATTERN = re.compile(r"[^\x00-\x20\x7f-\xa0/]{1,255}")
"""Names that a path of the API can hold and a line can show."""
_SHOWN = 255


def limits_in_force(settings: Settings, store: Store) -> Limits:
    """Return the limits that hold now."""
    return store.overrides.all().limits_over(settings.limits.limits())


def policy_in_force(settings: Settings, store: Store) -> SchedulingPolicy:
    """Return the policy that holds now. Raises SettingsError when a scheduler plugin cannot be used."""
    return store.overrides.all().policy_over(scheduling_policy(settings))


def limit_as_written(running: Mapping[str, object], pending: Mapping[str, object]) -> Limit:
    """Return a limit from amounts as the settings write them, such as `64G`. Raises SpecError with every error."""
    return validated(LimitSettings, {"running": running, "pending": pending}).limit()


class SiteLimits:
    """The limits of users, projects and resource groups: shown, set, unset."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._settings = settings

    def all(self) -> SiteLimitsView:
        """Return the limits in force, and where each comes from."""
        return SiteLimitsView.of(self._settings, self._store.overrides.all())

    def set(self, limited: Limited, name: str, limit: Limit, by: str) -> SiteLimitView:
        """Set a limit over that of the settings, and return it. One without amounts limits nothing.

        The next decision reads it. Raises BadInputError.
        """
        _check_name(name)
        _check_amounts(limit)
        self._store.overrides.set_limit(LimitOverride(limited, name, limit, by, time.time()))
        wake(self._settings, self._store)
        return self._of(limited, name)

    def unset(self, limited: Limited, name: str) -> SiteLimitView | None:
        """Let the settings apply again; return what they say, None where they have no such entry.

        Raises NotFoundError.
        """
        self._store.overrides.unset_limit(limited, name)
        wake(self._settings, self._store)
        return next((one for one in self.all().items if (one.kind, one.name) == (limited, name)), None)

    def _of(self, limited: Limited, name: str) -> SiteLimitView:
        return next(one for one in self.all().items if (one.kind, one.name) == (limited, name))


class SiteWeights:
    """The owners' share weights: shown, set, unset."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._settings = settings

    def all(self) -> ShareWeightsView:
        """Return the share weights in force, and where each comes from; owners who are not named have 1."""
        return ShareWeightsView.of(self._settings.shares, self._store.overrides.all())

    def set(self, owner: str, weight: float, by: str) -> ShareWeightView:
        """Set an owner's share weight over that of the settings, and return it. Raises BadInputError."""
        _check_name(owner)
        if not LEAST_WEIGHT <= weight <= MOST_WEIGHT:
            remedy = f"write {LEAST_WEIGHT:f} to {MOST_WEIGHT:.0f}, such as 2 or 0.5"
            raise BadInputError(f"weight: {weight:g} is no share weight; {remedy}")
        self._store.overrides.set_weight(WeightOverride(owner, weight, by, time.time()))
        wake(self._settings, self._store)
        return next(one for one in self.all().items if one.owner == owner)

    def unset(self, owner: str) -> ShareWeightView | None:
        """Let the settings apply again; return what they say, None where they do not name the owner.

        Raises NotFoundError.
        """
        self._store.overrides.unset_weight(owner)
        wake(self._settings, self._store)
        return next((one for one in self.all().items if one.owner == owner), None)


def _check_name(name: str) -> None:
    if not NAME_PATTERN.fullmatch(name):
        raise BadInputError(f"name: {name[:_SHOWN]!r} is no name; write up to 255 characters without spaces and /")


def _check_amounts(limit: Limit) -> None:
    for when, amounts in (("running", limit.running), ("pending", limit.pending)):
        for counted, amount in amounts.items():
            if counted not in COUNTED:
                raise BadInputError(f"{when}.{counted}: it is not counted; use one of {', '.join(COUNTED)}")
            if not 0 <= amount <= MOST_AMOUNT:
                raise BadInputError(f"{when}.{counted}: {amount} is out of range; write 0 to {MOST_AMOUNT}")
