"""Best fit: the agent and the GPU on which least stays free, so that large rooms stay whole."""

from muster.scheduler_plugin import PlacementPolicy

POLICY = PlacementPolicy("pack", left_over=1.0)
