"""`/metrics` for Prometheus."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from muster.core.values.slots import SLOT_NAMES, Slots
from muster.service.metrics import Host, Measures
from muster.web.protection import RequestCounts

CONTENT_TYPE = CONTENT_TYPE_LATEST
# What a slot is divided by: Prometheus counts in base units.
_UNITS = {"cpu": 1000, "mem": 1, "fgpu": 1000, "gpu": 1}


def exposition(measures: Measures, requests: RequestCounts) -> bytes:
    """Return the metrics in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_Collector(measures, requests))
    return generate_latest(registry)


class _Collector(Collector):
    def __init__(self, measures: Measures, requests: RequestCounts) -> None:
        self._measures = measures
        self._requests = requests

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
        yield from self._hosts()
        yield from self._gpu_health()
        yield from self._answers()

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
        yield GaugeMetricFamily(
            "muster_queue_unworked",
            "1 if a session waits or runs and nobody has worked the queue for too long",
            float(self._measures.is_unworked),
        )
        passes = self._measures.passes
        yield HistogramMetricFamily(
            "muster_pass_duration_seconds",
            "What a decision about the queue took",
            buckets=_buckets(passes.buckets, passes.count),
            sum_value=passes.sum_s,
        )
        launches = self._measures.launches
        yield HistogramMetricFamily(
            "muster_launch_duration_seconds",
            "From the placing of a session until all of its kernels run, since this server's first measurement",
            buckets=_buckets(launches.buckets, launches.count),
            sum_value=launches.sum_s,
        )

    def _hosts(self) -> Iterator[Metric]:
        for name, text, value in _OF_HOSTS:
            family = GaugeMetricFamily(name, text, labels=["agent"])
            for host in self._measures.hosts:
                amount = value(host)
                if amount is not None:
                    family.add_metric([host.agent_id], amount)
            yield family

    def _gpu_health(self) -> Iterator[Metric]:
        quarantined = GaugeMetricFamily(
            "muster_gpu_quarantined",
            "1 for a GPU that gets no new sessions, for each symptom that is the cause",
            labels=["agent", "gpu", "symptom"],
        )
        warning = GaugeMetricFamily(
            "muster_gpu_warning", "1 for a GPU with symptoms that keep no session away", labels=["agent", "gpu"]
        )
        for host in self._measures.hosts:
            for gpu in host.gpus:
                for symptom in gpu.quarantined_by:
                    quarantined.add_metric([host.agent_id, gpu.uuid, symptom], 1)
                if gpu.warning:
                    warning.add_metric([host.agent_id, gpu.uuid], 1)
        yield from (quarantined, warning)

    def _answers(self) -> Iterator[Metric]:
        counted, durations, sum_s = self._requests.read()
        answers = CounterMetricFamily("muster_http_requests", "Answers of this server", labels=["method", "status"])
        for (method, status), count in sorted(counted.items()):
            answers.add_metric([method, str(status)], count)
        yield answers
        yield HistogramMetricFamily(
            "muster_http_request_duration_seconds",
            "From a request until its answer began",
            buckets=_buckets(durations, sum(counted.values())),
            sum_value=sum_s,
        )


def _buckets(counts: Mapping[float, int], count: int) -> list[tuple[str, float]]:
    return [*((str(bound), float(under)) for bound, under in counts.items()), ("+Inf", float(count))]


def _gpus(thousandths: float | None) -> float | None:
    return None if thousandths is None else thousandths / 1000


_OF_HOSTS: tuple[tuple[str, str, Callable[[Host], float | None]], ...] = (
    ("muster_agent_gpus", "GPUs of an agent", lambda host: _gpus(host.gpu.capacity)),
    ("muster_agent_gpus_allocated", "GPUs that sessions hold there", lambda host: _gpus(host.gpu.allocated)),
    ("muster_agent_gpus_used", "GPUs that their kernels keep busy", lambda host: _gpus(host.gpu.used)),
    ("muster_agent_gpu_memory_bytes", "Memory of an agent's GPUs", lambda host: host.gpu_mem.capacity),
    ("muster_agent_gpu_memory_used_bytes", "Memory in use on an agent's GPUs", lambda host: host.gpu_mem.used),
    ("muster_agent_disk_bytes", "The disk of an agent's images and containers", lambda host: host.disk_bytes),
    ("muster_agent_disk_free_bytes", "What is free on that disk", lambda host: host.disk_free_bytes),
    (
        "muster_agent_image_bytes",
        "Sizes of an agent's images, shared layers counted for each",
        lambda host: host.image_bytes,
    ),
)


def _amount(slot: str, slots: Slots) -> float:
    amount: int = getattr(slots, slot)
    return amount / _UNITS[slot]
