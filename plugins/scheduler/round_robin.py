"""Agents in turn: the one with the fewest kernels, whatever they use."""

from muster.scheduler_plugin import PlacementPolicy

POLICY = PlacementPolicy("round_robin", turn=1.0)
