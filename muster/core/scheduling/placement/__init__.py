"""Where gangs go: docs/placement.md."""

from muster.core.scheduling.placement.gang import (
    Constraint,
    Gang,
    Mix,
    Topology,
    Typical,
    gang_of,
    gang_of_size,
    mix_of,
    on_one_agent,
    typical_requests,
)
from muster.core.scheduling.placement.holdings import Holder
from muster.core.scheduling.placement.misses import Misses
from muster.core.scheduling.placement.state import PlacementState

__all__ = [
    "Constraint",
    "Gang",
    "Holder",
    "Misses",
    "Mix",
    "PlacementState",
    "Topology",
    "Typical",
    "gang_of",
    "gang_of_size",
    "mix_of",
    "on_one_agent",
    "typical_requests",
]
