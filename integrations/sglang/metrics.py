"""What Prometheus may ask of the router."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvferry.integrations.redis.sink import Sink
from kvferry.integrations.sglang.fleet import Fleet

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
ERRORS = (0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)


class Metrics:
    """Counters and histograms of one router, with a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        self.requests = Counter(
            "kvferry_requests",
            "Requests by outcome.",
            ["endpoint", "mode", "reason", "status"],
            registry=registry,
        )
        self.rescues = Counter(
            "kvferry_rescues", "Plans given up before their first byte.", ["mode"], registry=registry
        )
        self.decide_s = Histogram(
            "kvferry_decide_seconds",
            "Time to decide.",
            buckets=(5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 5e-3, 2e-2),
            registry=registry,
        )
        self.ttft_s = Histogram(
            "kvferry_ttft_seconds", "Arrival to first byte.", ["mode"], buckets=SECONDS, registry=registry
        )
        self.ttft_error = Histogram(
            "kvferry_ttft_error_ratio",
            "|predicted median - actual| / actual TTFT.",
            ["mode"],
            buckets=ERRORS,
            registry=registry,
        )
        self.covered = Counter(
            "kvferry_ttft_covered",
            "Requests by whether TTFT stayed under its predicted 90th percentile.",
            ["covered"],
            registry=registry,
        )
        self.moved_bytes = Counter(
            "kvferry_moved_bytes", "KV bytes predicted to have been moved.", registry=registry
        )
        self.safe = Counter(
            "kvferry_safe_rule", "Decisions left to the safe rule.", ["reason"], registry=registry
        )
        self.telemetry = Counter(
            "kvferry_outcome_telemetry",
            "Outcomes by whether the records of their workers had come: joined, or missed; late: a record "
            "that came after its outcome was written.",
            ["result"],
            registry=registry,
        )
        self.undecodable = Counter(
            "kvferry_telemetry_undecodable", "Telemetry entries that are no record.", registry=registry
        )
        for result in ("joined", "missed", "late"):
            self.telemetry.labels(result)
        self.in_flight = Gauge("kvferry_in_flight", "Requests in flight.", registry=registry)

    def met(self, result: str) -> None:
        """One outcome, or one late record."""
        self.telemetry.labels(result).inc()

    def refused(self, endpoint: str) -> None:
        """A request for which no plan was found: it has no decision, hence no record."""
        self.requests.labels(endpoint, "none", "no_plan", "failed").inc()

    def watch(self, fleet: Fleet, sink: Sink) -> None:
        """Also export the state of workers and of the log's delivery."""
        self.registry.register(_State(fleet, sink))

    def text(self) -> bytes:
        return generate_latest(self.registry)


class _State(Collector):
    def __init__(self, fleet: Fleet, sink: Sink) -> None:
        self._fleet, self._sink = fleet, sink

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("kvferry_worker_up", "1 when the worker is used.", labels=["worker", "role"])
        age = GaugeMetricFamily("kvferry_load_age_seconds", "Age of the worker's load.", labels=["worker"])
        speed = GaugeMetricFamily(
            "kvferry_prefill_tokens_per_second", "Prefill speed as used in predictions.", labels=["worker"]
        )
        for member in self._fleet.members.values():
            worker = member.worker
            up.add_metric([worker.id, worker.role.value], float(worker.healthy))
            age.add_metric([worker.id], self._fleet.clock() - worker.load.time_s)
            speed.add_metric([worker.id], 1.0 / max(1e-12, worker.speed.prefill_s_per_token))
        yield from (up, age, speed)
        for name, help_text, value in (
            ("kvferry_store_up", "1 when the store answers.", float(self._sink.up)),
            ("kvferry_log_queued", "Log entries waiting for the store.", self._sink.queued),
            ("kvferry_log_spooled", "Log entries on disk, to be delivered.", self._sink.spooled),
            ("kvferry_log_delivered", "Log entries delivered.", self._sink.delivered),
            ("kvferry_log_dropped", "Log entries lost.", self._sink.dropped + self._sink.log_dropped),
            ("kvferry_leases", "Leases this router holds.", self._sink.live_leases),
        ):
            yield GaugeMetricFamily(name, help_text, value=float(value))
