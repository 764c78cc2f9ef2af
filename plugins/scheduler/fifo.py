"""First in, first out."""

from muster.core.policy import by_arrival

order = by_arrival
