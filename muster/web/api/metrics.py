"""`/metrics` for Prometheus."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from muster.core.values.slots import SLOT_NAMES, Slots
from muster.service.metrics import Measures, Meter

CONTENT_TYPE = CONTENT_TYPE_LATEST
# What a slot is divided by: Prometheus counts in base units.
_UNITS = {"cpu": 1000, "mem": 1, "fgpu": 1000, "gpu": 1}


def exposition(meter: Meter) -> bytes:
    """Return the metrics in Prometheus' text format. Raises StoreUnavailableError."""
    measures = meter.measure()
    registry = CollectorRegistry()
    registry.register(_Collector(measures))
    return generate_latest(registry)


class _Collector(Collector):
    def __init__(self, measures: Measures) -> None:
        self._measures = measures

    def collect(self) -> Iterator[Metric]:
        measures = self._measures
        queued = GaugeMetricFamily("muster_queue_length", "Sessions that wait", labels=["group"])
        waited = GaugeMetricFamily(
            "muster_queue_oldest_wait_seconds", "Since the session that waits longest was submitted", labels=["group"]
        )
        total = GaugeMetricFamily("muster_slots", "Slots of all agents: cores, bytes, units", labels=["group", "slot"])
        used = GaugeMetricFamily("muster_slots_used", "Slots that sessions hold", labels=["group", "slot"])
        for name, group in measures.groups.items():
            queued.add_metric([name], group.queued)
            waited.add_metric([name], group.oldest_wait_s)
            for slot in SLOT_NAMES:
                total.add_metric([name, slot], _amount(slot, group.capacity))
                used.add_metric([name, slot], _amount(slot, group.capacity) - _amount(slot, group.free))
        yield from (queued, waited, total, used)
        sessions = GaugeMetricFamily("muster_sessions", "Sessions that have not ended, by state", labels=["state"])
        for state, count in measures.sessions.items():
            sessions.add_metric([state], count)
        yield sessions
        agents = GaugeMetricFamily("muster_agents", "Agents, by state", labels=["group", "state"])
        for (name, state), count in measures.agents.items():
            agents.add_metric([name, state], count)
        yield agents
        drained = GaugeMetricFamily("muster_agents_drained", "Agents that are drained", labels=["group"])
        for name, count in measures.drained.items():
            drained.add_metric([name], count)
        yield drained
        yield from self._counts()

    def _counts(self) -> Iterator[Metric]:
        entered = self._measures.entered
        yield CounterMetricFamily("muster_submitted", "Sessions submitted, or queued again", entered["PENDING"])
        yield CounterMetricFamily("muster_launches", "Sessions that came to run", entered["RUNNING"])
        yield CounterMetricFamily("muster_failures", "Sessions whose launch failed for good", entered["ERROR"])
        yield CounterMetricFamily("muster_ended", "Sessions that ended after they were placed", entered["TERMINATED"])
        yield GaugeMetricFamily(
            "muster_last_pass_timestamp_seconds",
            "When the queue was last worked; 0: never",
            self._measures.last_pass_at,
        )
        passes = self._measures.passes
        buckets = [*((str(bound), count) for bound, count in passes.buckets.items()), ("+Inf", passes.count)]
        yield HistogramMetricFamily(
            "muster_pass_duration_seconds",
            "What a decision about the queue took",
            buckets=buckets,
            sum_value=passes.sum_s,
        )


def _amount(slot: str, slots: Slots) -> float:
    amount: int = getattr(slots, slot)
    return amount / _UNITS[slot]
