"""What queue orders and placement policies import, those of this repository and a site's own.

Modules elsewhere in Muster move when the code is put in order. This one keeps its name, and its names are not taken
away within one major version.

An order is a file with a function `order(sessions, view)`, which returns the `Session`s in the order in which they are
tried. `view` is a `QueueView`: a resource group with what each owner has and had. `NEEDS_USAGE = True` in the file
fills in `view.usage`. A placement policy is a file with `POLICY = PlacementPolicy(…)`: weights of the cost of places.
"""

from muster.core.model.policy import Order, PlacementPolicy, QueueView, by_arrival
from muster.core.model.session import Session
from muster.core.scheduling.fairness import least_first

__all__ = ["Order", "PlacementPolicy", "QueueView", "Session", "by_arrival", "least_first"]
