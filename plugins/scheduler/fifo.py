"""First in, first out."""

from muster.scheduler_plugin import by_arrival

order = by_arrival
