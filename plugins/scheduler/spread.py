"""The agent and the GPU on which most stays free: load and heat are shared, large gangs find room later."""

from muster.scheduler_plugin import PlacementPolicy

POLICY = PlacementPolicy("spread", left_over=-1.0)
