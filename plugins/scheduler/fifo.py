"""First in, first out."""

from muster.core.model.policy import by_arrival

order = by_arrival
