"""What is free stays of use to the requests that this site typically has. docs/placement.md says why it works."""

from muster.scheduler_plugin import PlacementPolicy

POLICY = PlacementPolicy("fragmentation", fragmentation=1.0, dearth=1.0, starvation=1.5, imbalance=0.1, scarcity=0.5)
