"""Limits and share weights as administrators change them in the pages and by the API."""

from muster.core.model.overrides import Limited
from muster.core.model.policy import Limit
from muster.core.model.token import Token
from muster.service.identity.permissions import check_admin
from muster.service.scheduler.overrides import SiteLimits, SiteWeights
from muster.service.scheduler.views import ChangedLimitView, ChangedWeightView, ShareWeightsView, SiteLimitsView


class AdministratorsLimits:
    """The limits for a token. Methods raise ScopeError for all but administrators."""

    def __init__(self, limits: SiteLimits, token: Token) -> None:
        self._limits = limits
        self._token = token

    def all(self) -> SiteLimitsView:
        """Return the limits in force, and where each comes from."""
        check_admin(self._token)
        return self._limits.all()

    def set(self, limited: Limited, name: str, limit: Limit) -> ChangedLimitView:
        """Set a limit over that of the settings, and return it. Raises BadInputError."""
        check_admin(self._token)
        return ChangedLimitView(limit=self._limits.set(limited, name, limit, self._token.user))

    def unset(self, limited: Limited, name: str) -> ChangedLimitView:
        """Let the settings apply again, and return what they say. Raises NotFoundError."""
        check_admin(self._token)
        return ChangedLimitView(limit=self._limits.unset(limited, name))


class AdministratorsWeights:
    """The share weights for a token. Methods raise ScopeError for all but administrators."""

    def __init__(self, weights: SiteWeights, token: Token) -> None:
        self._weights = weights
        self._token = token

    def all(self) -> ShareWeightsView:
        """Return the share weights in force, and where each comes from."""
        check_admin(self._token)
        return self._weights.all()

    def set(self, owner: str, weight: float) -> ChangedWeightView:
        """Set an owner's share weight over that of the settings, and return it. Raises BadInputError."""
        check_admin(self._token)
        return ChangedWeightView(share_weight=self._weights.set(owner, weight, self._token.user))

    def unset(self, owner: str) -> ChangedWeightView:
        """Let the settings apply again, and return what they say. Raises NotFoundError."""
        check_admin(self._token)
        return ChangedWeightView(share_weight=self._weights.unset(owner))
